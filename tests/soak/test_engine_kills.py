# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` whose engine process is killed a hundred times in a row: a request is served again after each."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from soak.recorder import ProcessTree

NUM_KILLS = int(os.environ.get("SOAK_KILLS", "100"))
TIMEOUT = 120.0  # seconds in which a request must be served again
SOURCE = Path(__file__).parents[2] / "src"
MAX_GROWTH = 8  # descriptors, and threads, of all processes that are not killed
BODY = {"input": "hello", "response_format": "pcm", "max_new_tokens": 4}


@contextmanager
def running_server(model: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "polyvox", "serve", "--model", str(model), "--device", "cpu", "--port", str(port)]
    quick = ["--workers", "2", "--restart-delay", "0.05", "--max-restart-delay", "0.05", "--max-streams", "2"]
    with (
        log.open("wb") as output,
        subprocess.Popen([*line, *quick], env=os.environ | {"PYTHONPATH": str(SOURCE)}, stderr=output) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT, trust_env=False) as client,
    ):
        try:
            yield process, client
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0


def speak(client: httpx.Client) -> httpx.Response | None:
    """None if nothing listens yet."""
    try:
        return client.post("/v1/audio/speech", json=BODY)
    except httpx.ConnectError:
        return None


def serve_again(client: httpx.Client) -> None:
    """Retries until a request is served. Every other response is 503 with the time of the next try."""
    deadline = time.monotonic() + TIMEOUT
    while (response := speak(client)) is None or response.status_code != 200:
        assert time.monotonic() < deadline, "no request was served again"
        if response is not None:
            assert response.status_code == 503, response.text
            assert int(response.headers["retry-after-ms"]) > 0
            assert client.get("/livez").status_code == 200
        threading.Event().wait(0.05)
    assert len(response.content) > 0


def engine_of(server: subprocess.Popen[bytes]) -> int:
    """The process that has loaded PyTorch."""
    children = Path(f"/proc/{server.pid}/task").glob("*/children")
    for pid in {int(pid) for child in children for pid in child.read_text().split()}:
        if b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes():
            return pid
    raise AssertionError("there is no engine process")


def used(server: subprocess.Popen[bytes], engine: int) -> tuple[int, int]:
    """Descriptors and threads of all processes but the engine's."""
    others = [pid for pid in ProcessTree(server.pid).pids() if pid != engine]
    descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in others)
    return descriptors, sum(len(os.listdir(f"/proc/{pid}/task")) for pid in others)


def test_a_request_is_served_again_after_each_of_a_hundred_kills(checkpoints: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with running_server(checkpoints / "custom_voice", log) as (server, client):
        serve_again(client)
        killed: set[int] = set()
        before = used(server, engine_of(server))
        since = time.monotonic()
        for number in range(1, NUM_KILLS + 1):
            killed.add(pid := engine_of(server))
            os.kill(pid, signal.SIGKILL)
            serve_again(client)
            if number % 10 == 0 or number == NUM_KILLS:
                seconds = (time.monotonic() - since) / number
                sys.stdout.write(f"\n{number} kills: served again after {seconds:.1f} s on average\n")
                sys.stdout.flush()
        assert len(killed) == NUM_KILLS
        metrics = client.get("/metrics").text
        restarts = re.search(r"^polyvox_engine_restarts_total\{.*\} (\S+)", metrics, re.MULTILINE)
        assert restarts is not None
        assert float(restarts[1]) == NUM_KILLS
        after = used(server, engine_of(server))
        assert all(now - then <= MAX_GROWTH for now, then in zip(after, before, strict=True)), (before, after)
    assert "Traceback" not in log.read_text()
