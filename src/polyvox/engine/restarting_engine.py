# SPDX-License-Identifier: Apache-2.0
"""An engine in this process that is started in a thread, and started again when it has stopped."""

import gc
import logging
import socket
import threading
import time
from collections.abc import Callable

from polyvox import progress
from polyvox.audio.samples import Samples
from polyvox.engine.engine_status import EngineStatus
from polyvox.engine.interface import InProcessEngine, OnReady, Stream
from polyvox.engine.lifecycle import EngineLifecycle, RestartPolicy, start_error
from polyvox.errors import PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request
from polyvox.progress import OnProgress

log = logging.getLogger(__name__)

CHECK_INTERVAL = 0.2  # seconds between two checks of the engine
HANG_TIMEOUT = 30.0  # seconds of one step; a thread that hangs cannot be ended, so its engine only counts as failed
CLOSE_TIMEOUT = 15.0  # seconds for the engine's own shutdown
# Called with the seconds of the start, in total and by stage.
OnEngineStarted = Callable[[InProcessEngine, dict[str, float]], None]


class RestartingEngine:
    """An `Engine` whose calls raise EngineDown while none runs. The constructor returns before the engine has started.

    factory: called for each start, in a thread; it closes the engine of the start before. `start_failed` becomes
    readable if the first start fails, and `check` raises the error. A later failure is never final. on_progress and
    on_started are called for the first start, in that thread.
    """

    def __init__(
        self,
        factory: Callable[[], InProcessEngine],
        policy: RestartPolicy,
        on_progress: OnProgress | None = None,
        on_started: OnEngineStarted | None = None,
    ) -> None:
        self._factory, self._on_progress, self._on_started = factory, on_progress, on_started
        self._engine: InProcessEngine | None = None
        self._closing = threading.Event()
        self._start_error: PolyvoxError | None = None
        self._lifecycle = EngineLifecycle(policy, lambda _: None)
        self.start_failed, self._start_failed_signal = socket.socketpair()  # closing the second makes it readable
        self._thread = threading.Thread(target=self._supervise, name="polyvox-supervisor", daemon=True)
        self._thread.start()

    def status(self) -> EngineStatus:
        return self._lifecycle.status

    def check(self) -> None:
        """Raises the error of a failed first start."""
        if self._start_error is not None:
            raise self._start_error

    @property
    def sample_rate(self) -> int:
        return self.status().sample_rate

    def submit(self, request: Request, on_ready: OnReady | None = None) -> Stream:
        return self._running().submit(request, on_ready)

    def info(self) -> ModelInfo:
        return self._running().info()

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        return self._running().clone(samples, transcript)

    def stats(self) -> dict[str, float]:
        return self._running().stats()

    @property
    def stopped(self) -> bool:
        """Whether the thread has ended: `close` does not wait for a start in progress, which cannot be interrupted."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Ends the engine and the thread. Idempotent."""
        self._closing.set()
        if self.status().running:
            self._thread.join(CLOSE_TIMEOUT)
            if not self.stopped:
                log.error("engine did not stop timeout=%g", CLOSE_TIMEOUT)
        self._lifecycle.close()
        self.start_failed.close()
        self._start_failed_signal.close()

    def _running(self) -> InProcessEngine:
        engine = self._engine
        if engine is None or not self.status().running:
            raise self.status().error(time.monotonic())
        return engine

    def _supervise(self) -> None:
        while not self._closing.is_set():
            try:
                self._start()
                reason = self._watch() if self._engine is not None else ""
            except Exception as error:
                failure = start_error(error)
                if self.status().sample_rate == 0:  # the first start
                    self._start_error = failure
                    self._start_failed_signal.close()
                    return
                reason = str(failure)
            if not self._closing.is_set():
                self._closing.wait(self._lifecycle.on_failed(reason))

    def _start(self) -> None:
        first = self.status().sample_rate == 0
        listeners: list[OnProgress] = [self._lifecycle.on_progress]
        if first and self._on_progress is not None:
            listeners.append(self._on_progress)
        self._lifecycle.begin_start()
        with progress.listening(*listeners):
            engine = self._factory()
        if self._closing.is_set():
            engine.close()
            return
        gc.collect()
        gc.freeze()  # objects of the start are excluded from garbage collection, which stalls all streams
        self._engine = engine
        seconds = self._lifecycle.on_started(engine.sample_rate)
        if first and self._on_started is not None:
            self._on_started(engine, seconds)

    def _watch(self) -> str:
        """Returns when the engine has stopped, or this is closed: the reason, without a reference to the engine."""
        engine = self._engine
        assert engine is not None
        locked_at, stuck_seconds = time.monotonic(), 0.0
        while not self._closing.wait(CHECK_INTERVAL):
            if engine.broken is not None:
                self._engine = None
                return engine.broken
            with engine.try_lock(CHECK_INTERVAL) as locked:
                if locked:
                    locked_at, stuck_seconds = time.monotonic(), engine.stats().get("stuck_seconds", 0.0)
            hangs = max(stuck_seconds, time.monotonic() - locked_at) > HANG_TIMEOUT
            if hangs and self.status().running:
                self._lifecycle.on_failed(f"a step takes longer than {HANG_TIMEOUT:g} s")
            elif not hangs and not self.status().running:
                self._lifecycle.on_resumed()
        engine.close()
        self._engine = None
        return ""
