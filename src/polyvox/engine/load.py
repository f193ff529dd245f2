# SPDX-License-Identifier: Apache-2.0
"""How loaded the engine is: cost of a frame, capacity, and a snapshot of all leads."""

from collections import deque
from dataclasses import dataclass, field
from heapq import nlargest
from math import inf
from typing import Generic

import numpy as np

from polyvox.engine.capacity import CapacityLimits
from polyvox.engine.cost_model import LEARNING_RATE, CostModel
from polyvox.engine.stream_arrays import Bools, Floats, StreamArrays
from polyvox.engine.stream_state import DEFAULT_FIRST_CHUNK, S, SchedulerLimits, StepPlan
from polyvox.engine.stream_table import StreamTable

SNAPSHOT_TTL = 0.05  # seconds that a snapshot is used for admission
# Steps from one chunk of one frame to the next: the frame's, the codec's, one in flight, one that stalls (2).
STEPS_BETWEEN_CHUNKS = 5
# Steps from new text, or free space in a reader's buffer, to more audio: one in flight, the frame's, the codec's.
STEPS_TO_AUDIO = 3


# A machine that other programs slow down now and then has less capacity than its average step suggests: what counts is
# a slow second of the last NUM_WINDOWS ones with steps. The slowest is ignored, as a single stall.
WINDOW_SECONDS, NUM_WINDOWS = 1.0, 30
MAX_SLOWDOWN = 2.0
# Until seconds were measured, a CPU is expected to be slower than its calibration, which ran before the server had any
# work: clients, encoders and other programs use the same cores. Two shared cores had 1.2 to 1.3.
CPU_SLOWDOWN = 1.3


@dataclass(slots=True)
class Slowdown:
    """How much longer than the cost model predicts now the steps of a slow second took."""

    value: float = 1.0
    _calibrated: float = 0.0  # seconds of the steps of this window, by the calibration
    _predicted: float = 0.0  # by the corrected cost model
    _actual: float = 0.0
    _ratios: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_WINDOWS))  # actual to calibrated

    def add(self, calibrated: float, predicted: float, actual: float) -> None:
        self._calibrated += calibrated
        self._predicted += predicted
        self._actual += actual
        if self._actual >= WINDOW_SECONDS:
            self._ratios.append(self._actual / self._calibrated)
            if len(self._ratios) > 1:
                slow = nlargest(2, self._ratios)[-1]
                self.value = min(max(slow * self._calibrated / self._predicted, 1.0), MAX_SLOWDOWN)
            self._calibrated = self._predicted = self._actual = 0.0


@dataclass(slots=True)
class LoadSnapshot:
    """The state of all streams at one moment."""

    taken_at: float
    num_live: int  # live streams that need frames
    leads: Floats  # of playing streams that need frames, except those that are limited by their text
    _slack: tuple[float, float] | None = None  # the last answer: seconds per frame, slack

    def slack(self, seconds_per_frame: float) -> float:
        """Seconds that could be lost while every stream still meets its next deadline, the nearest first."""
        if self._slack is None or self._slack[0] != seconds_per_frame:
            slack = np.sort(self.leads) - seconds_per_frame * np.arange(1, len(self.leads) + 1)
            self._slack = seconds_per_frame, float(slack.min(initial=inf))
        return self._slack[1]


@dataclass(slots=True)
class LoadModel(Generic[S]):
    """The engine's load, as scheduler and admission see it."""

    limits: SchedulerLimits
    cost: CostModel
    streams: StreamTable[S]
    # Moving averages of recent steps
    prefill_rows_per_frame: float = 0.0
    codec_calls: float = 1.0
    slowdown: Slowdown = field(default_factory=Slowdown)
    _snapshot: LoadSnapshot | None = None

    def observe(self, plan: StepPlan[S], seconds: float) -> None:
        """Corrects the cost model by the time that a step took."""
        cost, sizes = self.cost, plan.sizes()
        frames, rows, _, calls, _ = sizes
        self.slowdown.add(cost.calibrated_seconds(*sizes), cost.seconds(*sizes), seconds)
        cost.observe(*sizes, seconds)
        self.codec_calls += LEARNING_RATE * (calls - self.codec_calls)
        # Weighted by the frames of the step: rows beside few frames say little about a full step.
        weight = min(LEARNING_RATE * frames / min(self.limits.max_batch, self.limits.num_slots), 1.0)
        self.prefill_rows_per_frame += weight * (rows / max(frames, 1) - self.prefill_rows_per_frame)

    def frame_cost(self) -> tuple[float, float]:
        """Seconds of any step, and of each frame in it with its audio and its share of the prompts."""
        cost = self.cost
        each = cost.growing * max(self._device_frame(), cost.host_frame)
        return cost.fixed * (cost.step + cost.codec * max(1.0, self.codec_calls)), each

    def _device_frame(self) -> float:
        """Seconds of the device for each frame, by the calibration."""
        cost = self.cost
        return cost.stream + cost.codec_frame + cost.prefill_row * self.prefill_rows_per_frame

    def capacity(self, headroom: float | None = None) -> int:
        """Live streams that can run in real time at once; at least one, on any machine.

        headroom: share of the time that steps may take, by default that of the limits, or less if steps were slow in
        the last seconds.
        """
        fixed, each = self.frame_cost()
        return max(1, int(min(self._streams_in_time(fixed, each, headroom), self.limits.num_slots)))

    def _streams_in_time(self, fixed: float, each: float, headroom: float | None = None) -> float:
        """Streams in real time if a step takes `fixed` seconds and `each` for every stream."""
        seconds = self.limits.frame_seconds * (headroom or min(self.limits.headroom, 1 / self.slowdown.value))
        streams = (seconds - fixed) / each if each else inf
        if streams > self.limits.max_batch:  # a frame of each stream takes several steps
            streams = seconds / (fixed / self.limits.max_batch + each)
        return streams

    def capacity_limits(self) -> CapacityLimits:
        """Streams in real time by each of the limits; the capacity is the smallest."""
        fixed, _ = self.frame_cost()
        host, device = self.cost.growing * self.cost.host_frame, self.cost.growing * self._device_frame()
        return CapacityLimits(
            device_time=max(1.0, self._streams_in_time(fixed, device)),
            host=max(1.0, self._streams_in_time(fixed, host)) if host else inf,
            slots=self.limits.num_slots,
        )

    def speed(self, max_streams: float = inf) -> float:
        """Audio seconds per second of each stream when as many run as the capacity allows, at most max_streams."""
        streams, (fixed, each) = int(min(self.capacity(), max_streams)), self.frame_cost()
        steps = -(-streams // self.limits.max_batch)  # that a frame of each stream takes
        return self.limits.frame_seconds / max(fixed * steps + each * streams, 1e-9)

    def start_seconds(self) -> float:
        """Seconds from the slot of a stream to its first audio while as many run as the capacity allows."""
        return (DEFAULT_FIRST_CHUNK + 1) * self.limits.frame_seconds / self.speed()

    def first_chunk(self, now: float) -> int:
        """Frames of a first chunk: one if the next ones arrive before it is played, else DEFAULT_FIRST_CHUNK."""
        fixed, each = self.frame_cost()
        step = fixed + each * self.snapshot(now).num_live
        return 1 if STEPS_BETWEEN_CHUNKS * step <= self.limits.frame_seconds else DEFAULT_FIRST_CHUNK

    def resume_seconds(self) -> float:
        """Seconds from new text of a paused stream to its audio, beside the streams that are active now."""
        fixed, each = self.frame_cost()
        return STEPS_TO_AUDIO * (fixed + each * min(len(self.streams.active), self.limits.max_batch))

    def is_text_limited(self, arrays: StreamArrays, lead: Floats) -> Bools:
        """The lead stays short, however fast the engine is, until more text arrives: it says nothing about the load."""
        frames = arrays.text_frames - arrays.started
        return lead + self.limits.frame_seconds * frames < self.limits.urgent_lead

    def leads(self, now: float) -> Floats:
        """Leads of all live streams that are playing, the shortest first."""
        arrays = self.streams.used()
        return np.sort(arrays.lead(now)[arrays.active & arrays.live & (arrays.first_audio_at < inf)])

    def snapshot(self, now: float) -> LoadSnapshot:
        """The last snapshot, or a new one after SNAPSHOT_TTL: a burst of requests must not visit all streams each."""
        if self._snapshot is None or not 0 <= now - self._snapshot.taken_at < SNAPSHOT_TTL:
            arrays = self.streams.used()
            needy, urgency = arrays.active & arrays.needs_frames(), arrays.urgency(now)
            num_live = int(np.count_nonzero(needy & arrays.live))
            counted = needy & (urgency > -inf) & ~self.is_text_limited(arrays, arrays.lead(now))
            self._snapshot = LoadSnapshot(now, num_live, urgency[counted])
        return self._snapshot

    def set_snapshot(self, snapshot: LoadSnapshot) -> None:
        self._snapshot = snapshot

    def invalidate(self) -> None:
        """Drops the snapshot, after a stream ended."""
        self._snapshot = None

    def count_admitted(self, stream: S) -> None:
        """Adds an admitted stream to the snapshot, if there is one."""
        if self._snapshot is not None:
            self._snapshot.num_live += stream.live
