# SPDX-License-Identifier: Apache-2.0
"""A real engine whose thread advances only as far as a test allows, and which records its codes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, cast
from unittest import mock

from engine.synthesis import TIMEOUT, record_codes
from polyvox.engine.config import EngineConfig
from polyvox.engine.cost_model import CostModel
from polyvox.engine.engine import LocalEngine
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.slots import SlotAllocation
from polyvox.engine.step_pipeline import InFlightStep, StepPipeline
from polyvox.engine.stream import LocalStream, StopRequest
from polyvox.engine.stream_state import StepPlan
from polyvox.engine.text_buffer import TextBuffer
from polyvox.models.protocol import PreparedRequest, SpeechModel

# The cost of a step instead of a calibration: low, so that all slots are used, and always the same.
LOW_COST = CostModel(step=1e-5, stream=1e-5, prefill_row=1e-6, codec=1e-5, codec_frame=1e-6)
# So small that a few dozen frames reach the end of the text ring and the last page.
TEXT_RING, PAGE_POSITIONS = 8, 80


class Injected(RuntimeError):
    """A failure that a test injected."""


class SteppedEngine(LocalEngine):
    """Stops before each part of an iteration (schedule, run, deliver, notify) until `advance` lets it continue.

    Between two parts the lock is free, so a test can do there what another thread could do. `parked` is the part before
    which the engine stopped; "idle" is a wait on its condition without a pending wake-up. A timeout fires only after
    the test's clock has passed it. `free`: the engine never stops; everything else is the same.
    """

    def __init__(
        self, model: SpeechModel, config: EngineConfig, buffer_frames: int, prefill_rows: int, free: bool = False
    ) -> None:
        self.now = 0.0
        self.free = free
        self._prefill_rows = prefill_rows
        self.parked: str | None = None
        self.next_timeout = inf
        self._permits: float = inf if free else 0
        self.armed: dict[str, bool] = {}  # calls that fail once; True: after their work is done
        self.unassignable: set[LocalStream] = set()
        self.injected: dict[LocalStream, str] = {}  # streams by the failure that ended them
        self.unread: set[LocalStream] = set()  # stopped because another request needed their slot
        self.violations: list[str] = []  # of the engine's invariants
        self._in_step: list[LocalStream] = []
        self._planned: list[LocalStream] = []
        self.batches: Counter[int] = Counter()  # number of steps by batch size
        with mock.patch("polyvox.engine.engine.calibrate", side_effect=lambda *_: replace(LOW_COST)):
            super().__init__(model, config, clock=lambda: self.now)
        # Less than the configuration allows: a frame of the tiny checkpoint has 2 ms.
        object.__setattr__(self.config, "buffer_seconds", buffer_frames * self.frame_seconds)

    # Called by tests

    def advance(self, parts: float = inf) -> None:
        """Runs this many parts of iterations, fewer if the engine becomes idle; by default until it is idle."""
        with self.lock:
            self._permits = inf if self.free else min(parts, 5_000)
            self._gate.notify_all()
            assert self._gate.wait_for(self._has_stopped, TIMEOUT), f"the engine hangs: {self.parked}"
            if parts == inf:
                assert self.parked in ("idle", "dead"), "the engine does not become idle"
            self._permits = inf if self.free else 0

    def advance_clock(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds
            if self.parked == "idle" and self.now >= self.next_timeout:
                self.wake()

    def request_stop(self, stream: LocalStream, stop: StopRequest) -> None:
        if "another request needs the slot" in (stop.error or ""):
            self.unread.add(stream)
        super().request_stop(stream, stop)

    def close(self) -> None:
        with self.lock:
            self._permits, self.free = inf, True
            self._gate.notify_all()
        super().close()

    # The engine's thread

    def _loop(self) -> None:
        self._gate = self.lock.new_condition()
        try:
            super()._loop()
        finally:
            with self.lock:
                self.parked = "dead"
                self._gate.notify_all()

    def _start(self) -> None:
        object.__setattr__(self.config, "context", PAGE_POSITIONS)  # not enough pages for three long streams
        super()._start()
        self._work = ObservedCondition(self)
        frame = self.frame_seconds
        self.load.limits = replace(
            self.load.limits, max_prefill_rows=self._prefill_rows, urgent_lead=4 * frame, lead_cap=24 * frame
        )
        self._patch_runner(self._runner)
        self._pipeline._deliver_audio = self._deliver_audio  # type: ignore[method-assign]

    def _schedule(self) -> StepPlan[LocalStream] | None:
        self._stop_before("schedule")
        return super()._schedule()

    def _run(self, plan: StepPlan[LocalStream]) -> None:
        self._stop_before("run")
        self._planned = [*(stream for stream, _ in plan.prefill), *self._pipeline.streams_of(plan)]
        self._in_step = [*self._planned, *self._pipeline.streams_in_flight()]
        self.batches[len(plan.frame)] += 1
        super()._run(plan)

    def _deliver_audio(self, step: InFlightStep) -> None:
        if step.audio is not None and self.armed.pop("audio", None) is not None:
            named = [*self._planned, *self._pipeline.streams_in_flight()]
            self.injected |= dict.fromkeys([stream for stream in named if stream.result is None], "step")
            raise Injected("step")
        StepPipeline._deliver_audio(self._pipeline, step)

    def _deliver(self) -> None:
        self._stop_before("deliver")
        super()._deliver()

    def _notify_readers(self) -> None:
        self._stop_before("notify")
        super()._notify_readers()

    def _stop_before(self, part: str) -> None:
        with self.lock:
            self.parked = part
            self._gate.notify_all()
            self._gate.wait_for(lambda: self._permits > 0)
            self._permits -= 1
            self.parked = None

    def _has_stopped(self) -> bool:
        return self.parked in ("idle", "dead") or (self.parked is not None and self._permits <= 0)

    # Recording and injected failures

    def _patch_runner(self, runner: ModelRunner) -> None:
        rows: Any = runner.generator.state
        assign, write, clear = rows.assign, runner.write_text, runner.clear

        def assigned(slot: int, prepared: PreparedRequest) -> None:
            assign(slot, prepared)
            for stream in self.unassignable:
                if stream.prepared is prepared:
                    self.injected[stream] = "assign"
                    raise Injected("assign")

        def written(slot: int, start: int, text: TextBuffer, frame: int) -> int:
            if self.armed.pop("write", None) is not None:
                self.injected[next(stream for stream in self.streams.active if stream.slot == slot)] = "write"
                raise Injected("write")
            return write(slot, start, text, frame)

        def cleared(allocation: SlotAllocation) -> None:
            if any(stream.allocation is allocation for stream in self._pipeline.streams_in_flight()):
                self.violations.append("a slot was released while a step in flight uses it")
            if threading.current_thread() is not self._thread:
                self.violations.append("a slot was released by another thread")
            clear(allocation)

        rows.assign = assigned
        runner.write_text, runner.clear = written, cleared  # type: ignore[method-assign]
        for state, name in ((rows, "prefill"), (rows, "frame"), (runner.vocoder.state, "decode")):
            setattr(state, name, self._failing(name, getattr(state, name)))
        self.codes = record_codes(self)

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            after = self.armed.pop(name, None)
            done = call(*args) if after is not False else None
            if after is not None:
                self.injected |= dict.fromkeys([s for s in self._in_step if s.result is None], "step")
                raise Injected("step")
            return done

        return called


class ObservedCondition(threading.Condition):
    """The engine's condition, which records whether its thread waits without a pending wake-up."""

    def __init__(self, engine: SteppedEngine) -> None:
        super().__init__(cast(Any, engine.lock))
        self._engine = engine

    def notify(self, n: int = 1) -> None:
        if self._engine.parked == "idle":
            self._engine.parked = None
        super().notify(n)

    def wait(self, timeout: float | None = None) -> bool:
        engine = self._engine
        if threading.current_thread() is not engine._thread:
            return super().wait(timeout)
        engine.next_timeout = inf if timeout is None else engine.now + timeout
        engine.parked = "idle"
        engine._gate.notify_all()
        super().wait()
        engine._stop_before("woken")
        return True


@contextmanager
def small_text_ring() -> Iterator[None]:
    with mock.patch("polyvox.engine.generator_runner.TEXT_IDS", TEXT_RING):
        yield


@contextmanager
def withhold_from_two_streams() -> Iterator[None]:
    """Withholds audio as with many streams."""
    with mock.patch("polyvox.engine.scheduler.MIN_STREAMS_TO_WITHHOLD", 2):
        yield
