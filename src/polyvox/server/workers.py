"""Server processes: one in this process, or several on one socket, all of them on one engine."""

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

import uvicorn

from polyvox.engine.interface import Engine, InProcessEngine
from polyvox.ipc.blocking import RemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.server.app import create_app
from polyvox.server.app_state import AppState
from polyvox.server.logs import set_up_logs
from polyvox.server.middleware.connection import Connection
from polyvox.server.settings import Settings

log = logging.getLogger(__name__)

_SPAWN = multiprocessing.get_context("spawn")
SHARED_COUNTS = "PROMETHEUS_MULTIPROC_DIR"
GRACE_SECONDS = 5.0  # after the time to drain, before a process is killed
LOOK_SECONDS = 0.05  # between two looks at what is still being said
AGAIN_SECONDS = 1.0  # between two starts of a server process that died
BACKLOG = 2048
# For the answer to a ping, which waits behind all the sound that a player has not played yet.
PONG_SECONDS = 300.0


def build_engine(settings: Settings) -> InProcessEngine:
    """What the engine's process begins with; torch is in that process alone."""
    from polyvox.tts import load

    set_up_logs(settings)
    return load(settings.model, settings.device, settings.dtype, config=settings.engine_config()).engine


class Server(uvicorn.Server):
    """Tells at the first signal that it takes nothing new, then lets what is under way come to its end."""

    def __init__(self, config: uvicorn.Config, desk: AppState) -> None:
        super().__init__(config)
        self.desk = desk

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()  # else they are raised again, and nothing after this is closed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """WebSockets too come to the end of what they say; left alone they would be cut at once."""
        log.info("stopping", extra={"pid": os.getpid(), "open": len(self.desk.speaker.open)})
        for server in self.servers:
            server.close()
        until = time.monotonic() + self.desk.settings.drain_seconds
        while time.monotonic() < until and any(not said.wants_text for said in self.desk.speaker.open):
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)  # for the words after the last sound
        self.config.timeout_graceful_shutdown = max(1, round(until - time.monotonic()))
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.desk.speaker.draining = True
        super().handle_exit(sig, frame)


def server_for(engine: Engine, settings: Settings, shared: Path | None = None) -> Server:
    """A server that is not running yet; shared: a folder that all server processes of this engine see."""
    app = create_app(engine, settings, shared)
    config = uvicorn.Config(
        app,
        log_config=None,
        # Below this it tells the addresses of sockets and, for debugging, their headers: keys may be in both.
        log_level=max(logging.WARNING, logging.getLevelNamesMapping()[settings.log_level.upper()]),
        access_log=False,
        backlog=BACKLOG,
        root_path=settings.root_path,
        http=partial(Connection, head_seconds=settings.body_seconds),  # type: ignore[arg-type]
        ws_ping_timeout=PONG_SECONDS,
        timeout_keep_alive=max(1, round(settings.keep_alive_seconds)),
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=settings.max_body,
        ws_per_message_deflate=False,  # sound does not shrink, and what does may grow without bounds
    )
    return Server(config, app.state.desk)


def serve_here(engine: Engine, settings: Settings, listener: socket.socket, shared: Path | None = None) -> None:
    """Serves until a signal ends it, in this process."""
    log.info("a server process has started", extra={"pid": os.getpid()})
    server = server_for(engine, settings, shared)
    gc.freeze()  # what a start leaves behind is not searched again, while all streams wait
    server.run(sockets=[listener])


def serve_by_workers(door: EngineEndpoint, settings: Settings, listener: socket.socket) -> None:
    """Serves by several processes until a signal ends it; one that dies is started again."""
    with tempfile.TemporaryDirectory(prefix=f"polyvox-{os.getpid()}-server-") as folder, _signals() as stop:
        shared, counts = Path(folder), Path(folder) / "counts"
        (shared / "outcomes").mkdir()
        counts.mkdir()
        os.environ[SHARED_COUNTS] = str(counts)
        processes: list[SpawnProcess] = []
        try:
            arguments = (door, settings, listener, shared)
            processes = [_start(arguments) for _ in range(settings.workers)]
            while stop not in wait([stop, *(process.sentinel for process in processes)]):
                for index, process in enumerate(processes):
                    if process.is_alive():
                        continue
                    log.error("a server process died and is started again", extra={"exit": process.exitcode})
                    _forget(process)
                    if wait([stop], AGAIN_SECONDS):
                        break
                    processes[index] = _start(arguments)
        finally:
            del os.environ[SHARED_COUNTS]
            _end(processes, settings.drain_seconds + GRACE_SECONDS)


def _start(arguments: tuple[EngineEndpoint, Settings, socket.socket, Path]) -> SpawnProcess:
    process = _SPAWN.Process(target=_work, args=arguments, name="polyvox-server")
    process.start()
    return process


def _work(door: EngineEndpoint, settings: Settings, listener: socket.socket, shared: Path) -> None:
    """The life of one server process."""
    set_up_logs(settings)
    threading.Thread(target=_follow_parent, daemon=True).start()
    engine = RemoteEngine(door)
    try:
        serve_here(engine, settings, listener, shared)
    finally:
        engine.close()


def _follow_parent() -> None:
    """A server process whose parent was killed ends too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _forget(process: SpawnProcess) -> None:
    """Its share of what stands now, such as open streams, is no longer counted."""
    from prometheus_client.multiprocess import mark_process_dead

    if process.pid is not None:
        mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
    process.join()


def _end(processes: list[SpawnProcess], patience: float) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    until = time.monotonic() + patience
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            log.warning("a server process did not end within %g s and is killed", patience)
            process.kill()
            process.join()


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that can be read once the process was asked to stop."""
    stop, ring = socket.socketpair()
    ring.setblocking(False)

    def asked(*_: object) -> None:
        with suppress(OSError):
            ring.send(b"!")

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
        ring.close()
