# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of CPU replicas in a process, and clients that measure streams from it."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx

from conformance.client_runs import ENVIRONMENTS, ROOT

PYTHON = ENVIRONMENTS / "ray/bin/python"
START_TIMEOUT = 300.0  # seconds; Ray starts ten processes, and replicas import PyTorch
REPLICA = "ray::ServeReplica:polyvox:polyvox"  # title of a replica's process
SAMPLE_RATE, BYTES_PER_SAMPLE = 24_000, 2
TEXT = "The quick brown fox jumps over the lazy dog, and then it runs far away into the green hills."


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """One streamed request, as its client saw it."""

    status: int
    completed: bool
    num_bytes: int
    first_byte: float  # seconds from the request
    num_chunks: int
    underruns: int  # moments at which a player that began with the first byte had no audio
    from_proxy: bool  # whether a proxy of Ray Serve made the response: it has no request id of Polyvox

    @property
    def seconds(self) -> float:
        return self.num_bytes / BYTES_PER_SAMPLE / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class RayCluster:
    url: str
    voices: Path
    log: Path
    _stdin: IO[str]
    _stdout: IO[str]

    def deploy(self, **options: Any) -> None:
        """Deploys and waits until all replicas run."""
        self._command({"deploy": options})

    def num_running(self) -> int:
        replicas = self._command({"status": True})["replicas"]
        return int(replicas.get("RUNNING", 0))

    def wait_for_replicas(self, count: int) -> None:
        """Waits until exactly this many replicas run and no other state is left."""

        deadline = time.monotonic() + START_TIMEOUT
        while True:
            replicas = {key: value for key, value in self._command({"status": True})["replicas"].items() if value}
            if replicas == {"RUNNING": count}:
                return
            assert time.monotonic() < deadline, f"{replicas}:\n{self.log.read_text()[-5000:]}"
            threading.Event().wait(0.2)

    def replica_pids(self) -> list[int]:
        return self.find_processes(REPLICA)

    def find_processes(self, title: str) -> list[int]:
        """Processes of this cluster whose title begins so."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):  # it has ended
                    command = (folder / "cmdline").read_bytes().decode(errors="replace")
                    variables = (folder / "environ").read_bytes().split(b"\0")
                    if command.startswith(title) and f"POLYVOX_VOICES_DIR={self.voices}".encode() in variables:
                        found.append(int(folder.name))
        return sorted(found)

    def stream(self, text: str = TEXT) -> StreamOutcome:
        return stream(self.url, text)

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        self._stdin.write(json.dumps(command) + "\n")
        self._stdin.flush()
        reply: list[str] = []
        thread = threading.Thread(target=lambda: reply.append(self._stdout.readline()), daemon=True)
        thread.start()
        thread.join(START_TIMEOUT)
        assert any(reply), f"no reply to {command}:\n{self.log.read_text()[-5000:]}"
        answer: dict[str, Any] = json.loads(reply[0])
        return answer


@contextmanager
def run_cluster(folder: Path) -> Iterator[RayCluster]:
    """Starts a cluster without a deployment. All its processes end with it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT))),
        "POLYVOX_VOICES_DIR": str(folder / "voices"),
        "POLYVOX_LOG_FORMAT": "json",
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": "/tmp",  # sockets have short paths
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    }
    log = folder / "ray.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [str(PYTHON), str(Path(__file__).parent / "clients/ray_cluster.py"), str(port)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield RayCluster(f"http://127.0.0.1:{port}", folder / "voices", log, process.stdin, process.stdout)
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def stream(url: str, text: str) -> StreamOutcome:
    """Reads one streamed response as a player would."""
    started_at = time.monotonic()
    first = 0.0
    status = underruns = num_bytes = num_chunks = 0
    completed = from_proxy = False
    body = {"input": text, "response_format": "pcm"}
    with (
        httpx.Client(base_url=url, timeout=120, trust_env=False) as client,
        suppress(httpx.HTTPError),
        client.stream("POST", "/v1/audio/speech", json=body) as response,
    ):
        status, from_proxy = response.status_code, "x-request-id" not in response.headers
        for data in response.iter_raw():
            now = time.monotonic()
            first = first or now
            underruns += now - first > num_bytes / BYTES_PER_SAMPLE / SAMPLE_RATE
            num_bytes += len(data)
            num_chunks += 1
        completed = status == 200
    return StreamOutcome(status, completed, num_bytes, first - started_at, num_chunks, underruns, from_proxy)
