# SPDX-License-Identifier: Apache-2.0
"""Starts the engine's process, restarts it when it fails, and stops restarting it when it keeps failing."""

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path

from polyvox.engine.interface import InProcessEngine
from polyvox.errors import EngineDown
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.process import EngineProcessConfig, run_engine_process

log = logging.getLogger(__name__)

# Spawned: a forked process cannot use CUDA, and would inherit sockets and locks.
_SPAWN = multiprocessing.get_context("spawn")
START_RETRY_SECONDS = 60.0


class _HeartbeatTimeout(EngineDown):
    """The process sent nothing in time."""


class EngineProcess:
    """An engine in its own process. Servers connect to its `endpoint` with an `AsyncRemoteEngine`.

    Returns when the engine has started; raises EngineDown if it cannot start. factory is called in the new process and
    must be picklable.
    """

    def __init__(
        self,
        factory: Callable[[], InProcessEngine],
        config: EngineProcessConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factory, self._config, self._clock = factory, config or EngineProcessConfig(), clock
        # Failures by the seconds that the engine had served: a slow start or a hang takes long to fail.
        self._served = 0.0
        self._failures: deque[float] = deque()
        self._closing, self._close_signal = _SPAWN.Pipe(duplex=False)  # closing the second end ends every wait here
        self._lock = threading.Lock()
        self._process: SpawnProcess | None = None
        self._num_restarts = 0
        self._folder = Path(tempfile.mkdtemp(prefix=f"polyvox-{os.getpid()}-"))  # for this user only
        self.pid: int | None = None  # of the serving process; None while there is none
        began = clock()
        try:
            sample_rate = self._start()
        except BaseException:
            self._stop()
            self._remove()
            raise
        self.endpoint = EngineEndpoint(self._folder, sample_rate, clock() - began)
        self._thread = threading.Thread(target=self._supervise, name="polyvox-supervisor", daemon=True)
        self._thread.start()
        self._at_exit = Finalize(None, self.close, exitpriority=0)  # so that an unclosed one does not block the exit

    def close(self) -> None:
        """Ends the process and removes its files. Idempotent."""
        with self._lock:
            if not self._close_signal.closed:
                self._at_exit.cancel()
                self._close_signal.close()
                self._thread.join()
                self._remove()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove(self) -> None:
        self._closing.close()
        self._close_signal.close()
        shutil.rmtree(self._folder)

    def _start(self) -> int:
        """Starts a process and waits for its engine; returns the sample rate. Raises EngineDown."""
        self._pipe, theirs = _SPAWN.Pipe()
        with theirs:
            arguments = (self._factory, self._folder, self._config, theirs, self._num_restarts)
            self._process = _SPAWN.Process(
                target=run_engine_process, args=arguments, name="polyvox-engine", daemon=True
            )
            self._process.start()
        message = self._receive(self._config.start_timeout)
        if not isinstance(message, int):
            raise EngineDown(f"The engine could not be started: {message}", START_RETRY_SECONDS)
        self.pid = self._process.pid
        return message

    def _receive(self, timeout: float) -> object:
        """The next message or heartbeat; raises EngineDown if none came in time or the process ended."""
        ready = wait([self._closing, self._pipe], timeout)
        reason = f"its process sent no heartbeat for {timeout:g} s"
        if self._closing in ready:
            reason = "it was closed"
        elif ready:
            with suppress(EOFError, OSError):
                return self._pipe.recv()
            reason = "its process died"
        elif self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGUSR1)  # it writes the stacks of its threads to stderr
        raise (EngineDown if ready else _HeartbeatTimeout)(f"The engine failed: {reason}.", START_RETRY_SECONDS)

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
                log.warning("engine killed reason=%s", f"still running after {self._config.shutdown_timeout:g} s")
                process.kill()
                process.join()
        process.close()

    def _supervise(self) -> None:
        """Restarts the process whenever it fails, until this is closed or it has failed too often."""
        began: float | None = self._clock()
        while True:
            try:
                if began is None:
                    self._num_restarts += 1
                    self._start()
                    began = self._clock()
                    log.info("engine restarted pid=%s", self.pid)
                while True:
                    self._receive(self._config.hang_timeout)
            except (EngineDown, OSError) as error:
                self._stop()
                if began is not None:
                    silent = self._config.hang_timeout if isinstance(error, _HeartbeatTimeout) else 0.0
                    self._served += max(0.0, self._clock() - began - silent)
                if self._closing.poll() or self._failed_too_often(str(error)):
                    return
                began = None
                log.warning("engine restarting reason=%s", error)

    def _failed_too_often(self, reason: str) -> bool:
        self._failures.append(self._served)
        while self._failures[0] < self._failures[-1] - self._config.failure_window:
            self._failures.popleft()
        if len(self._failures) < self._config.max_failures:
            return False
        failures = f"{self._config.max_failures} times in {self._config.failure_window:g} s"
        text = f"The engine failed {failures} and is not restarted ({reason}). See its log, then restart Polyvox."
        log.error("engine failed reason=%s", text)
        draft = self._folder / "failed.draft"
        draft.write_text(text)
        draft.rename(self.endpoint.failure_notice)  # atomic
        return True
