# SPDX-License-Identifier: Apache-2.0
"""One server process: uvicorn with graceful shutdown, its timeouts and the connection to its engine."""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.engine.engine_status import EngineStatus
from polyvox.engine.interface import AsyncEngine, Engine
from polyvox.engine.replica_set import ReplicaSet
from polyvox.errors import PolyvoxError
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.server.app import Connect, create_app
from polyvox.server.app_state import AppState
from polyvox.server.listeners import duplicate
from polyvox.server.malloc import limit_malloc
from polyvox.server.metrics import TimeoutKind
from polyvox.server.middleware.connection import AbortableWebSocketProtocol, TimeoutProtocol, reset
from polyvox.server.settings import BACKLOG, Settings
from polyvox.server.startup import Startup
from polyvox.server.synthesis.reader import SEND_BUFFER
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.tls import ServerCertificate
from polyvox.server.wyoming.listener import WyomingListener

if TYPE_CHECKING:
    from polyvox.server.tracing import Tracing

log = logging.getLogger(__name__)

RESET_DELAY = 1.0  # seconds after the drain, before connections that do not close are reset
CLOSE_TIMEOUT = 3  # seconds after the drain for all requests to end
DRAIN_INTERVAL = 0.05  # seconds between two checks for running utterances
Waitable = Connection | socket.socket  # becomes readable when something has happened
# A pong waits behind all audio that a player has not played yet.
PONG_TIMEOUT = 300.0  # seconds
UNREAD_TIMEOUT = PONG_TIMEOUT  # then the kernel ends a connection whose client reads nothing, even of a sent response


def connect_local(engine: Engine, status: Callable[[], EngineStatus] | None = None) -> Connect:
    """Uses an engine of this process. The caller closes the engine. status: see AsyncLocalEngine."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[AsyncEngine]:
        yield AsyncLocalEngine(engine, status=status)

    return connect


def connect_remote(*endpoints: EngineEndpoint, num_servers: int = 1) -> Connect:
    """Uses an engine of another process, or several as replicas. num_servers: processes that use the same replicas."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[AsyncEngine]:
        engines = [AsyncRemoteEngine(endpoint) for endpoint in endpoints]
        engine = engines[0] if len(engines) == 1 else ReplicaSet(engines, num_servers)
        try:
            yield engine
        finally:
            await engine.close()

    return connect


class Server(uvicorn.Server):
    """Drains on the first signal: new requests are rejected, running ones finish within drain_timeout.

    engine_failed: becomes readable if the engine's first start fails, which stops the server. wyoming: the socket of
    the Wyoming protocol.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        settings: Settings,
        engine_failed: Waitable | None,
        wyoming: socket.socket | None,
        certificate: ServerCertificate | None,
    ) -> None:
        super().__init__(config)
        self._app, self._settings, self._engine_failed = app, settings, engine_failed
        self.set_up_error: Exception | None = None
        self._listeners: list[socket.socket] | None = None  # with their duplicates
        self._wyoming_socket = wyoming
        self._wyoming: WyomingListener | None = None
        self._certificate = certificate
        self._certificate_watch: asyncio.Task[None] | None = None

    @property
    def state(self) -> AppState | None:
        """None until the engine has started."""
        startup: Startup | None = getattr(self._app.state, "startup", None)
        return None if startup is None else startup.state

    def fail(self, error: Exception) -> None:
        """Stops a server whose application cannot be set up."""
        self.set_up_error, self.should_exit = error, True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signals again when the server has stopped, before the caller can clean up."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Sets SEND_BUFFER and UNREAD_TIMEOUT, which connections inherit from their listener."""
        for listener in [*(sockets or []), *filter(None, [self._wyoming_socket])]:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_TIMEOUT * 1000))
        if self._certificate is not None:
            self.config.ssl = self._certificate.context
        if sockets is not None:
            self._listeners = [each for listener in sockets for each in duplicate(listener)]
        await super().startup(self._listeners)
        if self._wyoming_socket is not None and self.started:
            self._wyoming = WyomingListener(self._app.state.startup)
            await self._wyoming.start(self._wyoming_socket)
        if self._certificate is not None:
            self._certificate_watch = asyncio.create_task(self._certificate.watch())
        if self._engine_failed is not None:
            asyncio.get_running_loop().add_reader(self._engine_failed.fileno(), self._stop)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Drains, then closes all connections.

        During the drain the server still accepts connections and rejects their requests: with several server processes
        a closed listener of one of them would leave clients in its backlog. Utterances of WebSockets finish too, which
        uvicorn would close at once.
        """
        if (state := self.state) is not None:
            await self._drain(state.synthesis)
        if self._wyoming is not None:
            await self._wyoming.close()
        if self._certificate_watch is not None:
            self._certificate_watch.cancel()
        if self._engine_failed is not None:
            asyncio.get_running_loop().remove_reader(self._engine_failed.fileno())
        # uvicorn would cancel the tasks of clients that do not read, and log a traceback for each.
        asyncio.get_running_loop().call_later(RESET_DELAY, self._reset_connections)
        self.config.timeout_graceful_shutdown = CLOSE_TIMEOUT
        await super().shutdown(self._listeners)

    async def _drain(self, synthesis: SynthesisService) -> None:
        synthesis.draining = True
        log.info("server stopping", extra={"pid": os.getpid(), "active": len(synthesis.active)})
        deadline = time.monotonic() + self._settings.drain_timeout
        while self._http_requests() or any(not utterance.awaiting_text for utterance in synthesis.active):
            if time.monotonic() >= deadline or self.force_exit:
                synthesis.drain_expired = True
                for connection in self._http_requests():
                    if connection.scope["http_version"] == "1.0":  # where the end of a connection is the end of a body
                        reset(connection.transport)
                    else:
                        connection.transport.close()
                break
            await asyncio.sleep(DRAIN_INTERVAL)
        await asyncio.sleep(DRAIN_INTERVAL)  # for the messages after the last audio

    def _http_requests(self) -> list[TimeoutProtocol]:
        """Connections with an HTTP request that has no complete response."""
        connections = self.server_state.connections
        return [each for each in connections if isinstance(each, TimeoutProtocol) and each.busy]

    def _reset_connections(self) -> None:
        for connection in list(self.server_state.connections):
            assert isinstance(connection, TimeoutProtocol | AbortableWebSocketProtocol)
            reset(connection.transport)

    def _stop(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if (state := self.state) is not None:
            state.synthesis.draining = True
        super().handle_exit(sig, frame)


def create_server(
    connect: Connect,
    settings: Settings,
    shared_dir: Path | None = None,
    engine_failed: Waitable | None = None,
    on_set_up: Callable[[Exception | None], None] = lambda _: None,
    wyoming: socket.socket | None = None,
    tracing: "Tracing | None" = None,
) -> Server:
    """A server that is not started yet. shared_dir, on_set_up, tracing: see create_app."""

    def stop_on_error(error: Exception | None) -> None:
        if error is not None:
            server.fail(error)
        on_set_up(error)

    app = create_app(connect, settings, shared_dir, stop_on_error, tracing)

    def count_timeout(kind: TimeoutKind) -> None:
        if (state := server.state) is not None:
            state.metrics.count_timeout(kind)

    config = uvicorn.Config(
        app,
        log_config=None,
        # At lower levels uvicorn logs URLs and headers of WebSockets, which may contain keys.
        log_level=max(logging.WARNING, logging.getLevelNamesMapping()[settings.log_level.upper()]),
        access_log=False,
        backlog=BACKLOG,
        root_path=settings.root_path,
        proxy_headers=False,  # see TrustedProxies
        loop="auto",  # uvloop where it is installed
        http=partial(  # type: ignore[arg-type]
            TimeoutProtocol,
            header_timeout=settings.body_timeout,
            reader_timeout=settings.reader_timeout,
            on_timeout=count_timeout,
        ),
        ws_ping_timeout=PONG_TIMEOUT,
        timeout_keep_alive=max(1, round(settings.keep_alive_timeout)),
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout)),
        server_header=False,
        ws=AbortableWebSocketProtocol,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # audio does not compress, and messages could expand without bounds
    )
    certificate = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        certificate = ServerCertificate(settings.tls_cert, settings.tls_key)
    server = Server(config, app, settings, engine_failed, wyoming, certificate)
    return server


def run_server(
    connect: Connect,
    settings: Settings,
    listener: socket.socket,
    shared_dir: Path | None = None,
    engine_failed: Waitable | None = None,
    on_set_up: Callable[[Exception | None], None] = lambda _: None,
    wyoming: socket.socket | None = None,
) -> None:
    """Serves in this process until a signal, or a first start of the engine that fails, stops it.

    Raises PolyvoxError if the application cannot be set up.
    """
    log.info("server process started", extra={"pid": os.getpid()})
    if settings.workers:  # otherwise the engine is in this process
        limit_malloc()
    server = create_server(connect, settings, shared_dir, engine_failed, on_set_up, wyoming)
    server.run(sockets=[listener])
    if (error := server.set_up_error) is not None:
        raise PolyvoxError(f"The server cannot be set up: {str(error) or repr(error)}") from error
