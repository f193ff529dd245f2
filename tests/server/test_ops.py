# SPDX-License-Identifier: Apache-2.0
"""Health, models, metrics, logs, and processes that share an engine."""

import asyncio
import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from ipc.engine_processes import QUICK_RESTARTS, await_another, eventually, send
from ipc.fake_engine import ABOUT, FakeEngine
from polyvox import __version__
from polyvox.errors import EngineDown, Overloaded
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.server import health, shared_store
from polyvox.server.app_state import AppState
from polyvox.server.logs import LogFormatter
from polyvox.server.metrics import Metrics
from polyvox.server.middleware.auth import AuthMiddleware
from polyvox.server.request_log import RequestLog, RequestRecord
from polyvox.server.server_process import connect_remote
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving, serving_on

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src"


def test_a_server_process_does_not_import_torch() -> None:
    code = "import sys, polyvox.server.workers, polyvox.cli.serve; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=True)


class DownEngine(PausableEngine):
    down = False
    num_rejected = 0

    def stats(self) -> dict[str, float]:
        if self.down:
            self.num_rejected += 1
            raise EngineDown(f"the engine is being started again ({self.num_rejected} %)", retry_after=1)
        return super().stats()


def test_the_server_is_ready_after_a_trial_utterance_and_while_the_engine_runs() -> None:
    with closing(DownEngine()) as engine:
        engine.max_chunks = 0
        with serving(engine, wait=False) as server, server.client() as client:
            assert client.get("/livez").status_code == 200
            assert client.get("/readyz").status_code == 503
            assert client.get("/readyz").json()["problem"] == "The trial utterance has not finished."
            engine.resume()
            eventually(lambda: client.get("/readyz").status_code == 200)
            assert engine.requests[0].text == "Ready."
            engine.down = True
            eventually(lambda: client.get("/health").status_code == 503)
            assert "started again" in client.get("/health").json()["problem"]
            before = len(engine.requests)
            engine.down = False
            eventually(lambda: client.get("/health").status_code == 200)
            assert len(engine.requests) == before + 1  # it was tried again
            assert server.state.health.ready


def test_each_restart_of_the_engine_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_INTERVAL", 0.01)
    with closing(DownEngine()) as engine, serving(engine) as server:
        for restart in (1, 2):
            engine.down = True
            eventually(lambda: engine.num_rejected >= 5 * restart and not server.state.health.ready)  # noqa: B023
            engine.down = False
            eventually(lambda: server.state.health.ready)
            assert sum(record.message == "server not ready" for record in caplog.records) == restart


def test_a_trial_utterance_that_does_not_end_is_cancelled_and_repeated(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "TRIAL_TIMEOUT", 0.1)
    engine.max_chunks = 0
    with serving(engine, wait=False) as server, server.client() as client:
        eventually(lambda: "took longer than 0.1 s" in client.get("/readyz").json()["problem"])
        eventually(lambda: engine.streams == 0)
        monkeypatch.setattr(health, "TRIAL_TIMEOUT", 60.0)
        engine.resume()
        eventually(lambda: client.get("/readyz").status_code == 200)


def test_the_loaded_model_is_listed_in_all_formats(server: RunningServer) -> None:
    with server.client() as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["object"], model["can_clone"]) == ("Fake-CustomVoice", "model", False)
        assert client.get("/v1/audio/models").json() == {"models": [model]}
        assert client.get("/v1/models/Fake-CustomVoice").json() == model
        assert client.get("/v1/models/other/name").status_code == 404
        assert client.get("/nowhere").json()["error"]["code"] == "not_found"
        assert client.put("/v1/audio/speech").status_code == 405
        assert "curl" in client.get("/").text
        assert client.get("/docs").status_code == 200
        assert "/v1/audio/speech" in client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("method", "path", "allowed", "message"),
    [
        ("PUT", "/v1/audio/voices", "GET, HEAD, POST", "PUT is not allowed here: use GET or POST."),
        ("PUT", "/v1/audio/voices/x", "DELETE, GET, HEAD", "PUT is not allowed here: use DELETE or GET."),
        ("GET", "/v1/audio/speech", "POST", "GET is not allowed here: use POST."),
        # An id may be called batch.
        ("DELETE", "/v1/audio/speech/batch", "GET, HEAD, POST", "DELETE is not allowed here: use GET or POST."),
        ("POST", "/livez", "GET, HEAD", "POST is not allowed here: use GET."),
    ],
)
def test_a_wrong_method_is_answered_with_all_allowed_ones(
    method: str, path: str, allowed: str, message: str, engine: PausableEngine
) -> None:
    for root_path in ("", "/tts"):
        with serving(engine, Settings(root_path=root_path)) as server, server.client() as client:
            rejected = client.request(method, path)
            assert (rejected.status_code, rejected.headers["allow"]) == (405, allowed)
            error = rejected.json()["error"]
            assert (error["code"], error["message"]) == ("method_not_allowed", message)


def test_an_unknown_path_is_named_with_the_page_that_lists_all(engine: PausableEngine) -> None:
    for root_path in ("", "/tts"):
        with serving(engine, Settings(root_path=root_path)) as server, server.client() as client:
            for path, shown in (("/v1/nothing", f"'{root_path}/v1/nothing'"), (f"/{'x' * 500}", "x…")):
                error = client.get(path).json()["error"]
                assert error["code"] == "not_found"
                assert shown in error["message"]
                assert error["message"].endswith(f". GET {root_path}/docs lists all.")


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/v1/models", "/metrics", "/docs", "/web/main.js"])
def test_every_get_endpoint_supports_head(path: str, server: RunningServer) -> None:
    with server.client() as client:
        found, body = client.head(path), client.get(path)
        assert (found.status_code, found.content) == (200, b"")
        assert found.headers["content-type"] == body.headers["content-type"]
        assert client.head("/v1/models/other").status_code == 404


def test_metrics_count_requests_and_aborts(engine: PausableEngine) -> None:
    with serving(engine) as server, server.client() as client:
        before = client.get("/metrics").text
        server.speak(client)
        server.speak(client, voice="bob")
        server.speak(client, "overloaded")
        server.state.synthesis._rejections.clear()
        engine.resume(24)
        with client.stream("POST", "/v1/audio/speech", json={"input": "Hi.", "max_new_tokens": 99}) as response:
            parts = response.iter_raw()  # paused, as it closes the connection when it goes
            next(parts)
            eventually(lambda: bool(server.state.health.stats))
            during = client.get("/metrics").text
            response.close()
        engine.resume()
        eventually(lambda: not server.state.synthesis.active)
        body = client.get("/metrics").text
    assert 'polyvox_requests_total{outcome="stop"} 0.0' in before
    assert 'polyvox_aborts_total{reason="disconnect"} 0.0' in before
    assert "polyvox_streams_active 1.0" in during
    assert "polyvox_streams_active 0.0" in body
    for line in (
        'polyvox_requests_total{outcome="stop"} 1.0',
        'polyvox_requests_total{outcome="rejected"} 1.0',
        'polyvox_requests_total{outcome="overloaded"} 1.0',
        'polyvox_rejections_total{reason="queue_full"} 1.0',
        'polyvox_requests_total{outcome="cancelled"} 1.0',
        'polyvox_aborts_total{reason="disconnect"} 1.0',
        "polyvox_ttfa_seconds_count 2.0",
        "polyvox_rtf_count 1.0",
        "polyvox_playback_underruns_total 0.0",
        'polyvox_engine_steps_total{replica="0"} ',
        'polyvox_engine_ready{replica="0"} 1',
        "polyvox_ready 1",
        "polyvox_event_loop_lag_seconds ",
        "polyvox_queue_wait_seconds_count 2.0",
    ):
        assert line in body
    names = re.findall(r"^# TYPE (\w+)", body, re.MULTILINE)
    assert len(names) == len(set(names))


def test_streams_are_counted_by_status() -> None:
    idle = {"status_running": 0.0}
    text = Metrics().render([{"status_running": 2.0, "status_queued": 0.0, "lead_min": float("inf")}, idle]).decode()
    assert 'polyvox_streams{replica="0",status="running"} 2\n' in text
    assert 'polyvox_streams{replica="0",status="queued"} 0\n' in text
    assert 'polyvox_streams{replica="1",status="running"} 0\n' in text
    assert "min_lead" not in text


def test_build_info_and_restarts_are_metrics() -> None:
    text = Metrics('a "model"').render([{"restarts": 2.0}]).decode()
    assert f'polyvox_build_info{{version="{__version__}",python="{platform.python_version()}"' in text
    assert r'model="a \"model\""} 1' in text
    assert 'polyvox_engine_restarts_total{replica="0"} 2\n' in text


def test_the_request_log_is_bounded_and_shared_between_processes(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        kept, other = RequestLog(folder, max_records=2), RequestLog(folder, max_records=2)
        for name in ("a", "b", "c"):
            kept.put(RequestRecord(name, "model", 0.0, seed=1))
        assert asyncio.run(kept.get("", "a")) is None
        found = asyncio.run(kept.get("", "c"))
        assert found is not None
        assert found["request_id"] == "c"
        assert (asyncio.run(other.get("", "c")) is not None) == (folder is not None)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_stalled_disk_does_not_keep_a_response_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proceed, written = threading.Event(), threading.Event()

    def stall(*_: object) -> None:
        proceed.wait(60)
        written.set()

    monkeypatch.setattr(Path, "write_bytes", stall)
    request_log = RequestLog(tmp_path)
    request_log.put(RequestRecord("a", "model", 0.0, seed=1))
    asyncio.run(request_log.flush())
    assert not written.is_set()
    proceed.set()


def test_a_stalled_disk_drops_records_and_rejects_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = threading.Event()
    monkeypatch.setattr(Path, "write_bytes", lambda *_: stalled.wait(30))
    monkeypatch.setattr(shared_store, "MAX_PENDING", 3)
    monkeypatch.setattr(shared_store, "READ_TIMEOUT", 0.01)
    request_log = RequestLog(tmp_path)
    assert request_log.put(RequestRecord("a", "model", 0.0, seed=1))
    for _ in range(4):  # the first two wait for the disk, the others are rejected at once
        with pytest.raises(Overloaded, match="records cannot be read now") as rejected:
            asyncio.run(request_log.get("", "a"))
        assert rejected.value.reason == "disk_timeout"
    assert not request_log.put(RequestRecord("b", "model", 0.0, seed=1))
    stalled.set()
    eventually(lambda: request_log.put(RequestRecord("c", "model", 0.0, seed=1)))


def test_log_lines_have_keys_and_values() -> None:
    record = logging.makeLogRecord(
        {"msg": "said %s", "args": ("it",), "levelname": "INFO", "request_id": "a b", "n": 1}
    )
    assert LogFormatter(as_json=False).format(record).endswith('info said it request_id="a b" n=1')
    body = json.loads(LogFormatter(as_json=True).format(record))
    assert (body["message"], body["request_id"], body["n"], body["level"]) == ("said it", "a b", 1, "info")


@pytest.mark.parametrize("arguments", ["--model /nonexistent", "--workers x", "--host 203.0.113.9"])
def test_an_error_at_the_start_is_one_json_object(arguments: str) -> None:
    command = [sys.executable, "-m", "polyvox", "serve", "--port", "0", "--device", "cpu", *arguments.split()]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([*command, "--log-format", "json"], env=environment, capture_output=True, timeout=120)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode in (1, 2)
    assert [event["message"] for event in events].count("server failed") == 1
    assert arguments.split()[1] in events[-1]["error"]
    assert not any("traceback" in event for event in events)


UNCAUGHT = """
import asyncio, threading, warnings
from polyvox.server.logs import set_up_logs
from polyvox.server.settings import Settings
set_up_logs(Settings(log_format="json"))
warnings.warn("a warning")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()

async def fail_in_the_loop():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

asyncio.run(fail_in_the_loop())
1 / 0
"""


def test_warnings_and_uncaught_exceptions_are_json_too() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", UNCAUGHT], env=environment, capture_output=True, timeout=60)
    warning, thread, loop, uncaught = (json.loads(line) for line in done.stderr.splitlines())
    assert "a warning" in warning["message"]
    assert thread["message"] == uncaught["message"] == "uncaught exception"
    assert loop["logger"] == "asyncio"
    assert all("ZeroDivisionError" in event["traceback"] for event in (thread, loop, uncaught))


# Real processes


@contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """`polyvox serve`, its address and its output."""
    line = [sys.executable, "-m", "polyvox", "serve", "--port", "0", "--device", "cpu", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "POLYVOX_LOG_FORMAT": "json"}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        found: list[str] = []
        assert process.stderr is not None
        errors = process.stderr

        def listen() -> None:
            for text in errors:
                lines.append(text)
                if match := re.search(r'"server listening", "address": "(http://[\d.]+:\d+)"', text):
                    found.append(match[1])

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            eventually(lambda: bool(found) or process.poll() is not None or threading.Event().wait(0.05))
            assert found, "".join(lines)
            yield process, found[0], lines
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)
            thread.join()


def test_two_workers_share_engine_voices_metrics_and_records(checkpoints: Path, tmp_path: Path) -> None:
    config = tmp_path / "polyvox.yaml"
    config.write_text(f"workers: 2\nvoices_dir: {tmp_path / 'voices'}\nmax_streams: 4\n")
    with command("--config", str(config), "--model", str(checkpoints / "base")) as (process, address, lines):
        hidden = 0
        for attempt in range(40):  # each on a connection of its own, so that both processes are met
            with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
                if attempt == 0:
                    wrong = client.post("/v1/audio/voices", json={"name": "anna", "speaker_embedding": [1.0]})
                    hidden = int(re.findall(r"(\d+) numbers", wrong.json()["error"]["message"])[-1])
                    body = {"name": "anna", "speaker_embedding": [0.1] * hidden}
                    assert client.post("/v1/audio/voices", json=body).status_code == 201
                asked = {"input": "hello", "voice": "anna", "response_format": "pcm", "max_new_tokens": 2}
                spoken = client.post("/v1/audio/speech", json=asked, headers={"x-request-id": f"r{attempt}"})
                assert spoken.status_code == 200
                if attempt:
                    before = client.get(f"/v1/audio/speech/r{attempt - 1}")
                    assert before.json()["finish_reason"] in ("stop", "length", "runaway")
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            counted, ready = client.get("/metrics").text, client.get("/readyz").json()
        limits = re.findall(r'^polyvox_streams_admissible_by_limit\{replica="0",limit="(\w+)"\}', counted, re.MULTILINE)
        assert sorted(limits) == ["cpu_time", "max_streams"]
        assert 1 <= ready["capacity"] <= 4
        assert ready["capacity_limit"] in limits
        assert sum(float(n) for n in re.findall(r"polyvox_requests_total\{outcome=\"\w+\"\} (\S+)", counted)) == 41
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert sum("server process started" in line for line in lines) == 2
    events = {event["message"]: event for event in map(json.loads, lines)}  # all lines are JSON
    assert events["settings"]["settings"]["max_streams"] == 4
    assert events["server listening"]["slots"] == 4
    assert 1 <= events["server listening"]["capacity"] <= 4
    assert events["server listening"]["capacity_limit"] in ("cpu_time", "max_streams")
    assert sum("keys and values" in line for line in lines) == 1  # the table of the engine's process


def test_sigterm_stops_the_server_after_running_requests() -> None:
    with command() as (process, address, lines), httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        body = {"input": "This one is still being said when the signal comes.", "response_format": "wav"}
        with client.stream("POST", "/v1/audio/speech", json=body) as response:
            parts = response.iter_raw()
            received = next(parts)
            process.send_signal(signal.SIGTERM)
            received += b"".join(parts)  # to its clean end
        assert len(received) > 10_000
        assert process.wait(60) == 0
    said = [event for event in map(json.loads, lines) if event["message"] == "request finished"]
    assert said[-1]["finish_reason"] != "cancelled"
    assert said[-1]["request_id"] == response.headers["x-request-id"]


def test_a_dead_engine_is_reported_until_it_is_restarted() -> None:
    factory = partial(FakeEngine, step_seconds=0.01)
    with (
        EngineProcess(factory, EngineProcessConfig(restarts=QUICK_RESTARTS)) as process,
        serving_on(connect_remote(process.endpoint)) as server,
        server.client() as client,
    ):
        voice: dict[str, Any] = {"speaker_embedding": [0.1] * ABOUT.hidden_size, "max_new_tokens": 100_000}
        body = {"input": "Hi.", "response_format": "pcm", **voice}
        with client.stream("POST", "/v1/audio/speech", json=body) as response:
            parts = response.iter_raw()
            next(parts)
            killed = send(process)
            with pytest.raises(httpx.RemoteProtocolError):
                list(parts)
        body = client.get(f"/v1/audio/speech/{response.headers['x-request-id']}").json()
        assert "ended before the stream did" in body["error"]
        rejected = server.speak(client, **voice)
        assert rejected.status_code == 503
        assert int(rejected.headers["retry-after-ms"]) > 0
        assert client.get("/livez").status_code == 200
        await_another(process, killed)
        eventually(lambda: client.get("/readyz").status_code == 200)
        eventually(lambda: server.speak(client, **{**voice, "max_new_tokens": 2}).status_code == 200)


def test_a_websocket_without_a_key_is_rejected_before_the_handshake() -> None:
    reached: list[str] = []
    sent: list[Message] = []

    async def inside(scope: Scope, _: Receive, __: Send) -> None:
        reached.append(scope["query_string"].decode())

    async def keep(message: Message) -> None:
        sent.append(message)

    async def nothing() -> Message:
        return {"type": "websocket.connect"}

    app_state = create_autospec(AppState, instance=True, spec_set=True)
    state = SimpleNamespace(state=SimpleNamespace(startup=SimpleNamespace(state=app_state)))
    middleware = AuthMiddleware(inside, Settings(api_keys=["k"]))
    for query, headers in (("", []), ("api_key=x", []), ("api_key=k", []), ("h", [(b"xi-api-key", b"k")])):
        scope = {"type": "websocket", "path": "/v1/audio/speech/stream", "query_string": query.encode()}
        asyncio.run(middleware({**scope, "app": state, "headers": headers, "client": ("1.2.3.4", 5)}, nothing, keep))
    assert reached == ["api_key=k", "h"]
    assert [message["code"] for message in sent] == [1008, 1008]
