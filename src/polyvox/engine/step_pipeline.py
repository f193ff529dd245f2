# SPDX-License-Identifier: Apache-2.0
"""Steps between their launch on the device and their completion."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polyvox.engine.engine_lock import EngineLock
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.pending import Pending, PendingAudio
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_manager import StreamManager
from polyvox.engine.stream_state import StepPlan
from polyvox.engine.stream_table import StreamTable

# Called with the plan of a completed step, the seconds that it took, and the time; under the lock.
OnCompleted = Callable[[StepPlan[LocalStream], float, float], None]


@dataclass(slots=True, eq=False)
class InFlightStep:
    """A launched step and its results on their way to the host."""

    number: int  # steps complete in the order of their launch
    plan: StepPlan[LocalStream]
    flags: Pending | None  # [calls, slots of plan.frame]
    audio: PendingAudio | None  # of plan.codec
    follows: bool = False  # it decodes the first frames of the step before it, which must complete first


class StepPipeline:
    """Launches steps, and completes them in this order: their audio and flags go to the streams.

    Only the engine's thread calls it: `run` without the lock, the others under it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        streams: StreamTable[LocalStream],
        scheduler: Scheduler[LocalStream],
        manager: StreamManager,
        lock: EngineLock,
        clock: Callable[[], float],
        on_completed: OnCompleted,
        notify_readers: Callable[[], None],
    ) -> None:
        self._runner, self._streams, self._scheduler, self._manager = runner, streams, scheduler, manager
        self._lock, self._clock = lock, clock
        self._on_completed, self._notify_readers = on_completed, notify_readers
        self.in_flight: deque[InFlightStep] = deque()
        self._num_started = 0  # steps
        # A step counts from here on, with the time in which the host plans it and delivers the one before it.
        self._last_completed_at = clock()  # or when the engine was last idle

    def start_timing(self, now: float) -> None:
        """The next step counts from now on, because the engine was idle."""
        self._last_completed_at = now

    def run(self, plan: StepPlan[LocalStream]) -> None:
        """Launches a step, and completes steps until at most one is in flight, or none without pipelining."""
        self._deliver_ready_audio()  # of first frames, which need not wait for the launch
        if plan:
            self._launch(plan)
        # The device decodes first frames while the next step is planned.
        max_in_flight = self._is_pipelined(plan) + self.in_flight[-1].follows if plan else 0
        while len(self.in_flight) > max_in_flight:
            self._complete(self.in_flight[0])
        self._deliver_ready_audio()  # readers need not wait for the plan of the next step

    def streams_of(self, plan: StepPlan[LocalStream]) -> list[LocalStream]:
        """Streams of which the step uses the slot until it completes."""
        return self._streams.at(np.union1d(plan.frame, plan.codec))

    def streams_in_flight(self) -> list[LocalStream]:
        return [stream for step in self.in_flight for stream in self.streams_of(step.plan)]

    def drop(self) -> list[LocalStream]:
        """Under the lock: forgets the steps in flight, and returns their streams."""
        streams = self.streams_in_flight()
        self.in_flight.clear()
        self._manager.completed_steps = self._num_started
        return streams

    def _launch(self, plan: StepPlan[LocalStream]) -> None:
        """Starts a step on the device."""
        started_at, runner = self._clock(), self._runner
        audio = flags = first_audio = None
        first: StepPlan[LocalStream] = StepPlan(codec=plan.first_codec, codec_frames=np.ones_like(plan.first_codec))
        with self._lock:
            arrays = self._streams.arrays
            first_frames = arrays.decoded[plan.codec] + arrays.decoding[plan.codec]
            contexts = arrays.prompt_rows[plan.frame] + arrays.started[plan.frame]
            prompts = [(s.slot, s.prefilled, s.prompt[s.prefilled :][:rows]) for s, rows in plan.prefill]
        if prompts:  # first, because the frames wait for them
            runner.prefill(prompts)
        if len(plan.codec) and not runner.decode_blocks:
            audio = runner.decode(plan.codec, first_frames, plan.codec_frames, streams_beside=len(plan.frame))
        if len(plan.frame):
            flags = runner.frame(plan.frame, plan.frame_counts, contexts)
        if first:
            first_audio = runner.decode(first.codec, np.zeros_like(first.codec), first.codec_frames, after_frames=True)
        if len(plan.codec) and runner.decode_blocks:  # the generator's GPU computes meanwhile
            audio = runner.decode(plan.codec, first_frames, plan.codec_frames)
        with self._lock:
            self._num_started += 1
            self.in_flight.append(InFlightStep(self._num_started, plan, flags, audio))
            self._scheduler.start(plan, started_at)
            for stream, _ in plan.prefill:
                if not stream.prompt_left:
                    stream.prepared = None
            arrays.last_step[plan.frame] = arrays.last_step[plan.codec] = self._num_started
            if first:
                self._num_started += 1
                self.in_flight.append(InFlightStep(self._num_started, first, None, first_audio, follows=True))
                arrays.last_step[first.codec] = self._num_started

    def _is_pipelined(self, plan: StepPlan[LocalStream]) -> bool:
        """Whether the next step is launched while this one runs: it hides the host's work between two steps."""
        enough_live = plan.num_live >= self._runner.min_live_to_pipeline or not plan.num_live
        return enough_live and 0 < self._runner.min_streams_to_pipeline <= len(plan.frame)

    def _complete(self, step: InFlightStep) -> None:
        """Waits for the step launched first; delivers its audio and applies the flags of its frames."""
        self._deliver_audio(step)  # readers need not wait for the frame step beside it
        flags = step.flags.get().astype(np.int64) if step.flags else ()
        with self._lock:
            now = self._clock()
            for call, row in enumerate(flags):
                slots = step.plan.slots_of_call(call)
                self._manager.on_frame_results(slots, row[: len(slots)], now)
            self._manager.end_drained(step.plan.frame)
            if not step.follows:
                self._on_completed(step.plan, now - self._last_completed_at, now)
                self._last_completed_at = now
            self.in_flight.popleft()
            self._manager.completed_steps = step.number

    def _deliver_ready_audio(self) -> None:
        """Delivers audio that was decoded since."""
        for index, step in enumerate(self.in_flight):
            if step.follows and index:  # whether there is a first frame is not known yet
                break
            if step.audio is not None and step.audio.ready:
                self._deliver_audio(step)

    def _deliver_audio(self, step: InFlightStep) -> None:
        """Waits for the samples of a step, and hands them to its streams and their readers."""
        if step.audio is None:
            return
        plan, audio = step.plan, step.audio.get()
        step.audio = None
        with self._lock:
            self._scheduler.on_decoded(plan.codec, plan.codec_frames)
            self._manager.on_audio(plan.codec, plan.codec_frames, audio, self._clock())
            self._manager.end_drained(plan.codec)  # final chunk and result in one notification
        self._notify_readers()
