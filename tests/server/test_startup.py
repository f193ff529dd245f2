# SPDX-License-Identifier: Apache-2.0
"""The server while its engine starts, cannot start, or cannot be restarted."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipc.engine_processes import QUICK_RESTARTS, await_another, eventually, send
from ipc.fake_engine import ABOUT, FakeEngine, mortal, staged
from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.engine.lifecycle import RestartPolicy
from polyvox.engine.restarting_engine import RestartingEngine
from polyvox.errors import CheckpointError, EngineDown
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import Request
from polyvox.server.health import live_response
from polyvox.server.server_process import connect_local, connect_remote
from polyvox.server.settings import Settings
from server.live_server import RunningServer, serving_on

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src"
BENCHMARK = Path(__file__).parents[2] / "benchmarks/startup.py"
TIMEOUT, START_TIMEOUT = 60.0, 300.0


@contextmanager
def starting_server(gate: Path) -> Iterator[tuple[RunningServer, EngineProcess]]:
    """A server whose engine waits, in the stage capture, until the pipe is opened and closed."""
    os.mkfifo(gate)
    with (
        EngineProcess(partial(staged, str(gate)), wait_for_start=False) as process,
        serving_on(connect_remote(process.endpoint), wait=False) as server,
    ):
        eventually(lambda: process.status.stage == "capture" or threading.Event().wait(0.01))
        yield server, process
        if not process.status.running:
            gate.write_text("")


def test_the_server_answers_while_its_engine_starts(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with starting_server(gate) as (server, process), server.client() as client:
        live = client.get("/livez")
        assert (live.status_code, live.text) == (200, "alive\n")
        for path in ("/readyz", "/health"):
            ready = client.get(path)
            assert ready.status_code == 503
            assert ready.json()["status"] == "starting"
            assert (ready.json()["stage"], ready.json()["progress"]) == ("capture", 0.25)
            assert int(ready.headers["retry-after"]) > 0
        assert client.head("/livez").status_code == 200
        spoken = server.speak(client)
        assert (spoken.status_code, spoken.json()["error"]["code"]) == (503, "engine_down")
        assert "capture, 25%" in spoken.json()["error"]["message"]
        assert int(spoken.headers["retry-after"]) > 0
        for path in ("/v1/models", "/v1/voices/livez"):
            assert client.get(path).json()["error"]["code"] == "engine_down"
        page = client.get("/", headers={"accept": "text/html,*/*"})
        assert (page.status_code, page.headers["refresh"]) == (503, "2")
        assert "The engine is starting (capture, 25%)." in page.text
        gate.write_text("")
        eventually(lambda: process.status.running or threading.Event().wait(0.01))
        assert client.get("/v1/models").status_code == 200  # waits for the connection to the engine
        eventually(lambda: client.get("/readyz").status_code == 200)


def test_a_websocket_is_refused_with_503_while_the_engine_starts(tmp_path: Path) -> None:
    with starting_server(tmp_path / "gate") as (server, _), socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(
            b"GET /v1/audio/speech/stream HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        raw.settimeout(TIMEOUT)
        answer = raw.recv(4000)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in answer


def test_a_server_stops_at_once_while_its_engine_starts(tmp_path: Path) -> None:
    with starting_server(tmp_path / "gate") as (server, _):
        since = time.monotonic()
        server.server.should_exit = True
        server.thread.join(TIMEOUT)
        assert time.monotonic() - since < TIMEOUT / 2


def test_liveness_fails_when_the_engine_is_down_for_longer_than_the_timeout() -> None:
    down = EngineStatus(EngineState.RESTARTING, reason="its process died", down_since=100.0)
    assert live_response(down, 300.0, now=400.0).status_code == 200
    failed = live_response(down, 300.0, now=400.1)
    assert failed.status_code == 503
    assert bytes(failed.body).decode() == "The engine has been down for 300 s: its process died\n"
    assert live_response(EngineStatus(EngineState.STARTING), 1.0, now=400.0).status_code == 200


def test_an_engine_that_cannot_be_restarted_fails_liveness_until_it_can(tmp_path: Path) -> None:
    flag = tmp_path / "removed"
    policy = RestartPolicy(initial_delay=0.05, max_delay=0.05)
    with (
        EngineProcess(partial(mortal, str(flag)), EngineProcessConfig(restarts=policy)) as process,
        serving_on(connect_remote(process.endpoint), Settings(engine_down_timeout=0.5)) as server,
        server.client() as client,
    ):
        flag.touch()
        killed = send(process)
        eventually(lambda: "the checkpoint is missing" in client.get("/livez").text or threading.Event().wait(0.05))
        assert client.get("/livez").status_code == 503
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "restarting")
        assert "the checkpoint is missing" in ready.json()["problem"]
        assert int(ready.headers["retry-after"]) > 0
        voice: dict[str, Any] = {"speaker_embedding": [0.1] * ABOUT.hidden_size}
        assert server.speak(client, **voice).status_code == 503
        flag.unlink()
        await_another(process, killed)
        eventually(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/livez").status_code == 200
        metrics = client.get("/metrics").text
        restarts = re.search(r"^polyvox_engine_restarts_total\{.*\} (\S+)", metrics, re.MULTILINE)
        assert restarts is not None
        assert float(restarts[1]) >= 1


class BreakableEngine(FakeEngine):
    """Stops with an error when a test sets `broken`, as the engine does after several failed steps."""

    def submit(self, request, on_ready=None):  # type: ignore[no-untyped-def]
        if self.broken:
            raise EngineDown(self.broken, retry_after=1)
        return super().submit(request, on_ready)


def has_restarted(engine: RestartingEngine, times: int) -> bool:
    return engine.status().num_restarts == times and engine.status().running


def test_an_engine_in_the_server_process_is_restarted() -> None:
    built: list[BreakableEngine] = []

    def build() -> BreakableEngine:
        if len(built) == 2:  # the second restart fails once
            built.append(built[-1])
            raise ValueError("out of memory")
        built.append(BreakableEngine())
        return built[-1]

    with (
        closing(RestartingEngine(build, QUICK_RESTARTS)) as engine,
        serving_on(connect_local(engine, engine.status)) as server,
        server.client() as client,
    ):
        for restarts in (1, 3):
            built[-1].broken = "the engine has stopped: CUDA error"
            eventually(partial(has_restarted, engine, restarts))
            eventually(lambda: client.get("/readyz").status_code == 200)
            stream = engine.submit(Request("hello", max_frames=3))
            assert len(list(stream.chunks(TIMEOUT))) == 3
    for each in built:
        each.close()


def test_a_first_start_in_the_server_process_that_fails_stops_the_server() -> None:
    def build() -> FakeEngine:
        raise CheckpointError("the file is missing")

    with closing(RestartingEngine(build, QUICK_RESTARTS)) as engine:
        eventually(lambda: engine._start_error is not None or threading.Event().wait(0.01))
        with pytest.raises(CheckpointError, match="the file is missing"):
            engine.check()
        with pytest.raises(EngineDown, match="starting"):
            engine.submit(Request("hello"))


def serve(*arguments: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "polyvox", "serve", "--device", "cpu", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def test_a_missing_model_ends_the_command_with_one_sentence_before_anything_starts() -> None:
    ended = serve("--port", "0", "--model", "/nonexistent")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: '/nonexistent' is neither a folder nor a hub id")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_incomplete_model_ends_the_command_with_one_sentence(workers: int, tmp_path: Path) -> None:
    ended = serve("--port", "0", "--workers", str(workers), "--model", str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"error: {tmp_path}/config.json is missing; a checkpoint must have it"
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("workers", [0, 2])
def test_the_command_can_be_stopped_while_its_engine_starts(workers: int) -> None:
    port = _free_port()
    line = [sys.executable, "-m", "polyvox", "serve", "--device", "cpu", "--port", str(port), "--workers", str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: _is_live(port) or threading.Event().wait(0.02))
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert "Traceback" not in log


def test_a_port_in_use_ends_the_command_with_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = serve("--port", str(taken.getsockname()[1]))
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "cannot be bound: Address already in use" in line


def test_the_command_logs_the_stages_of_its_start_and_what_to_do_next() -> None:
    port = _free_port()
    line = [sys.executable, "-m", "polyvox", "serve", "--device", "cpu", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            seen: list[tuple[str, int]] = []
            deadline = time.monotonic() + START_TIMEOUT

            def ready() -> bool:
                try:
                    answer = httpx.get(f"{address}/readyz", timeout=TIMEOUT, trust_env=False)
                except httpx.ConnectError:
                    assert not seen  # it never stops listening
                    return threading.Event().wait(0.02)
                seen.append((answer.json()["status"], answer.status_code))
                return answer.status_code == 200 or threading.Event().wait(0.02)

            while not ready():
                assert time.monotonic() < deadline
        finally:
            process.terminate()
            _, log = process.communicate(timeout=TIMEOUT)
    assert set(seen[:-1]) <= {("starting", 503), ("not ready", 503)}  # none if the engine was the first to start
    assert seen[-1] == ("ready", 200)
    for stage in ("import", "load", "calibrate"):
        assert f"engine starting stage={stage} " in log
    assert re.search(r"engine ready pid=\d+ seconds=\S+ import=\S+ load=\S+ calibrate=\S+\n", log)
    assert re.search(r"Engine ready in \S+ s: import \S+, load \S+, calibrate \S+\n", log)
    assert f"curl {address}/v1/audio/speech" in log


def test_the_startup_benchmark_measures_a_start_and_its_stages(tmp_path: Path) -> None:
    line = [sys.executable, str(BENCHMARK), "--model", "embedded", "--starts", "1", "--max-streams", "2"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "POLYVOX_DEVICE": "cpu"}
    ended = subprocess.run(
        [*line, "--cache-dir", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    report = json.loads(ended.stdout[ended.stdout.index("\n{") :])
    (start,) = report["starts"]
    assert set(start["stages"]) == {"import", "load", "calibrate"}
    assert 0 < start["live"] <= start["ready"]  # equal if the engine was the first to start
    assert start["engine"] > 0


def _is_live(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/livez", timeout=TIMEOUT, trust_env=False).status_code == 200
    except httpx.ConnectError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
