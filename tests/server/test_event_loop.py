# SPDX-License-Identifier: Apache-2.0
"""The event loop of a server never waits for a file, and a cancelled response ends."""

import asyncio
import re
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipc.engine_processes import eventually
from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.engine.preparation import InlineBudget
from polyvox.server import health
from polyvox.server.api import playground
from polyvox.server.app import RECORDS, SHARED_FOLDERS
from polyvox.server.metrics import Metrics
from polyvox.server.middleware.limits import LIMITER, Caller, ConcurrencyLimiter
from polyvox.server.server_process import create_server
from polyvox.server.settings import Settings
from polyvox.server.synthesis import spool
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.synthesis.streaming import SpeechResponse
from polyvox.text import languages
from server import live_server
from server.fakes import CUSTOM, PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import connect_websocket

MODULES = (".py", ".pyc", ".so")  # imports


class OpenedFiles:
    """Files that one thread opens."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.paths: list[str] = []
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.thread is not None and threading.current_thread() is self.thread:
            path = str(arguments[0])
            if not path.endswith(MODULES):
                self.paths.append(path)


OPENED = OpenedFiles()  # audit hooks cannot be removed


def test_no_file_is_opened_by_the_event_loop(
    engine: PausableEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SHARED_FOLDERS:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(live_server, "create_server", partial(create_server, shared_dir=tmp_path))
    monkeypatch.setattr(Metrics, "render", lambda *_: Path("/proc/self/stat").read_bytes())  # as with several processes
    monkeypatch.setattr(spool, "MAX_MEMORY_BYTES", 1)
    playground.assets.cache_clear()
    settings = Settings(voices_dir=tmp_path / "voices", spool_dir=tmp_path)
    with serving(engine, settings) as server, server.client() as client:
        OPENED.paths.clear()
        OPENED.thread = server.thread
        try:
            for path in ("/", "/metrics", "/v1/audio/voices", "/v1/playground", "/web/index.html"):
                assert client.get(path).status_code == 200
            for fields in ({"response_format": "pcm"}, {"response_format": "mp3"}, {"stream": False}):
                response = client.post("/v1/audio/speech", json={"input": "Hi.", **fields})
                assert response.status_code == 200
                found = client.get(f"/v1/audio/speech/{response.headers['x-request-id']}")
                assert found.status_code == 200
            assert client.post("/v1/audio/speech/batch", json={"input": "Hi.", "items": [{}, {}]}).status_code == 200
        finally:
            OPENED.thread = None
    assert OPENED.paths == []
    assert list((tmp_path / RECORDS).iterdir())


def test_a_body_that_would_take_long_to_parse_is_rejected(server: RunningServer, client: httpx.Client) -> None:
    """A thread does not help: the parser holds the GIL. 16 MB of empty lists took seconds."""
    empty_lists = b'{"input": "Hello.", "ignored": [' + b"[]," * 1_000_000 + b"[]]}"
    rejected = client.post("/v1/audio/speech", content=empty_lists)
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (413, "too_large")
    assert server.speak(client, ignored=[0.5] * 65_536).status_code == 200
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.send(type="session.config", ref_audio="", ignored=[[]] * 100_000)
        assert "JSON values" in str(websocket.receive_json())


@pytest.mark.parametrize("streaming", [True, False])
def test_a_cancelled_response_is_cancelled_and_frees_its_slot(
    streaming: bool, server: RunningServer, engine: PausableEngine
) -> None:
    engine.resume(3)
    state = server.state
    options = SynthesisOptions("Hello there.", format="wav", streaming=streaming)

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        async def send(_: Any) -> None:
            pass

        limiter = ConcurrencyLimiter(state.engine, Caller("", ""), state.settings)
        response = SpeechResponse(state, options, "cancelled")(
            {"type": "http", "path": "/v1/audio/speech", LIMITER: limiter}, receive, send
        )
        task = asyncio.ensure_future(response)
        while engine.streams == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    eventually(lambda: engine.streams == 0 and not state.synthesis.active)


def test_a_server_loads_the_rules_of_all_languages_before_its_first_request(engine: PausableEngine) -> None:
    """An import takes 10 ms and more, in which the event loop would send no audio."""
    languages._load.cache_clear()
    with serving(engine):
        assert languages._load.cache_info().currsize == len(languages.LANGUAGES)


def test_short_texts_are_prepared_by_the_event_loop_and_all_others_by_a_thread(
    server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of threads takes longer than a short text, but encoders, long texts and voices in files take more."""
    synthesis, threads = server.state.synthesis, []
    prepare = synthesis.prepare

    def recorded(options: SynthesisOptions) -> Any:
        threads.append(threading.current_thread().name.startswith("polyvox-prepare"))
        return prepare(options)

    monkeypatch.setattr(synthesis, "prepare", recorded)
    small = {"input": "Hello there.", "voice": "heart", "response_format": "pcm"}
    others: list[dict[str, Any]] = [
        {"response_format": "mp3"},
        {"input": "Hello there. " * 30},
        {"stream": False},
        {"pronunciations": {"there": "here"}},
        {"input": "<speak>Hello.</speak>"},
        {"voice": "narrator"},
    ]
    for body in [small, *(small | other for other in others)]:
        monkeypatch.setattr(synthesis, "_inline", InlineBudget())  # the machine may be busy
        client.post("/v1/audio/speech", json=body)
    assert threads == [False, *[True] * len(others)]
    monkeypatch.setattr(synthesis, "_inline", NoTime())
    client.post("/v1/audio/speech", json=small)
    assert threads[-1], "the event loop has no time left"


class NoTime(InlineBudget):
    def run(self, _: Any) -> None:
        return None


def test_the_lag_of_the_event_loop_is_reported_and_forgotten_after_a_while(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LAG_INTERVAL", 0.001)
    monkeypatch.setattr(health, "LAG_WINDOW", 0.1)
    metrics = Metrics(multiprocess=False)

    def is_late() -> bool:
        found = re.search(rb"^polyvox_event_loop_lag_seconds (\S+)$", metrics.render(), re.MULTILINE)
        return found is not None and float(found[1]) > 0.2

    async def block_the_loop() -> None:
        service = SynthesisService(AsyncLocalEngine(engine), CUSTOM, lambda voice: voice, Settings())
        measuring = asyncio.create_task(health.HealthMonitor(service, CUSTOM, metrics)._measure_lag())
        try:
            async with asyncio.timeout(60):
                await asyncio.sleep(0)  # the first measurement begins
                time.sleep(0.3)
                for expected in (True, False):
                    while is_late() is not expected:
                        await asyncio.sleep(0)
        finally:
            measuring.cancel()
            service.close()

    asyncio.run(block_the_loop())
