"""A real engine whose thread goes on only as far as a test lets it, and which notes the codes that it makes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any
from unittest import mock

import torch

from engine.speaking import PATIENCE, note_codes
from polyvox.audio.clip import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.cost_model import CostModel
from polyvox.engine.engine import LocalEngine
from polyvox.engine.in_flight import CompletedStep
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.slots import SlotAllocation
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_state import StepPlan
from polyvox.models.protocol import PreparedRequest, SpeechModel

# What a step costs, in place of a measurement: little, so that all slots speak at once, and always the same.
CHEAP = CostModel(step=1e-5, stream=1e-5, prefill_row=1e-6, codec=1e-5, codec_frame=1e-6)
# So small that a few dozen frames meet the end of the text's ring and the last page.
TEXT_RING, PAGE_POSITIONS = 8, 80


class Injected(RuntimeError):
    """A failure that a test asked for."""


class SteppedEngine(LocalEngine):
    """Stops before each part of a turn (schedule, run, deliver, tell) until `go_on` lets it pass.

    Between two parts the lock is free, so whatever a test does there is what another thread could do. `parked` says
    where the engine stands: "idle" is a wait on its condition with no wake-up under way. A timer rings only when the
    test's clock has passed it. `free`: never stopped, but the rest holds.
    """

    def __init__(
        self, model: SpeechModel, config: EngineConfig, buffer_frames: int, prefill_rows: int, free: bool = False
    ) -> None:
        self.now = 0.0
        self.free = free
        self._prefill_rows = prefill_rows
        self.parked: str | None = None
        self.alarm = inf
        self._permits: float = inf if free else 0
        self.armed: dict[str, bool] = {}  # calls that fail once; whether only after their work is done
        self.unseatable: set[LocalStream] = set()
        self.hit: dict[LocalStream, str] = {}  # by which injected failure
        self.wrongs: list[str] = []  # what the engine must not do
        self._in_step: list[LocalStream] = []
        self._planned: list[LocalStream] = []
        self.batches: Counter[int] = Counter()  # steps by the streams that made a frame
        with mock.patch("polyvox.engine.engine.calibrate", side_effect=lambda *_: replace(CHEAP)):
            super().__init__(model, config, clock=lambda: self.now)
        # No configuration allows so little; a frame of the tiny checkpoint is 2 ms.
        object.__setattr__(self.config, "buffer_seconds", buffer_frames * self.frame_seconds)

    # What a test calls

    def go_on(self, parts: float = inf) -> None:
        """Lets so many parts of turns pass, or fewer if the engine falls idle; without a number, until it does."""
        with self.lock:
            self._permits = inf if self.free else min(parts, 5_000)
            self._gate.notify_all()
            assert self._gate.wait_for(self._rests, PATIENCE), f"the engine hangs: {self.parked}"
            if parts == inf:
                assert self.parked in ("idle", "dead"), "the engine turns without end"
            self._permits = inf if self.free else 0

    def pass_time(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds
            if self.parked == "idle" and self.now >= self.alarm:
                self.wake()

    def close(self) -> None:
        with self.lock:
            self._permits, self.free = inf, True
            self._gate.notify_all()
        super().close()

    # The engine's thread

    def _loop(self) -> None:
        self._gate = threading.Condition(self.lock)
        try:
            super()._loop()
        finally:
            with self.lock:
                self.parked = "dead"
                self._gate.notify_all()

    def _start(self) -> None:
        object.__setattr__(self.config, "context", PAGE_POSITIONS)  # three streams cannot all be long
        super()._start()
        self._work = _Watched(self)
        frame = self.frame_seconds
        self.load.limits = replace(
            self.load.limits, max_prefill_rows=self._prefill_rows, urgent_lead=4 * frame, lead_cap=24 * frame
        )
        self._patch_runner(self._runner)

    def _schedule(self) -> StepPlan[LocalStream] | None:
        self._pass("schedule")
        return super()._schedule()

    def _run(self, plan: StepPlan[LocalStream]) -> list[CompletedStep]:
        self._pass("run")
        self._planned = plan.streams
        self._in_step = [*self._planned, *self._streams_in_flight()]
        self.batches[len(plan.frame)] += 1
        return super()._run(plan)

    def _deliver_audio(self, plan: StepPlan[LocalStream], audio: list[Samples]) -> None:
        if self.armed.pop("audio", None) is not None:
            named = [*self._planned, *self._streams_in_flight()]
            self.hit |= dict.fromkeys([stream for stream in named if stream.result is None], "step")
            raise Injected("step")
        super()._deliver_audio(plan, audio)

    def _deliver(self, landed: list[CompletedStep]) -> None:
        self._pass("deliver")
        super()._deliver(landed)

    def _notify_readers(self) -> None:
        self._pass("notify")
        super()._notify_readers()

    def _pass(self, part: str) -> None:
        with self.lock:
            self.parked = part
            self._gate.notify_all()
            self._gate.wait_for(lambda: self._permits > 0)
            self._permits -= 1
            self.parked = None

    def _rests(self) -> bool:
        return self.parked in ("idle", "dead") or (self.parked is not None and self._permits <= 0)

    # What it notes, and where it fails

    def _patch_runner(self, runner: ModelRunner) -> None:
        rows: Any = runner.generator.state
        assign, write, clear = rows.assign, runner.write_text, runner.clear

        def seated(slot: int, prepared: PreparedRequest) -> None:
            assign(slot, prepared)
            for stream in self.unseatable:
                if stream.prepared is prepared:
                    self.hit[stream] = "seat"
                    raise Injected("seat")

        def written(slot: int, start: int, text: torch.Tensor, frame: int) -> int:
            if self.armed.pop("write", None) is not None:
                self.hit[next(stream for stream in self.streams.active if stream.slot == slot)] = "write"
                raise Injected("write")
            return write(slot, start, text, frame)

        def cleared(allocation: SlotAllocation) -> None:
            if any(stream.allocation is allocation for stream in self._streams_in_flight()):
                self.wrongs.append("a slot was freed under a step that names it")
            if threading.current_thread() is not self._thread:
                self.wrongs.append("a slot was freed from another thread")
            clear(allocation)

        rows.assign = seated
        runner.write_text, runner.clear = written, cleared  # type: ignore[method-assign]
        for state, name in ((rows, "prefill"), (rows, "frame"), (runner.vocoder.state, "decode")):
            setattr(state, name, self._failing(name, getattr(state, name)))
        self.codes = note_codes(self)

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            after = self.armed.pop(name, None)
            done = call(*args) if after is not False else None
            if after is not None:
                self.hit |= dict.fromkeys([s for s in self._in_step if s.result is None], "step")
                raise Injected("step")
            return done

        return called


class _Watched(threading.Condition):
    """The engine's condition, which tells when its thread waits there and whether a wake-up is under way."""

    def __init__(self, engine: SteppedEngine) -> None:
        super().__init__(engine.lock)
        self._engine = engine

    def notify(self, n: int = 1) -> None:
        if self._engine.parked == "idle":
            self._engine.parked = None
        super().notify(n)

    def wait(self, timeout: float | None = None) -> bool:
        engine = self._engine
        if threading.current_thread() is not engine._thread:
            return super().wait(timeout)
        engine.alarm = inf if timeout is None else engine.now + timeout
        engine.parked = "idle"
        engine._gate.notify_all()
        super().wait()
        engine._pass("woken")
        return True


@contextmanager
def small_text_ring() -> Iterator[None]:
    with mock.patch("polyvox.engine.generator_runner.TEXT_ROWS", TEXT_RING):
        yield


@contextmanager
def two_are_a_crowd() -> Iterator[None]:
    """So that sound is held, as it is of many streams."""
    with mock.patch("polyvox.engine.scheduler.MIN_STREAMS_TO_WITHHOLD", 2):
        yield
