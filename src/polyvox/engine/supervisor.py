"""Starts the engine's process, starts it again when it dies, and gives up loudly when it keeps dying."""

import atexit
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
from pathlib import Path

from polyvox.engine.interface import Engine
from polyvox.engine.process import Hosting, host
from polyvox.engine.wire import Door
from polyvox.errors import EngineDown

log = logging.getLogger(__name__)

# Spawned: a forked process cannot use CUDA, and would inherit sockets and locks.
_SPAWN = multiprocessing.get_context("spawn")
START_RETRY_SECONDS = 60.0


class EngineProcess:
    """An engine in its own process. The door is for the servers: each makes a RemoteEngine of it.

    Returns when the engine has started, and raises EngineDown where it cannot. factory is called in the new process
    and must be picklable.
    """

    def __init__(
        self,
        factory: Callable[[], Engine],
        hosting: Hosting | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factory, self._hosting, self._clock = factory, hosting or Hosting(), clock
        self._failures: deque[float] = deque()
        self._bell, self._ringer = _SPAWN.Pipe(duplex=False)  # closing the ringer ends every wait here
        self._lock = threading.Lock()
        self._closed = False
        self._folder = Path(tempfile.mkdtemp(prefix="polyvox-"))  # for this user only
        self.pid: int | None = None  # of the process that serves; None while there is none
        began = clock()
        try:
            sample_rate = self._start()
        except BaseException:
            self._remove()
            raise
        self.door = Door(self._folder, sample_rate, clock() - began)
        self._thread = threading.Thread(target=self._supervise, name="polyvox-supervisor", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a program that forgets to close must still be able to exit

    def close(self) -> None:
        """Ends the process and removes all that belongs to it; any number of times."""
        with self._lock:
            if not self._closed:
                self._closed = True
                atexit.unregister(self.close)
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
        """A new process with an engine that is ready; its sample rate."""
        self._lifeline, theirs = _SPAWN.Pipe()
        arguments = (self._factory, self._folder, self._hosting, theirs)
        self._process = _SPAWN.Process(target=host, args=arguments, name="polyvox-engine", daemon=True)
        try:
            with theirs:
                self._process.start()
            word = self._first_word()
            if isinstance(word, str):
                raise EngineDown(f"the engine could not be started: {word}", START_RETRY_SECONDS)
        except BaseException:
            self._end()
            raise
        self.pid = self._process.pid
        return word

    def _first_word(self) -> int | str:
        ready = wait([self._lifeline, self._bell], self._hosting.start_timeout)
        if self._bell in ready:
            return "it was closed meanwhile"
        if not ready:
            return f"it was not ready within {self._hosting.start_timeout:g} s"
        try:
            word: int | str = self._lifeline.recv()
            return word
        except (EOFError, OSError):
            return "its process died while it started"

    def _end(self) -> None:
        """The process is gone after this, by itself or not."""
        self.pid = None
        with suppress(OSError):
            self._lifeline.send(None)  # a word: the folder is still needed, or removed here
        self._lifeline.close()
        if self._process.pid is not None:
            self._process.join(self._hosting.grace)
            if self._process.is_alive():
                log.warning("the engine did not end within %g s and is killed", self._hosting.grace)
                self._process.kill()
                self._process.join()
        self._process.close()

    def _supervise(self) -> None:
        while True:
            reason = self._watch()
            self._end()
            if reason is None or not self._start_again(reason):
                return

    def _watch(self) -> str | None:
        """Why the process must be replaced: it died, or its heart stands still. None when this is closed."""
        while ready := wait([self._bell, self._lifeline], self._hosting.hang_seconds):
            if self._bell in ready:
                return None
            try:
                self._lifeline.recv()
            except (EOFError, OSError):
                return "its process died"
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGUSR1)  # it writes to its log what all its threads do
        return f"its process hung for {self._hosting.hang_seconds:g} s"

    def _start_again(self, reason: str) -> bool:
        while not self._bell.poll():
            self._failures.append(self._clock())
            while self._failures[0] < self._failures[-1] - self._hosting.window:
                self._failures.popleft()
            if len(self._failures) >= self._hosting.failures:
                self._give_up(reason)
                return False
            log.warning("the engine is started again: %s", reason)
            try:
                self._start()
                return True
            except (EngineDown, OSError) as error:
                reason = str(error)
        return False

    def _give_up(self, reason: str) -> None:
        times = f"{self._hosting.failures} times in {self._hosting.window:g} s"
        text = f"the engine failed {times} and is not started again ({reason}); see its log, then start Polyvox anew"
        log.error("%s", text)
        draft = self._folder / "given-up.draft"
        draft.write_text(text)
        draft.rename(self.door.notice)  # so that nobody reads half of it
