# SPDX-License-Identifier: Apache-2.0
"""Several server processes on one engine without a model, as `polyvox serve --workers` runs them."""

import multiprocessing
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import httpx

from ipc.engine_processes import QUICK_RESTARTS, engine_stats, eventually
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.server.settings import Settings
from polyvox.server.workers import run_workers

TIMEOUT = 60.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class RunningWorkers:
    address: str
    port: int
    parent: SpawnProcess
    engine_process: EngineProcess

    def client(self, **more: Any) -> httpx.Client:
        """A client with a connection of its own; any of the processes may accept it."""
        return httpx.Client(base_url=self.address, timeout=TIMEOUT, trust_env=False, **more)

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children").read_text().split()
        return {int(pid) for pid in children if b"spawn_main" in _read(f"/proc/{pid}/cmdline")}

    def worker_of(self, connection: socket.socket) -> int:
        """The process that accepted a connection."""
        mine = connection.getsockname()[1]
        found: list[int] = []

        def taken() -> bool:
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            ends = [(int(one[1].split(":")[1], 16), int(one[2].split(":")[1], 16), one[9]) for one in lines]
            inodes = [f"socket:[{inode}]" for near, far, inode in ends if (near, far) == (self.port, mine)]
            found.extend(pid for pid in self.workers() if inodes and inodes[0] in _open_files(pid))
            return bool(found)

        eventually(taken)
        return found[0]

    def num_streams(self) -> int:
        """Streams of the engine."""
        return int(engine_stats(self.engine_process.endpoint)["streams"])

    def counted(self, name: str) -> dict[str, float]:
        """A metric by its labels, where it is not 0."""
        with self.client() as client:
            lines = client.get("/metrics").text
        found = re.findall(rf'^{name}\{{\w+="(\w+)"\}} (\S+)', lines, re.MULTILINE)
        return {label: float(n) for label, n in found if float(n)}

    def ready(self) -> bool:
        with self.client() as client:
            return client.get("/readyz").status_code == 200


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # the process has ended
        return b""


def _open_files(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:  # closed meanwhile
            continue
    return found


@contextmanager
def running_workers(factory: Callable[[], Any], settings: Settings) -> Iterator[RunningWorkers]:
    """factory: the engine, built in its own process."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2048) as listener,
        EngineProcess(factory, EngineProcessConfig(restarts=QUICK_RESTARTS)) as engine_process,
    ):
        port = listener.getsockname()[1]
        parent = _SPAWN.Process(target=run_workers, args=([engine_process.endpoint], settings, listener))
        parent.start()
        listener.close()  # only the server's processes listen, as with the command
        server = RunningWorkers(f"http://127.0.0.1:{port}", port, parent, engine_process)
        try:
            eventually(lambda: len(server.workers()) == settings.workers or not parent.is_alive())
            for _ in range(8 * settings.workers):  # so that each of them has probably answered
                eventually(server.ready)
            yield server
        finally:
            if parent.is_alive():
                parent.terminate()
            parent.join(TIMEOUT)
            assert parent.exitcode in (0, -signal.SIGTERM)
