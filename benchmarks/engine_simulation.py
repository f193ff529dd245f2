# SPDX-License-Identifier: Apache-2.0
"""Scheduler and admission control on a simulated large GPU: a discrete-event simulation with a fake clock.

The time of a plan is computed from measured figures, with noise and stalls. scheduling.py, overload.py, kv_pages.py,
replica_routing.py and cluster.py run it.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from typing import Protocol

import numpy as np

from polyvox.engine.admission import Admission
from polyvox.engine.cost_model import CostModel
from polyvox.engine.load import LoadModel
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_arrays import Ints
from polyvox.engine.stream_state import CHUNK_SIZES, DEFAULT_TEXT_BYTES, SchedulerLimits, StepPlan, StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.errors import Overloaded

FRAME = 0.08
# Milliseconds by batch size, 1.7B on one H200 with CUDA graphs: frame step; codec call by its frames.
FRAME_STEP = ((1, 2.73), (64, 5.55), (128, 6.96), (256, 8.06), (512, 12.1), (1024, 21.0))
CODEC_CALL = ((1, 0.7), (64, 2.04), (256, 5.56), (512, 10.4), (1024, 20.1))
PREFILL_ROW = 0.007
MAX_BATCH = 1024  # the largest measured batch; larger ones are several calls
PROMPT_ROWS = (10, 60)
MEDIAN_FRAMES, SPREAD, FRAMES = 60, 0.6, (12, 400)  # lognormal
MAX_FRAMES = 500  # the only length that the scheduler knows
READER_FRAMES = 25  # frames that the buffer of a stopped reader takes: 2 s
WARM_UP = 10.0  # seconds of traffic before the counted streams, about two utterances


def interpolate(points: Sequence[tuple[int, float]], size: int) -> float:
    """Milliseconds of a call of this size: linear between the measured sizes, several calls beyond the last."""
    calls, rest = divmod(size, MAX_BATCH)
    total = calls * points[-1][1]
    for (a, low), (b, high) in pairwise(points):
        if 0 < rest <= b:
            return total + low + (high - low) * (rest - a) / (b - a)
    return total


class Device(Protocol):
    def seconds(self, plan: StepPlan[StreamState]) -> float:
        """The time of a step."""
        ...


@dataclass(slots=True)
class Gpu:
    """The time of a plan: frame step, prompt rows, and a codec call for each chunk size, one after another.

    A chunk of n frames costs as much as n streams with one frame: the codec is compute-bound.
    """

    random: random.Random
    noise: float = 0.2
    stalls: float = 0.01
    stall: float = 3.0
    slowdown: float = 1.0  # relative to the calibration

    def seconds(self, plan: StepPlan[StreamState]) -> float:
        calls = [len(plan.slots_of_call(call)) for call in range(plan.num_calls)]
        total = sum(interpolate(FRAME_STEP, size) for size in calls) + PREFILL_ROW * plan.sizes()[1]
        for size, streams in Counter(plan.codec_frames.tolist()).items():
            total += interpolate(CODEC_CALL, size * streams)
        total *= self.slowdown * self.random.uniform(1 - self.noise, 1 + self.noise)
        return total / 1e3 * (self.stall if self.random.random() < self.stalls else 1.0)


def calibrated() -> CostModel:
    """The cost model after calibration: lines through the smallest and the largest batch."""
    (small, frame_small), (large, frame_large) = FRAME_STEP[0], FRAME_STEP[-1]
    (_, codec_small), (_, codec_large) = CODEC_CALL[0], CODEC_CALL[-1]
    stream, codec_frame = (
        (frame_large - frame_small) / (large - small),
        (codec_large - codec_small) / (large - small),
    )
    step, codec = frame_small - small * stream, codec_small - small * codec_frame
    return CostModel(step / 1e3, stream / 1e3, PREFILL_ROW / 1e3, codec / 1e3, codec_frame / 1e3)


# 2,048 slots with 46 s of context each fit into the memory of the GPU.
LIMITS = SchedulerLimits(
    frame_seconds=FRAME,
    num_slots=2048,
    num_pages=2048 * 36,
    page_size=16,
    ring_frames=64,
    max_queue=64,
    max_queue_seconds=1.0,
    max_prefill_rows=2048,
    max_batch=MAX_BATCH,
)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A request with facts that only the simulation knows: its length, and when and for how long its reader stops."""

    arrived_at: float
    prompt_rows: int
    frames: int
    stops_at: float = inf  # frames
    stops_for: float = 0.0  # seconds
    live: bool = True
    text_bytes: int = DEFAULT_TEXT_BYTES


def utterance(draw: random.Random, arrived_at: float = 0.0, slow_readers: float = 0.01) -> Utterance:
    """A random utterance; one reader in a hundred stops for 3 s at the tenth frame."""
    frames = int(min(max(draw.lognormvariate(log(MEDIAN_FRAMES), SPREAD), FRAMES[0]), FRAMES[1]))
    slow = draw.random() < slow_readers
    return Utterance(arrived_at, draw.randint(*PROMPT_ROWS), frames, 10 if slow else inf, 3.0 if slow else 0.0)


def mean_frames() -> float:
    draw = random.Random(0)
    return sum(utterance(draw).frames for _ in range(20_000)) / 20_000


def capacity() -> float:
    """Throughput of this GPU in audio seconds per second: full steps with their codec calls and prompts, no noise."""
    rows = sum(PROMPT_ROWS) / 2 / mean_frames()  # per frame
    milliseconds = (
        interpolate(FRAME_STEP, MAX_BATCH) + interpolate(CODEC_CALL, MAX_BATCH) + MAX_BATCH * rows * PREFILL_ROW
    )
    return MAX_BATCH * FRAME / milliseconds * 1e3


def traffic(load: float, streams: int, seed: int, warm_up: float = WARM_UP) -> list[Utterance]:
    """Poisson arrivals at a share of capacity: the warm-up, then this many streams."""
    draw = random.Random(seed)
    rate = load * capacity() / (mean_frames() * FRAME)
    now = 0.0
    found: list[Utterance] = []
    while len(found) < streams or found[-streams].arrived_at < warm_up:
        now += draw.expovariate(rate)
        found.append(utterance(draw, now))
    return found


@dataclass(frozen=True, slots=True)
class Policy:
    admission: type[Admission[StreamState]]
    scheduler: type[Scheduler[StreamState]]


POLYVOX = Policy(Admission, Scheduler)


class Simulation:
    """Runs a policy like the engine's loop; the flags of a frame are known one step late."""

    def __init__(
        self, policy: Policy, limits: SchedulerLimits, cost: CostModel, device: Device, utterances: Sequence[Utterance]
    ) -> None:
        self.streams: StreamTable[StreamState] = StreamTable(limits.num_slots)
        self.load = LoadModel(limits, cost, self.streams)
        self.scheduler = policy.scheduler(self.load, self.streams)
        self.admission = policy.admission(self.load, self.streams, SlotLedger(limits.num_slots, limits.num_pages))
        self.device, self.now = device, 0.0
        self.arriving = deque(utterances)
        self.accepted: dict[StreamState, Utterance] = {}
        self.done: list[StreamState] = []
        self.rejected: list[Utterance] = []
        self.num_expired = 0  # of the rejected: after a wait in the queue
        self.out_of_pages: list[StreamState] = []  # ended early, because no KV page was free
        self.frames: list[tuple[float, int]] = []  # of each step: its end, its number of frames
        self.plan_seconds: list[float] = []  # CPU time of this thread
        self._in_flight: deque[tuple[StepPlan[StreamState], Ints]] = deque()  # with the ids of its streams
        self._frames = np.zeros(limits.num_slots, np.int64)  # of the utterance in each slot
        self._stops_at = np.full(limits.num_slots, inf)
        self._stopped: dict[StreamState, float] = {}  # readers, and when they resume
        self._num_streams = 0

    def run(self) -> None:
        while self.arriving or len(self.streams):
            self.step()

    def step(self) -> StepPlan[StreamState]:
        self._arrive()
        expired = self.admission.expire(self.now)
        self.rejected += [self.accepted.pop(stream) for stream in expired]
        self.num_expired += len(expired)
        for stream in self.admission.admit(self.now):
            one = self.accepted[stream]
            self._frames[stream.row], self._stops_at[stream.row] = one.frames, one.stops_at
        _, out_of_pages = self.admission.pages.grow()
        self.out_of_pages += out_of_pages
        for stream in [stream for stream, until in self._stopped.items() if until <= self.now]:
            stream.buffer_free = inf
            del self._stopped[stream]
        started_at = time.thread_time()
        plan = self.scheduler.plan(self.now)
        self.plan_seconds.append(time.thread_time() - started_at)
        if plan or self._in_flight:
            seconds = self.device.seconds(plan)
            self.now += seconds
            self._apply(plan)
            self.load.observe(plan, seconds)
            self.frames.append((self.now, plan.sizes()[0]))
        else:
            moments = self.next_moments()
            assert moments, "the simulation is stuck"
            self.now = max(self.now, min(moments))
        return plan

    def next_moments(self) -> list[float]:
        """When an idle engine may have work again."""
        return [*self._stopped.values(), *(one.arrived_at + 1e-6 for one in list(self.arriving)[:1])]

    def max_frames(self, one: Utterance) -> int:  # noqa: ARG002
        return MAX_FRAMES

    def _arrive(self) -> None:
        while self.arriving and self.arriving[0].arrived_at <= self.now:
            one = self.arriving.popleft()
            self._num_streams += 1
            stream = StreamState(
                self._num_streams, one.arrived_at, one.prompt_rows, self.max_frames(one), live=one.live,
                first_chunk=0, text_bytes=one.text_bytes,
            )  # fmt: skip
            try:
                self.admission.enqueue(stream, self.now)
                self.accepted[stream] = one
            except Overloaded:
                self.rejected.append(one)

    def _apply(self, plan: StepPlan[StreamState]) -> None:
        self.scheduler.start(plan, self.now)
        arrays = self.streams.arrays
        assert not arrays.prompt_left()[plan.frame].any()
        if len(plan.frame):
            self._in_flight.append((plan, arrays.id[plan.frame]))
        while len(self._in_flight) > (len(plan.frame) > 0):
            done, ids = self._in_flight.popleft()
            for call in range(done.num_calls):
                slots = done.slots_of_call(call)
                same = arrays.id[slots] == ids[: len(slots)]  # a released slot may have a new stream
                slots = slots[~arrays.ended[slots] & same]
                last = arrays.generated[slots] == self._frames[slots]
                arrays.generated[slots[~last]] += 1
                last |= arrays.generated[slots] >= arrays.max_frames[slots]
                for stream in self.streams.at(slots[last]):
                    self.streams.transition(stream, StreamStatus.DRAINING, self.now)
        self._deliver(plan.codec, plan.codec_frames)
        for stream in list(self.streams[StreamStatus.DRAINING]):
            self._end_drained(stream)

    def _end_drained(self, stream: StreamState) -> None:
        if stream.status is not StreamStatus.DRAINING or stream.decoded < stream.generated:
            return
        if stream.undelivered:
            self.scheduler.deliver(np.array([stream.row]), np.array([stream.undelivered]), self.now)
        self.streams.transition(stream, StreamStatus.RELEASING, self.now)
        self.admission.release(stream, self.now)
        self.done.append(stream)

    def _deliver(self, slots: Ints, frames: Ints) -> None:
        arrays = self.streams.arrays
        decoded, stops_at = arrays.decoded[slots], self._stops_at[slots]
        assert set(frames.tolist()) <= set(CHUNK_SIZES)
        assert (decoded + frames <= arrays.generated[slots]).all()
        assert (frames <= arrays.buffer_free[slots]).all()
        arrays.buffer_free[slots] -= frames  # of a reader that has stopped; else it is infinite
        for stream in self.streams.at(slots[(decoded < stops_at) & (stops_at <= decoded + frames)]):
            stream.buffer_free = READER_FRAMES
            self._stopped[stream] = self.now + self.accepted[stream].stops_for
        self.scheduler.on_decoded(slots, frames)
        due = self.scheduler.is_due(self.now)[slots]
        due |= arrays.ended[slots] & (arrays.decoded[slots] == arrays.generated[slots])
        self.scheduler.deliver(slots[due], arrays.undelivered[slots[due]], self.now)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0
