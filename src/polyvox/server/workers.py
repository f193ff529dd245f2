# SPDX-License-Identifier: Apache-2.0
"""Server processes: one in this process, or several that share a socket and an engine."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.engine.interface import AsyncEngine, Engine, InProcessEngine
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.server.app import Connect, create_app
from polyvox.server.app_state import AppState
from polyvox.server.logs import set_up_logs
from polyvox.server.malloc import limit_malloc
from polyvox.server.metrics import MULTIPROCESS_DIR, TimeoutKind
from polyvox.server.middleware.connection import AbortableWebSocketProtocol, TimeoutProtocol
from polyvox.server.settings import Settings
from polyvox.server.synthesis.reader import SEND_BUFFER

log = logging.getLogger(__name__)

_SPAWN = multiprocessing.get_context("spawn")
KILL_TIMEOUT = 5.0  # seconds after drain_timeout, before a process is killed
DRAIN_INTERVAL = 0.05  # seconds between two checks for running utterances
RESTART_INTERVAL = 1.0  # seconds between two starts of a server process
BACKLOG = 2048
# A pong waits behind all audio that a player has not played yet.
PONG_TIMEOUT = 300.0  # seconds
UNREAD_TIMEOUT = PONG_TIMEOUT  # then the kernel ends a connection whose client reads nothing, even of a sent response


def build_engine(settings: Settings) -> InProcessEngine:
    """Loads the model. Only the engine's process imports torch."""
    from polyvox.tts import load

    set_up_logs(settings)
    return load(settings.model, settings.device, settings.dtype, config=settings.engine_config()).engine


def connect_local(engine: Engine) -> Connect:
    """Uses an engine of this process. The caller closes the engine."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[AsyncEngine]:
        yield AsyncLocalEngine(engine)

    return connect


def connect_remote(endpoint: EngineEndpoint) -> Connect:
    """Uses an engine of another process."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[AsyncEngine]:
        engine = AsyncRemoteEngine(endpoint)
        try:
            yield engine
        finally:
            await engine.close()

    return connect


class Server(uvicorn.Server):
    """Drains on the first signal: new requests are rejected, running ones finish within drain_timeout."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: Settings) -> None:
        super().__init__(config)
        self._app, self._settings = app, settings

    @property
    def state(self) -> AppState:
        state = self._app.state.polyvox
        assert isinstance(state, AppState)
        return state

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
        for listener in sockets or []:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_TIMEOUT * 1000))
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets utterances of WebSockets finish too, which uvicorn would close at once."""
        synthesis = self.state.synthesis
        log.info("server stopping", extra={"pid": os.getpid(), "active": len(synthesis.active)})
        for server in self.servers:
            server.close()
        deadline = time.monotonic() + self._settings.drain_timeout
        while time.monotonic() < deadline and any(not utterance.awaiting_text for utterance in synthesis.active):
            await asyncio.sleep(DRAIN_INTERVAL)
        await asyncio.sleep(DRAIN_INTERVAL)  # for the messages after the last audio
        self.config.timeout_graceful_shutdown = max(1, round(deadline - time.monotonic()))
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if (state := getattr(self._app.state, "polyvox", None)) is not None:
            state.synthesis.draining = True
        super().handle_exit(sig, frame)


def create_server(connect: Connect, settings: Settings, records: Path | None = None) -> Server:
    """A server that is not started yet. records: a folder for request records that all server processes share."""
    app = create_app(connect, settings, records)

    def count_timeout(kind: TimeoutKind) -> None:
        if (state := getattr(app.state, "polyvox", None)) is not None:  # it is set at start-up
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
    return Server(config, app, settings)


def run_server(connect: Connect, settings: Settings, listener: socket.socket, records: Path | None = None) -> None:
    """Serves in this process until a signal stops it."""
    log.info("server process started", extra={"pid": os.getpid()})
    if settings.workers:  # otherwise the engine is in this process
        limit_malloc()
    server = create_server(connect, settings, records)
    gc.freeze()  # objects of the start are excluded from garbage collection, which stalls all streams
    server.run(sockets=[listener])


def run_workers(endpoint: EngineEndpoint, settings: Settings, listener: socket.socket) -> None:
    """Serves with several processes until a signal stops them. A process that dies is restarted."""
    with tempfile.TemporaryDirectory(prefix=f"polyvox-{os.getpid()}-server-") as folder, _stop_signal() as stop:
        records, metrics = Path(folder) / "records", Path(folder) / "metrics"
        records.mkdir()
        metrics.mkdir()
        os.environ[MULTIPROCESS_DIR] = str(metrics)
        processes: list[SpawnProcess] = []
        try:
            arguments = (endpoint, settings, listener, records)
            processes = [_start(arguments) for _ in range(settings.workers)]
            while stop not in wait([stop, *(process.sentinel for process in processes)]):
                for index, process in enumerate(processes):
                    if process.is_alive():
                        continue
                    log.error("server process restarted", extra={"exit_code": process.exitcode})
                    _clean_up(process)
                    if wait([stop], RESTART_INTERVAL):
                        break
                    processes[index] = _start(arguments)
        finally:
            del os.environ[MULTIPROCESS_DIR]
            _stop(processes, settings.drain_timeout + KILL_TIMEOUT)


def _start(arguments: tuple[EngineEndpoint, Settings, socket.socket, Path]) -> SpawnProcess:
    process = _SPAWN.Process(target=_worker_main, args=arguments, name="polyvox-server")
    process.start()
    return process


def _worker_main(endpoint: EngineEndpoint, settings: Settings, listener: socket.socket, records: Path) -> None:
    set_up_logs(settings)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    run_server(connect_remote(endpoint), settings, listener, records)


def _exit_with_parent() -> None:
    """Stops a server process whose parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _clean_up(process: SpawnProcess) -> None:
    """Removes the gauges of a dead process from the metrics."""
    from prometheus_client.multiprocess import mark_process_dead

    if process.pid is not None:
        mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
    process.join()


def _stop(processes: list[SpawnProcess], timeout: float) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            log.warning("server process killed", extra={"pid": process.pid, "timeout": timeout})
            process.kill()
            process.join()


@contextmanager
def _stop_signal() -> Iterator[socket.socket]:
    """A socket that becomes readable on SIGTERM or SIGINT."""
    stop, wakeup = socket.socketpair()
    wakeup.setblocking(False)

    def on_signal(*_: object) -> None:
        with suppress(OSError):
            wakeup.send(b"!")

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        stop.close()
        wakeup.close()
