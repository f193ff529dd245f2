# SPDX-License-Identifier: Apache-2.0
"""Several server processes that share an address and an engine; those that die are restarted."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from polyvox.errors import PolyvoxError
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.server.app import SHARED_FOLDERS
from polyvox.server.listeners import Listeners
from polyvox.server.logs import set_up_logs
from polyvox.server.metrics import MULTIPROCESS_DIR
from polyvox.server.server_process import Waitable, connect_remote, run_server
from polyvox.server.settings import Settings
from polyvox.server.shared_folder import shared_folder

log = logging.getLogger(__name__)

_SPAWN = multiprocessing.get_context("spawn")
KILL_TIMEOUT = 8.0  # seconds after drain_timeout, before a process is killed
RESTART_INTERVAL = 1.0  # seconds between two starts of a server process
MAX_REPORT_CHARS = 500  # of an error that a server process reports; writes to a pipe are atomic up to 4,096 bytes
METRICS = "metrics"  # the folder of metrics in that of all server processes


def run_workers(
    endpoints: Sequence[EngineEndpoint],
    settings: Settings,
    listener: socket.socket,
    engine_failed: Waitable | None = None,
    wyoming: socket.socket | None = None,
) -> None:
    """Serves with several processes until a signal, or a first start of the engine that fails, stops them.

    A process that dies is restarted. Raises PolyvoxError if a process cannot be set up before any other one was: a
    restart would fail too.
    """
    reports, reporter = _SPAWN.Pipe(duplex=False)
    with (
        shared_folder() as folder,
        _stop_signal() as stop,
        reports,
        reporter,
    ):
        for name in (*SHARED_FOLDERS, METRICS):
            (folder / name).mkdir()
        os.environ[MULTIPROCESS_DIR] = str(folder / METRICS)
        processes: list[SpawnProcess] = []
        listeners = Listeners(listener, settings.workers)

        def start(index: int) -> SpawnProcess:
            arguments = (endpoints, settings, listeners[index], folder, reporter, wyoming)
            process = _SPAWN.Process(target=_worker_main, args=arguments, name="polyvox-server")
            process.start()
            return process

        try:
            for index in range(settings.workers):
                processes.append(start(index))
            ends: list[Waitable] = [stop] if engine_failed is None else [stop, engine_failed]
            is_set_up = False
            while not set(ends) & set(wait([*ends, reports, *(process.sentinel for process in processes)])):
                while reports.poll():
                    error = reports.recv()
                    if error is not None and not is_set_up:
                        raise PolyvoxError(error)
                    is_set_up = is_set_up or error is None
                for index, process in enumerate(processes):
                    if process.is_alive():
                        continue
                    log.error("server process restarted", extra={"exit_code": process.exitcode})
                    _clean_up(process)
                    listeners.replace(index)
                    if wait(ends, RESTART_INTERVAL):
                        break
                    processes[index] = start(index)
        finally:
            del os.environ[MULTIPROCESS_DIR]
            # When the last server process closes its own, new connections are refused.
            listeners.close()
            if wyoming is not None:
                wyoming.close()
            _stop(processes, settings.drain_timeout + KILL_TIMEOUT)


def _worker_main(
    endpoints: Sequence[EngineEndpoint],
    settings: Settings,
    listener: socket.socket,
    shared_dir: Path,
    reporter: Connection,
    wyoming: socket.socket | None,
) -> None:
    set_up_logs(settings)
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def on_set_up(error: Exception | None) -> None:
        if error is None:  # otherwise run_server raises it
            reporter.send(None)

    connect = connect_remote(*endpoints, num_servers=settings.workers)
    try:
        run_server(connect, settings, listener, shared_dir, on_set_up=on_set_up, wyoming=wyoming)
    except Exception as error:  # multiprocessing would print it
        reporter.send((str(error) or repr(error))[:MAX_REPORT_CHARS])
        log.critical("server process failed", exc_info=True)
        sys.exit(1)


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
