"""A real server on loopback, in a thread of the test's process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from ipc.engine_processes import eventually
from polyvox.engine.interface import Engine
from polyvox.server.app_state import AppState
from polyvox.server.settings import Settings
from polyvox.server.workers import Server, server_for

TIMEOUT = 60.0
DRAIN = 1.0  # seconds that a stream which a test has left open may hold it up


@dataclass(frozen=True, slots=True)
class Serving:
    address: str
    port: int
    server: Server
    thread: threading.Thread

    @property
    def desk(self) -> AppState:
        return self.server.desk

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=TIMEOUT, trust_env=False, **more)

    def speak(self, client: httpx.Client, text: str = "Hello there.", **fields: Any) -> httpx.Response:
        return client.post("/v1/audio/speech", json={"input": text, "response_format": "pcm", **fields})


@contextmanager
def serving(engine: Engine, settings: Settings | None = None, wait: bool = True) -> Iterator[Serving]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        quick = (settings or Settings()).model_copy(update={"drain_seconds": DRAIN})
        server = server_for(engine, quick)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        try:
            eventually(lambda: server.started or not thread.is_alive() or threading.Event().wait(0.01))
            eventually(lambda: not wait or server.desk.health.ready or threading.Event().wait(0.01))
            yield Serving(f"http://127.0.0.1:{port}", port, server, thread)
        finally:
            server.should_exit = True
            thread.join(TIMEOUT)
            assert not thread.is_alive()
