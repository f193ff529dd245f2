# SPDX-License-Identifier: Apache-2.0
"""A scheduler with its admission and its streams, for tests that set the clock themselves."""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from polyvox.engine.admission import Admission
from polyvox.engine.cost_model import CostModel
from polyvox.engine.demand import Demand
from polyvox.engine.load import LoadModel
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_state import SchedulerLimits, StepPlan, StreamState
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.engine.stream_table import StreamTable

FRAME = 0.08
LIMITS = SchedulerLimits(
    frame_seconds=FRAME,
    num_slots=64,
    num_pages=4096,
    page_size=16,
    ring_frames=64,
    max_queue=8,
    max_queue_seconds=2.0,
    max_prefill_rows=512,
    max_batch=512,
)
# A large GPU: 10 ms for any step, 0.05 ms for each stream in it.
GPU = CostModel(step=0.006, stream=2.2e-5, prefill_row=1.2e-5, codec=0.0039, codec_frame=3e-5)
# A machine with a capacity of three streams.
SLOW = CostModel(step=0.02, stream=0.005, prefill_row=1e-4, codec=0.01, codec_frame=0.005)

_ids = count(1)


def new_stream(arrived_at: float = 0.0, prompt_rows: int = 1, max_frames: int = 500, **fields: Any) -> StreamState:
    return StreamState(next(_ids), arrived_at, prompt_rows, max_frames, **fields)


def playing(lead: float, now: float = 10.0, **fields: Any) -> StreamState:
    """A stream with this lead at `now`, all of whose frames are delivered."""
    values: dict[str, Any] = {"generated": 20, "started": 20, "decoded": 20, "first_audio_at": 0.0}
    stream = new_stream(**(values | {"delivered_seconds": now + lead, "status": StreamStatus.RUNNING} | fields))
    stream.deadline = now + lead
    return stream


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its streams in place of their slots."""

    step: StepPlan[StreamState]
    prefill: tuple[tuple[StreamState, int], ...]
    frame: tuple[StreamState, ...]  # in any order
    codec: tuple[tuple[StreamState, int], ...]

    def __bool__(self) -> bool:
        return bool(self.step)

    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.step.sizes()


@dataclass(slots=True)
class Fixture:
    """Scheduler, admission and what they share."""

    limits: SchedulerLimits
    cost: CostModel
    streams: StreamTable[StreamState] = field(init=False)
    ledger: SlotLedger = field(init=False)
    load: LoadModel[StreamState] = field(init=False)
    scheduler: Scheduler[StreamState] = field(init=False)
    admission: Admission[StreamState] = field(init=False)

    def __post_init__(self) -> None:
        self.streams = StreamTable(self.limits.num_slots)
        self.ledger = SlotLedger(self.limits.num_slots, self.limits.num_pages)
        self.load = LoadModel(self.limits, self.cost, self.streams)
        self.scheduler = Scheduler(self.load, self.streams)
        self.admission = Admission(self.load, self.streams, self.ledger)

    @property
    def queued(self) -> list[StreamState]:
        return list(self.streams[StreamStatus.QUEUED])

    def wait(self, now: float) -> float:
        """The expected wait of a new live utterance."""
        return self.admission.estimate_wait(Demand(live=True), now)

    def plan(self, now: float) -> "Planned":
        step = self.scheduler.plan(now)
        chunks = tuple(zip(self.streams.at(step.codec), step.codec_frames.tolist(), strict=True))
        return Planned(step, step.prefill, tuple(self.streams.at(step.frame)), chunks)

    def start(self, plan: "Planned", now: float) -> None:
        self.scheduler.start(plan.step, now)

    def decode(self, stream: StreamState, frames: int, now: float) -> None:
        """Completes a codec call of a started step, and delivers its audio."""
        self.scheduler.on_decoded(np.array([stream.row]), np.array([frames]))
        self.deliver(stream, frames, now)

    def deliver(self, stream: StreamState, frames: float, now: float) -> None:
        assert stream in self.streams.active
        self.scheduler.deliver(np.array([stream.row]), np.array([frames]), now)

    def is_due(self, stream: StreamState, now: float) -> bool:
        return bool(self.scheduler.is_due(now)[stream.row])

    def chunk(self, stream: StreamState, now: float) -> int:
        stream.arrays.live[stream.row] = stream.live  # as on its admission
        arrays = stream.arrays
        return int(self.scheduler.chunk(arrays, arrays.is_starting(now), arrays.lead(now))[stream.row])

    def admit_all(self, *streams: StreamState, now: float = 0.0) -> None:
        """Queues and admits streams one after the other."""
        for stream in streams:
            self.admission.enqueue(stream, now)
            assert self.admission.admit(now) == [stream]

    def drain(self, stream: StreamState, now: float = 10.0) -> None:
        self.streams.transition(stream, StreamStatus.DRAINING, now)

    def finish(self, stream: StreamState, now: float) -> None:
        """Ends a stream whatever its status, and releases its slot."""
        if stream.status not in HOLDS_SLOT:
            self.streams.transition(stream, StreamStatus.FINISHED, now)
            return
        self.scheduler.discard_rest(stream)
        if stream.status is not StreamStatus.RELEASING:
            self.streams.transition(stream, StreamStatus.RELEASING, now)
        self.admission.release(stream, now)


def build(cost: CostModel = GPU, **limits: Any) -> Fixture:
    return Fixture(replace(LIMITS, **limits), replace(cost))


def running(*streams: StreamState, cost: CostModel = GPU, **limits: Any) -> Fixture:
    """A scheduler in which these streams are active, without admission control."""
    fixture = build(cost, **limits)
    for stream in streams:
        if stream.status is StreamStatus.QUEUED:
            stream.status = StreamStatus.PREFILL if stream.prompt_left else StreamStatus.RUNNING
        stream.admitted_at = stream.arrived_at
        stream.allocation = fixture.ledger.allocate(0)
        fixture.admission.pages.reservation.on_admitted(stream, 0)
        fixture.streams.add(stream)
        fixture.admission.utterances.admit(stream, stream.arrived_at)
    return fixture
