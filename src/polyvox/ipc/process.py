# SPDX-License-Identifier: Apache-2.0
"""The engine's process: the engine's own thread, one I/O loop for all servers, one pool that prepares requests."""

import asyncio
import faulthandler
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from polyvox import progress
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_lock import LOCK_RETRY, LOCK_TIMEOUT
from polyvox.engine.interface import InProcessEngine
from polyvox.engine.key_counts import KeyCounts
from polyvox.engine.lifecycle import RestartPolicy, start_error
from polyvox.engine.preparation import PreparationPool
from polyvox.garbage_collection import FullCollections
from polyvox.ipc.endpoint import accept, socket_path
from polyvox.ipc.status_file import LoadFile
from polyvox.ipc.worker_connection import WorkerConnection
from polyvox.models.info import ModelInfo
from polyvox.progress import Stage

log = logging.getLogger(__name__)

T = TypeVar("T")

# The engine's thread releases the GIL at each call to the device, and must get it back soon.
SWITCH_INTERVAL = 1e-4
DRAIN_SIGNAL = signal.SIGUSR2  # finish the running streams, accept no new ones, then restart
HEARTBEATS = 10  # in the time after which a process without any is killed
ACCEPT_RETRY_SECONDS = 0.1  # after an error such as too many open files
LOAD_INTERVAL = 0.02  # seconds between two reports of the load while there are streams
IDLE_LOAD_INTERVAL = 0.1
MAX_LOAD_SHARE = 0.005  # of the loop's time that reports may use: those of a full engine visit all utterances
DRAINED_SECONDS = 1.0  # without streams: the next sentence of an utterance may be on its way


@dataclass(frozen=True, slots=True)
class EngineProcessConfig:
    """Limits of the process and of its supervisor. Times are in seconds."""

    ring_samples: int = 1 << 22  # of each server: 8 MiB, three minutes of speech
    worker_timeout: float = 10.0  # a server that consumes nothing for this long is disconnected
    shutdown_timeout: float = 1.5  # then the process is killed
    start_timeout: float = 600.0
    hang_timeout: float = 30.0  # of one step: a device that stalls for some seconds recovers by itself
    drain_timeout: float = 30.0  # of streams that run when the process drains
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Sent to the supervisor while the engine starts."""

    stage: Stage
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """Sent to the supervisor when the engine has started: what was started."""

    sample_rate: int
    info: ModelInfo
    stats: dict[str, float]


@dataclass(frozen=True, slots=True)
class Drained:
    """Sent to the supervisor at the end of a drain."""


def run_engine_process(
    factory: Callable[[], InProcessEngine], folder: Path, config: EngineProcessConfig, supervisor: Connection
) -> None:
    """Builds the engine and serves it until the supervisor ends the process.

    Sends the supervisor the progress of the start, then a StartedEngine or the error; then heartbeats, but none while
    the engine does not answer or its step takes longer than a heartbeat.
    """

    def send_progress(stage: Stage, done: int, total: int) -> None:
        with suppress(OSError):  # the supervisor has ended, and _watch_supervisor handles it
            supervisor.send(StartProgress(stage, done, total))

    sys.setswitchinterval(SWITCH_INTERVAL)
    # A terminal or a service manager sends SIGINT and SIGTERM to all processes: the supervisor decides.
    for number in (signal.SIGINT, signal.SIGTERM, DRAIN_SIGNAL):
        signal.signal(number, signal.SIG_IGN)
    stop, stopping = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1)  # the supervisor asks for the stacks of all threads
            socket_path(folder).unlink(missing_ok=True)  # of the process before this one
            listener.bind(str(socket_path(folder)))  # before the folder may be removed
            arguments = (supervisor, stopping, folder, config.shutdown_timeout)
            threading.Thread(target=_watch_supervisor, args=arguments, daemon=True).start()
            gc.disable()  # a start allocates much and frees little: without collections its imports take 15 % less
            with progress.listening(send_progress):
                engine = factory()
            gc.collect()
            gc.enable()
            collections = FullCollections()
            collections.start()
            load_file = LoadFile(folder)
            load_file.write(engine.current_load())
            listener.listen()
            started = StartedEngine(engine.sample_rate, engine.info(), engine.stats())
            with suppress(OSError):  # the supervisor has ended, and _watch_supervisor handles it
                supervisor.send(started)
        except Exception as error:
            with suppress(OSError):  # the supervisor has ended
                supervisor.send(start_error(error))
            os._exit(1)  # as below
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(engine, listener, stop, supervisor, config, load_file, collections))
    engine.close()
    os._exit(0)  # all is closed; a regular exit of a process with torch takes most of the shutdown timeout


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: its wake-ups take less CPU time, of which the engine's thread has none to spare."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(
    engine: InProcessEngine,
    listener: socket.socket,
    stop: socket.socket,
    supervisor: Connection,
    config: EngineProcessConfig,
    load_file: LoadFile,
    collections: FullCollections,
) -> None:
    """Serves all servers in this event loop until `stop` becomes readable. DRAIN_SIGNAL starts a drain."""
    stopped, draining = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(stop, stopped.set)
    loop.add_signal_handler(DRAIN_SIGNAL, draining.set)
    connections: set[WorkerConnection] = set()
    pool = PreparationPool()
    tasks = [
        asyncio.create_task(_send_heartbeats(engine, supervisor, config.hang_timeout / HEARTBEATS)),
        asyncio.create_task(_accept_servers(engine, listener, pool, connections, config)),
        asyncio.create_task(_report_load(engine, load_file, draining, collections)),
    ]
    drain = asyncio.create_task(_drain(engine, draining, supervisor, config.drain_timeout))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():  # otherwise no server could connect any more; the supervisor restarts the process
            log.critical("engine process failed", exc_info=task.exception())
            os._exit(1)
        task.cancel()
    drain.cancel()
    for connection in list(connections):
        connection.close()
    pool.close()
    await asyncio.sleep(0)  # the connections cancel their streams


async def _accept_servers(
    engine: InProcessEngine,
    listener: socket.socket,
    pool: PreparationPool,
    connections: set[WorkerConnection],
    config: EngineProcessConfig,
) -> None:
    loop, keys = asyncio.get_running_loop(), KeyCounts()
    listener.setblocking(False)
    while True:
        try:
            connected, _ = await loop.sock_accept(listener)
            try:
                ring = accept(connected, config.ring_samples)
            except BaseException:
                connected.close()
                raise
        except OSError as error:
            log.warning("worker rejected error=%s", error)
            await asyncio.sleep(ACCEPT_RETRY_SECONDS)
            continue
        connection = WorkerConnection(engine, pool, keys, ring, config.worker_timeout, connections.discard)
        connections.add(connection)
        await connection.frames.start(connected)
        log.info("worker connected workers=%d", len(connections))


async def _send_heartbeats(engine: InProcessEngine, supervisor: Connection, interval: float) -> None:
    while True:
        # A stream that waits for text or for its reader is in no step, so it never looks like a hang.
        stats = await _call_locked(engine, engine.stats)
        if stats.get("broken"):
            log.critical("engine broken")
            os._exit(1)
        if stats.get("stuck_seconds", 0.0) <= interval:
            with suppress(OSError):  # the supervisor has ended, and _watch_supervisor handles it
                supervisor.send(None)
        await asyncio.sleep(interval)


async def _call_locked(engine: InProcessEngine, call: Callable[[], T]) -> T:
    """Calls the engine once its lock is free; other tasks of the event loop run meanwhile."""
    lock_timeout = LOCK_TIMEOUT
    while True:
        with engine.try_lock(lock_timeout) as locked:
            if locked:
                return call()
        lock_timeout = 0.0
        await asyncio.sleep(LOCK_RETRY)


async def _report_load(
    engine: InProcessEngine, file: LoadFile, draining: asyncio.Event, collections: FullCollections
) -> None:
    """Writes the load for all servers, which choose a replica by it; collects garbage if it is due."""

    def timed_load() -> tuple[EngineLoad, float]:
        """The load, and the CPU time in seconds that it has taken."""
        started_at = time.thread_time()
        return engine.current_load(), time.thread_time() - started_at

    while True:
        load, seconds = await _call_locked(engine, timed_load)
        started_at = time.thread_time()
        file.write(replace(load, draining=draining.is_set()))
        collections.collect_if_due(load.num_streams)
        seconds += time.thread_time() - started_at
        interval = LOAD_INTERVAL if load.num_streams else IDLE_LOAD_INTERVAL
        await asyncio.sleep(max(interval, seconds / MAX_LOAD_SHARE))


async def _drain(engine: InProcessEngine, draining: asyncio.Event, supervisor: Connection, timeout: float) -> None:
    """After the signal to drain, waits for the running streams. Then the supervisor restarts the process."""
    await draining.wait()
    load: EngineLoad | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            load = await _call_locked(engine, engine.current_load)
            log.info("engine draining", extra={"streams": load.num_streams, "timeout": timeout})
            idle_since = time.monotonic()
            while time.monotonic() < idle_since + DRAINED_SECONDS:
                await asyncio.sleep(LOAD_INTERVAL)
                load = await _call_locked(engine, engine.current_load)
                if load.num_streams:
                    idle_since = time.monotonic()
    log.info("engine drained", extra={"streams": load.num_streams if load else "unknown"})
    with suppress(OSError):  # the supervisor has ended, and _watch_supervisor handles it
        supervisor.send(Drained())


def _watch_supervisor(supervisor: Connection, stopping: socket.socket, folder: Path, timeout: float) -> None:
    """Ends the process with its supervisor. If that ended without a message, the folder is removed here."""
    try:
        supervisor.recv()
    except (EOFError, OSError) as error:
        log.warning("supervisor ended error=%r", error)
        shutil.rmtree(folder, ignore_errors=True)
    stopping.close()
    time.sleep(timeout)
    os._exit(1)  # the shutdown takes too long
