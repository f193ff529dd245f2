# SPDX-License-Identifier: Apache-2.0
"""Starts the engine's process, and restarts it whenever it fails."""

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import ParamSpec

from polyvox.engine.engine_status import EngineStatus
from polyvox.engine.interface import InProcessEngine
from polyvox.engine.lifecycle import EngineLifecycle, start_error
from polyvox.errors import EngineDown, PolyvoxError
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.process import Drained, EngineProcessConfig, StartedEngine, StartProgress, run_engine_process
from polyvox.ipc.status_file import LoadFile, StatusFile
from polyvox.progress import OnProgress

log = logging.getLogger(__name__)

# Spawned: a forked process cannot use CUDA, and would inherit sockets and locks.
_SPAWN = multiprocessing.get_context("spawn")
P = ParamSpec("P")

KILL_TIMEOUT = 10.0  # seconds for a killed process to end
OnStarted = Callable[[StartedEngine, dict[str, float]], None]  # with the seconds of the start, in total and by stage


class EngineProcess:
    """An engine in its own process. Servers connect to its `endpoint` with an `AsyncRemoteEngine`.

    wait_for_start: return when the engine has started, and raise the error if it cannot start. Otherwise the
    constructor returns at once, `start_failed` becomes readable if the first start fails, and `check` raises the error.
    A later failure is never final: the process is started again, with exponential backoff.

    factory is called in the new process and must be picklable. on_progress and on_started are called for the first
    start, in another thread. replica: the index of this process if there are several; then on_start_failed decides
    whether a failed first start is final.
    """

    def __init__(
        self,
        factory: Callable[[], InProcessEngine],
        config: EngineProcessConfig | None = None,
        *,
        wait_for_start: bool = True,
        on_progress: OnProgress | None = None,
        on_started: OnStarted | None = None,
        replica: int | None = None,
        on_start_failed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._factory, self._config = factory, config or EngineProcessConfig()
        self._on_start_failed = on_start_failed
        self._log_fields = {} if replica is None else {"replica": replica}
        self._on_progress, self._on_started = on_progress, on_started
        self._closing, self._close_signal = _SPAWN.Pipe(duplex=False)  # closing the second end ends every wait here
        self.start_failed, self._start_failed_signal = _SPAWN.Pipe(duplex=False)  # likewise
        self._lock = threading.Lock()
        self._process: SpawnProcess | None = None
        self._pipe: Connection
        self._first_start = threading.Event()  # has ended
        self._start_error: PolyvoxError | None = None
        folder = Path(tempfile.mkdtemp(prefix=f"polyvox-{os.getpid()}-"))  # for this user only
        self.endpoint = EngineEndpoint(folder, replica)
        try:
            self._status_file = StatusFile(folder, create=True)
            LoadFile(folder, create=True).close()
        except OSError as error:
            shutil.rmtree(folder)
            raise start_error(error) from error
        self._lifecycle = EngineLifecycle(self._config.restarts, self._status_file.write, log_fields=self._log_fields)
        self.pid: int | None = None  # of the serving process; None while there is none
        self._thread = threading.Thread(target=self._supervise, name="polyvox-supervisor", daemon=True)
        self._thread.start()
        self._at_exit = Finalize(None, self.close, exitpriority=0)  # so that an unclosed one does not block the exit
        if wait_for_start:
            try:
                self._first_start.wait()  # start_timeout limits it
                self.check()
            except BaseException:
                self.close()
                raise

    @property
    def status(self) -> EngineStatus:
        return self._lifecycle.status

    def check(self) -> None:
        """Raises the error of a failed first start."""
        if self._start_error is not None:
            raise self._start_error

    def close(self) -> None:
        """Ends the process and removes its files. Idempotent."""
        with self._lock:
            if not self._close_signal.closed:
                self._at_exit.cancel()
                self._close_signal.close()
                self._thread.join()
                self._lifecycle.close()
                for connection in (self._closing, self.start_failed, self._start_failed_signal):
                    connection.close()
                self._status_file.close()
                shutil.rmtree(self.endpoint.folder, ignore_errors=True)

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _supervise(self) -> None:
        """Starts the process, and again whenever it fails, until this is closed."""
        while True:
            try:
                self._lifecycle.begin_start()
                self._start()
                timeout = self._config.hang_timeout
                while True:
                    message = self._receive(timeout, f"its process sent no heartbeat for {timeout:g} s")
                    if isinstance(message, Drained):
                        raise EngineDown(f"{self.endpoint.name} was drained.", retry_after=0)
            except Exception as error:
                failure = start_error(error)
                self._stop()
                if self._closing.poll():
                    self._first_start.set()
                    return
                if not self._first_start.is_set():
                    self._start_error = failure
                    if self._on_start_failed():
                        self._first_start.set()
                        self._start_failed_signal.close()
                        return
                delay = self._lifecycle.on_failed(str(failure))
            if wait([self._closing], delay):
                return

    def _start(self) -> None:
        """Starts a process and waits for its engine. Raises PolyvoxError."""
        self._pipe, theirs = _SPAWN.Pipe()
        with theirs:
            arguments = (self._factory, self.endpoint.folder, self._config, theirs)
            self._process = _SPAWN.Process(
                target=run_engine_process, args=arguments, name="polyvox-engine", daemon=True
            )
            self._process.start()
        timeout = self._config.start_timeout
        deadline = time.monotonic() + timeout
        while True:
            message = self._receive(max(0.0, deadline - time.monotonic()), f"it did not start within {timeout:g} s")
            if isinstance(message, PolyvoxError):
                raise message
            if isinstance(message, StartedEngine):
                break
            if isinstance(message, StartProgress):
                self._lifecycle.on_progress(message.stage, message.done, message.total)
                if self._on_progress is not None and not self._first_start.is_set():
                    _call(self._on_progress, message.stage, message.done, message.total)
        self.pid = self._process.pid
        seconds = self._lifecycle.on_started(message.sample_rate, self.pid or 0)
        if not self._first_start.is_set():
            self._start_error = None  # of an earlier attempt
            self._first_start.set()
            if self._on_started is not None:
                _call(self._on_started, message, seconds)

    def _receive(self, timeout: float, reason: str) -> object:
        """The next message or heartbeat; raises EngineDown if the process ended, or with `reason` after the timeout."""
        ready = wait([self._closing, self._pipe], timeout)
        if self._closing in ready:
            reason = "it was closed"
        elif ready:
            with suppress(EOFError, OSError):
                return self._pipe.recv()
            reason = "its process died"
        elif self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGUSR1)  # it writes the stacks of its threads to stderr
        raise EngineDown(f"{self.endpoint.name} failed: {reason}.", retry_after=0)

    def _stop(self) -> None:
        """Ends the process, by force if it does not end in time. Idempotent."""
        self.pid = None
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            self._pipe.send(None)  # a regular end: it does not remove the folder
        self._pipe.close()
        if process.pid is not None:
            process.join(self._config.shutdown_timeout)
            if process.is_alive():
                reason = f"still running after {self._config.shutdown_timeout:g} s"
                log.warning("engine killed", extra={**self._log_fields, "reason": reason})
                process.kill()
                process.join(KILL_TIMEOUT)
        if process.is_alive():  # in a system call that cannot be interrupted, such as one of a failed GPU
            fields = {**self._log_fields, "timeout": KILL_TIMEOUT}
            log.error("engine still running after it was killed", extra=fields)
        else:
            process.close()


def _call(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """A callback that raises must not end the supervision."""
    try:
        callback(*args, **kwargs)
    except Exception:
        log.exception("callback failed")
