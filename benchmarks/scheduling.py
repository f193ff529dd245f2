"""The scheduler on a simulated large GPU, beside first come first served and beside a global semaphore.

python benchmarks/scheduling.py [--streams 2000] [--loads 0.5,0.7,…] [--plot docs/scheduling.png]

Discrete events on a fake clock, no device, no torch: a plan goes in, its seconds come out of measured figures with
noise and stalls. The plot needs matplotlib, which is no dependency of Polyvox.
"""

import argparse
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, log
from pathlib import Path

from polyvox.engine.scheduler import CHUNKS, CostModel, Limits, Plan, Scheduler, Track
from polyvox.errors import Overloaded

FRAME = 0.08
# Milliseconds by batch of a 1.7B model on one H200, plain PyTorch in CUDA graphs: talker, predictor; codec of one frame.
FRAME_STEP = ((1, 5.9), (64, 7.3), (512, 17.2))
CODEC_CALL = ((1, 0.7), (64, 5.8), (512, 19.0))
PREFILL_ROW = 0.012
BATCH = 512  # the largest that was measured, so the largest that is simulated
LOADS = (0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0)


def between(points: Sequence[tuple[int, float]], size: int) -> float:
    """Milliseconds at a size: straight lines between the measured ones."""
    if size == 0:
        return 0.0
    for (a, low), (b, high) in zip(points, points[1:], strict=False):
        if size <= b or b == points[-1][0]:
            return low + (high - low) * (size - a) / (b - a)
    raise AssertionError("two points at least")


@dataclass(slots=True)
class Gpu:
    """How long a plan takes: codec calls after the frame step, one for each size of chunk, a frame costing what it costs
    alone. A batch beyond the largest is several calls."""

    random: random.Random
    noise: float = 0.2
    stalls: float = 0.01
    stall: float = 3.0
    slower: float = 1.0  # than what the scheduler was told at start

    def seconds(self, plan: Plan) -> float:
        full, rest = divmod(len(plan.frame), BATCH)
        total = full * FRAME_STEP[-1][1] + between(FRAME_STEP, rest)
        total += PREFILL_ROW * sum(rows for _, rows in plan.prefill)
        by_size = Counter(frames for _, frames in plan.codec)
        for size, streams in by_size.items():
            full, rest = divmod(size * streams, BATCH)
            total += full * CODEC_CALL[-1][1] + between(CODEC_CALL, rest)
        total *= self.slower * self.random.uniform(1 - self.noise, 1 + self.noise)
        return total / 1e3 * (self.stall if self.random.random() < self.stalls else 1.0)


def calibrated() -> CostModel:
    """What an engine would measure at start: straight lines through half a hundred streams and a full batch."""
    (_, _), (few, frame_few), (many, frame_many) = FRAME_STEP
    (_, _), (_, codec_few), (_, codec_many) = CODEC_CALL
    stream, codec_frame = (frame_many - frame_few) / (many - few), (codec_many - codec_few) / (many - few)
    fixed = frame_few - few * stream, codec_few - few * codec_frame
    return CostModel(fixed[0] / 1e3, stream / 1e3, PREFILL_ROW / 1e3, fixed[1] / 1e3, codec_frame / 1e3)


def limits(**changes: float) -> Limits:
    """2,048 slots, memory for 46 s of context in each: what fits on the card."""
    values: dict[str, float] = {
        "frame_seconds": FRAME, "slots": 2048, "pages": 2048 * 36, "page_size": 16, "ring": 64, "queue": 64,
        "queue_seconds": 1.0, "batch": BATCH,
    }
    return Limits(**(values | changes))  # type: ignore[arg-type]


@dataclass(slots=True)
class Utterance:
    """A request with what only the simulation knows: its length, and when its reader stops and goes on."""

    arrived: float
    prompt_rows: int
    frames: int
    max_frames: int
    stops_at: float = inf  # frames read
    stops_for: float = 0.0
    live: bool = True


@dataclass(slots=True)
class Traffic:
    """Poisson arrivals; prompts of 10 to 60 rows; lengths lognormal around 60 frames (12 to 400)."""

    random: random.Random
    slow_readers: float = 0.01

    def one(self, arrived: float) -> Utterance:
        draw = self.random
        frames = int(min(max(draw.lognormvariate(log(60), 0.6), 12), 400))
        slow = draw.random() < self.slow_readers
        return Utterance(
            arrived, draw.randint(10, 60), frames, 500, 10 if slow else inf, 3.0 if slow else 0.0
        )

    def arrivals(self, rate: float, count: int) -> list[Utterance]:
        now, found = 0.0, []
        for _ in range(count):
            now += self.random.expovariate(rate)
            found.append(self.one(now))
        return found


def mean_frames() -> float:
    traffic = Traffic(random.Random(1))
    return sum(traffic.one(0.0).frames for _ in range(20_000)) / 20_000


def capacity() -> float:
    """Audio seconds a second when every step is full: frames, their audio in one call, and the prompts they need."""
    full = FRAME_STEP[-1][1] + CODEC_CALL[-1][1] + BATCH / mean_frames() * 35 * PREFILL_ROW
    return BATCH * FRAME / (full / 1e3)


class FirstCome(Scheduler):
    """All streams in every step, prompts as they come, slots the only door."""

    def offer(self, track: Track, now: float) -> None:
        self.waiting.append(track)

    def admit(self, now: float) -> tuple[list[Track], list[Track]]:
        admitted = []
        while self.waiting and len(self.running) < self.places():
            track = self.waiting.popleft()
            track.admitted = now
            self.running.append(track)
            admitted.append(track)
        return admitted, []

    def places(self) -> int:
        return self.limits.slots

    def release(self, track: Track) -> None:
        self.running.remove(track)

    def plan(self, now: float) -> Plan:
        prefill = tuple((track, track.prompt_left) for track in self.running if track.prompt_left)
        frame = tuple(t for t in self.running if not t.ended and t.started < t.max_frames and t.room >= 1)
        codec = tuple((t, 1) for t in self.running if t.made > t.decoded and t.room >= 1 and self._begins(t))
        for track in self.running:
            self._hold(track, now)
        return Plan(prefill, frame, codec)

    def _begins(self, track: Track) -> bool:
        return track.ended or track.first_audio is not None or track.made >= track.first_chunk


class Semaphore(FirstCome):
    """As many streams as a full batch, and as many frames in flight over all of them: who does not read holds its share."""

    def places(self) -> int:
        return BATCH

    def plan(self, now: float) -> Plan:
        plan = super().plan(now)
        held = sum(int(UNREAD - t.room) for t in self.running if t.room < UNREAD)
        free = max(0, BATCH - held)
        return Plan(plan.prefill, plan.frame[:free], plan.codec[:free])


UNREAD = 25  # frames of a reader's buffer


@dataclass(slots=True)
class Outcome:
    """What happened to a run's streams, those that came while the machine was warming up left out of all but underruns."""

    load: float
    offered: int = 0
    refused: int = 0
    underruns: int = 0  # of all admitted, also of those that warmed up
    broken: int = 0  # streams with at least one
    admitted_audio: float = 0.0  # audio made a second, as a share of capacity
    first_audio: list[float] = field(default_factory=list)
    queue_wait: list[float] = field(default_factory=list)
    admitted: list[Utterance] = field(default_factory=list)
    steps: int = 0
    plan_seconds: float = 0.0  # of the real clock, on average


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Simulation:
    """Runs a scheduler as the engine's loop does: a frame's end is known one step late."""

    def __init__(self, scheduler: Scheduler, gpu: Gpu, utterances: Sequence[Utterance]) -> None:
        self.scheduler, self.gpu = scheduler, gpu
        self.coming = deque(utterances)
        self.now = 0.0
        self.tracks: dict[Track, Utterance] = {}
        self.done: list[Track] = []
        self.refused: list[Utterance] = []
        self.flights: deque[tuple[Track, ...]] = deque()
        self.read: dict[Track, tuple[float, float]] = {}  # slow readers: when one goes on, what it has not read
        self.made: list[tuple[float, int]] = []
        self.plans = 0.0

    def run(self, until: float = inf) -> None:
        while self.now < until and (self.coming or self.scheduler.running or self.scheduler.waiting):
            self.step()

    def step(self) -> None:
        self._arrive()
        _, expired = self.scheduler.admit(self.now)
        self.refused += [self.tracks.pop(track) for track in expired]
        self._readers()
        began = time.perf_counter()
        plan = self.scheduler.plan(self.now)
        self.plans += time.perf_counter() - began
        if not plan and not self.flights:
            moments = [self.coming[0].arrived] if self.coming else []
            moments += [until for until, _ in self.read.values() if until > self.now]
            self.now = max(min(moments, default=self.now), self.now) + 1e-6
            return
        seconds = self.gpu.seconds(plan)
        self.now += seconds
        self._apply(plan)
        self.scheduler.observe(plan, seconds)
        self.made.append((self.now, len(plan.frame)))

    def _arrive(self) -> None:
        while self.coming and self.coming[0].arrived <= self.now:
            utterance = self.coming.popleft()
            track = Track(
                len(self.tracks) + len(self.refused), utterance.arrived, utterance.prompt_rows, utterance.max_frames,
                live=utterance.live,
            )
            try:
                self.scheduler.offer(track, self.now)
            except Overloaded:
                self.refused.append(utterance)
            else:
                self.tracks[track] = utterance

    def _readers(self) -> None:
        for track, (until, _) in list(self.read.items()):
            if until <= self.now:
                track.room = inf
                del self.read[track]

    def _apply(self, plan: Plan) -> None:
        for track, rows in plan.prefill:
            track.prefilled += rows
        for track in plan.frame:
            assert not track.prompt_left
            track.started += 1
        if plan.frame:
            self.flights.append(plan.frame)
        while len(self.flights) > (1 if plan.frame else 0):
            for track in self.flights.popleft():
                if track.ended:
                    continue
                if track.made == self.tracks[track].frames:
                    track.ended = True
                else:
                    track.made += 1
        for track, frames in plan.codec:
            assert frames in CHUNKS and track.decoded + frames <= track.made
            track.decoded += frames
            self.scheduler.gave(track, frames, self.now)
            self._deliver(track, frames)
        for track in [track for track in self.scheduler.running if track.ended and track.decoded == track.made]:
            self.scheduler.release(track)
            self.done.append(track)

    def _deliver(self, track: Track, frames: int) -> None:
        utterance = self.tracks[track]
        if track.decoded >= utterance.stops_at and utterance.stops_for:
            self.read[track] = (self.now + utterance.stops_for, 0.0)
            track.room, utterance.stops_for = UNREAD, 0.0
        elif track in self.read:
            track.room = max(0, track.room - frames)
