"""Starts the engine's process, starts it again when it dies, and gives up loudly when it keeps dying."""

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
from polyvox.ipc.messages import EngineEndpoint
from polyvox.ipc.worker import EngineProcessConfig, host

log = logging.getLogger(__name__)

# Spawned: a forked process cannot use CUDA, and would inherit sockets and locks.
_SPAWN = multiprocessing.get_context("spawn")
START_RETRY_SECONDS = 60.0


class _Silent(EngineDown):
    """Nothing was heard of the process in time."""


class EngineProcess:
    """An engine in its own process. The door is for the servers: each makes a RemoteEngine of it.

    Returns when the engine has started, and raises EngineDown where it cannot. factory is called in the new process
    and must be picklable.
    """

    def __init__(
        self,
        factory: Callable[[], InProcessEngine],
        hosting: EngineProcessConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factory, self._hosting, self._clock = factory, hosting or EngineProcessConfig(), clock
        # Failures by the seconds that the engine had served: a slow start or a hang takes long to fail.
        self._served = 0.0
        self._failures: deque[float] = deque()
        self._bell, self._ringer = _SPAWN.Pipe(duplex=False)  # closing the ringer ends every wait here
        self._lock = threading.Lock()
        self._process: SpawnProcess | None = None
        self._folder = Path(tempfile.mkdtemp(prefix=f"polyvox-{os.getpid()}-"))  # for this user only
        self.pid: int | None = None  # of the process that serves; None while there is none
        began = clock()
        try:
            sample_rate = self._start()
        except BaseException:
            self._end()
            self._remove()
            raise
        self.door = EngineEndpoint(self._folder, sample_rate, clock() - began)
        self._thread = threading.Thread(target=self._supervise, name="polyvox-supervisor", daemon=True)
        self._thread.start()
        self._at_exit = Finalize(None, self.close, exitpriority=0)  # a program that forgets to close must still exit

    def close(self) -> None:
        """Ends the process and removes all that belongs to it; any number of times."""
        with self._lock:
            if not self._ringer.closed:
                self._at_exit.cancel()
                self._ringer.close()
                self._thread.join()
                self._remove()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove(self) -> None:
        self._bell.close()
        self._ringer.close()
        shutil.rmtree(self._folder)

    def _start(self) -> int:
        """A new process with an engine that is ready; its sample rate. Raises EngineDown."""
        self._lifeline, theirs = _SPAWN.Pipe()
        with theirs:
            arguments = (self._factory, self._folder, self._hosting, theirs)
            self._process = _SPAWN.Process(target=host, args=arguments, name="polyvox-engine", daemon=True)
            self._process.start()
        word = self._hear(self._hosting.start_timeout)
        if not isinstance(word, int):
            raise EngineDown(f"the engine could not be started: {word}", START_RETRY_SECONDS)
        self.pid = self._process.pid
        return word

    def _hear(self, seconds: float) -> object:
        """The process's next word or beat; raises EngineDown where none came in time, or none will come."""
        ready = wait([self._bell, self._lifeline], seconds)
        reason = f"nothing was heard of its process for {seconds:g} s"
        if self._bell in ready:
            reason = "it was closed"
        elif ready:
            with suppress(EOFError, OSError):
                return self._lifeline.recv()
            reason = "its process died"
        elif self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGUSR1)  # it writes to stderr where its threads are
        raise (EngineDown if ready else _Silent)(f"the engine failed: {reason}", START_RETRY_SECONDS)

    def _end(self) -> None:
        """The process is gone after this, by itself or not; any number of times."""
        self.pid = None
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            self._lifeline.send(None)  # a word: the folder is still needed, or removed here
        self._lifeline.close()
        if process.pid is not None:
            process.join(self._hosting.grace)
            if process.is_alive():
                log.warning("the engine did not end within %g s and is killed", self._hosting.grace)
                process.kill()
                process.join()
        process.close()

    def _supervise(self) -> None:
        """Starts the process again whenever it fails, until this is closed or it has failed too often."""
        began: float | None = self._clock()
        while True:
            try:
                if began is None:
                    self._start()
                    began = self._clock()
                while True:
                    self._hear(self._hosting.hang_seconds)
            except (EngineDown, OSError) as error:
                self._end()
                if began is not None:
                    silent = self._hosting.hang_seconds if isinstance(error, _Silent) else 0.0
                    self._served += max(0.0, self._clock() - began - silent)
                if self._bell.poll() or self._is_hopeless(str(error)):
                    return
                began = None
                log.warning("the engine is started again: %s", error)

    def _is_hopeless(self, reason: str) -> bool:
        self._failures.append(self._served)
        while self._failures[0] < self._failures[-1] - self._hosting.window:
            self._failures.popleft()
        if len(self._failures) < self._hosting.failures:
            return False
        times = f"{self._hosting.failures} times in {self._hosting.window:g} s"
        text = f"the engine failed {times} and is not started again ({reason}); see its log, then start Polyvox anew"
        log.error("%s", text)
        draft = self._folder / "given-up.draft"
        draft.write_text(text)
        draft.rename(self.door.notice)  # so that nobody reads half of it
        return True
