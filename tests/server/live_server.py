# SPDX-License-Identifier: Apache-2.0
"""A real server on loopback, in a thread of the test's process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from ipc.engine_processes import eventually
from polyvox.engine.interface import Engine
from polyvox.server.app import Connect
from polyvox.server.app_state import AppState
from polyvox.server.server_process import Server, connect_local, create_server
from polyvox.server.settings import Settings

if TYPE_CHECKING:
    from polyvox.server.tracing import Tracing

TIMEOUT = 60.0  # seconds
DRAIN_TIMEOUT = 1.0  # seconds for streams that a test has not finished


@dataclass(frozen=True, slots=True)
class RunningServer:
    address: str
    port: int
    server: Server
    thread: threading.Thread

    @property
    def state(self) -> AppState:
        assert self.server.state is not None
        return self.server.state

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=TIMEOUT, trust_env=False, **more)

    def speak(self, client: httpx.Client, text: str = "Hello there.", **fields: Any) -> httpx.Response:
        return client.post("/v1/audio/speech", json={"input": text, "response_format": "pcm", **fields})


def _is_ready(server: Server) -> bool:
    return server.state is not None and server.state.health.ready


def serving(
    engine: Engine, settings: Settings | None = None, wait: bool = True, tracing: "Tracing | None" = None
) -> Any:
    """A server on an engine of this process. wait: until it is ready."""
    return serving_on(connect_local(engine), settings, wait, tracing)


@contextmanager
def serving_on(
    connect: Connect, settings: Settings | None = None, wait: bool = True, tracing: "Tracing | None" = None
) -> Iterator[RunningServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        quick = (settings or Settings()).model_copy(update={"drain_timeout": DRAIN_TIMEOUT})
        server = create_server(connect, quick, tracing=tracing)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        try:
            eventually(lambda: server.started or not thread.is_alive() or threading.Event().wait(0.01))
            if wait:
                eventually(lambda: _is_ready(server) or threading.Event().wait(0.01))
            scheme = "http" if quick.tls_cert is None else "https"
            yield RunningServer(f"{scheme}://127.0.0.1:{port}", port, server, thread)
        finally:
            server.should_exit = True
            thread.join(TIMEOUT)
            assert not thread.is_alive()
