# SPDX-License-Identifier: Apache-2.0
"""The scheduler on a simulated large GPU, compared with first come, first served and with a global semaphore.

    python benchmarks/scheduling.py [--streams 2000] [--loads 0.5,0.7,…] [--seed 1] [--plot docs/scheduling.png]

A discrete-event simulation on a fake clock: the time of a plan follows from measured step times, with noise and stalls.
--plot needs matplotlib.
"""

import argparse
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log
from typing import Any

from polyvox.engine.cost_model import CostModel
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_state import CHUNK_SIZES, SchedulerLimits, StepPlan, StreamState
from polyvox.errors import Overloaded

FRAME = 0.08
# Milliseconds by batch size, 1.7B on one H200 with CUDA graphs: frame step; codec call by its number of frames.
FRAME_STEP = ((1, 2.73), (64, 5.55), (128, 6.96), (256, 8.06), (512, 12.1), (1024, 21.0))
CODEC_CALL = ((1, 0.7), (64, 2.04), (256, 5.56), (512, 10.4), (1024, 20.1))
PREFILL_ROW = 0.007
BATCH = 1024  # the largest measured size; more is split into several calls
PROMPT_ROWS = (10, 60)
MEDIAN_FRAMES, SPREAD, FRAMES = 60, 0.6, (12, 400)  # lognormal
MAX_FRAMES = 500  # the only length that the scheduler knows
READER_FRAMES = 25  # buffer of a reader that has stopped: 2 s
WARM_UP = 10.0  # seconds of traffic before the counted streams, about two utterances
LOADS = (0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0)


def interpolate(points: Sequence[tuple[int, float]], size: int) -> float:
    """Milliseconds of a call of this size, linear between the measured sizes; several calls above the last."""
    calls, rest = divmod(size, BATCH)
    total = calls * points[-1][1]
    for (a, low), (b, high) in pairwise(points):
        if 0 < rest <= b:
            return total + low + (high - low) * (rest - a) / (b - a)
    return total


@dataclass(slots=True)
class Gpu:
    """The time of a plan: frame step, prompt rows and one codec call per chunk size, in sequence.

    A chunk of n frames costs as much as n streams of one frame: the codec is compute-bound.
    """

    random: random.Random
    noise: float = 0.2
    stalls: float = 0.01
    stall: float = 3.0
    slower: float = 1.0  # factor on the calibrated times

    def seconds(self, plan: StepPlan) -> float:
        total = interpolate(FRAME_STEP, len(plan.frame)) + PREFILL_ROW * sum(rows for _, rows in plan.prefill)
        for size, streams in Counter(frames for _, frames in plan.codec).items():
            total += interpolate(CODEC_CALL, size * streams)
        total *= self.slower * self.random.uniform(1 - self.noise, 1 + self.noise)
        return total / 1e3 * (self.stall if self.random.random() < self.stalls else 1.0)


def calibrated() -> CostModel:
    """The cost model after calibration: linear between the smallest and the largest call."""
    (small, frame_small), (large, frame_large) = FRAME_STEP[0], FRAME_STEP[-1]
    (_, codec_small), (_, codec_large) = CODEC_CALL[0], CODEC_CALL[-1]
    stream = (frame_large - frame_small) / (large - small)
    codec_frame = (codec_large - codec_small) / (large - small)
    step, codec = frame_small - small * stream, codec_small - small * codec_frame
    return CostModel(step / 1e3, stream / 1e3, PREFILL_ROW / 1e3, codec / 1e3, codec_frame / 1e3)


# 2,048 slots with 46 s of context each fit on the GPU.
LIMITS = SchedulerLimits(
    frame_seconds=FRAME,
    slots=2048,
    pages=2048 * 36,
    page_size=16,
    ring=64,
    max_queue=64,
    max_queue_seconds=1.0,
    prefill_rows=2048,
    batch=BATCH,
)


def ledger(limits: SchedulerLimits) -> SlotLedger:
    return SlotLedger(limits.slots, limits.pages)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A request with facts that only the simulation knows: its length, and when its reader stops and for how long."""

    arrived: float
    prompt_rows: int
    frames: int
    stops_at: float = inf  # frames
    stops_for: float = 0.0  # seconds
    live: bool = True


def utterance(draw: random.Random, arrived: float = 0.0, slow_readers: float = 0.01) -> Utterance:
    """A random utterance; one reader in a hundred stops for 3 s at the tenth frame."""
    frames = int(min(max(draw.lognormvariate(log(MEDIAN_FRAMES), SPREAD), FRAMES[0]), FRAMES[1]))
    slow = draw.random() < slow_readers
    return Utterance(arrived, draw.randint(*PROMPT_ROWS), frames, 10 if slow else inf, 3.0 if slow else 0.0)


def mean_frames() -> float:
    draw = random.Random(0)
    return sum(utterance(draw).frames for _ in range(20_000)) / 20_000


def capacity() -> float:
    """Audio seconds per second of this GPU without noise and with full steps, including prefill."""
    rows = sum(PROMPT_ROWS) / 2 / mean_frames()  # per frame
    return (
        BATCH
        * FRAME
        / (interpolate(FRAME_STEP, BATCH) + interpolate(CODEC_CALL, BATCH) + BATCH * rows * PREFILL_ROW)
        * 1e3
    )


def traffic(load: float, streams: int, seed: int, warm_up: float = WARM_UP) -> list[Utterance]:
    """Poisson arrivals at a share of the capacity: the warm-up, then the counted streams."""
    draw = random.Random(seed)
    rate = load * capacity() / (mean_frames() * FRAME)
    now = 0.0
    found: list[Utterance] = []
    while len(found) < streams or found[-streams].arrived < warm_up:
        now += draw.expovariate(rate)
        found.append(utterance(draw, now))
    return found


class FirstComeFirstServed(Scheduler):
    """All streams in every step, prompts in order of arrival; no deadlines, and slots as the only admission limit."""

    def max_running(self) -> int:
        return self.limits.slots

    def offer(self, track: StreamState, now: float) -> None:  # noqa: ARG002
        self.waiting.append(track)

    def admit(self, now: float) -> tuple[list[StreamState], list[StreamState]]:
        admitted = []
        while self.waiting and len(self.running) < self.max_running():
            admitted.append(self.waiting.popleft())
            admitted[-1].admitted, admitted[-1].first_chunk = now, self.first_chunk(now)
            self.running.append(admitted[-1])
        return admitted, []

    def release(self, track: StreamState, now: float) -> None:  # noqa: ARG002
        self.running.remove(track)

    def plan(self, now: float) -> StepPlan:
        for track in self.running:
            self._hold(track, now)
        prefill = [(track, track.prompt_left) for track in self.running if track.prompt_left]
        frame = [track for track in self.running if not track.ended and track.room >= 1]
        codec = [(track, 1) for track in self.running if track.made > track.decoded and track.room >= 1]
        first = [(t, t.first_chunk) for t, _ in codec if t.first_audio is None and t.made >= t.first_chunk]
        codec = [(track, 1) for track, _ in codec if track.first_audio is not None or track.ended] + first
        return StepPlan(tuple(prefill), tuple(frame), tuple(dict(codec).items()))


class GlobalSemaphore(FirstComeFirstServed):
    """A full batch of streams that share one limit on unread frames; a stopped reader keeps its share."""

    def max_running(self) -> int:
        return BATCH

    def plan(self, now: float) -> StepPlan:
        plan = super().plan(now)
        unread = sum(int(READER_FRAMES - track.room) for track in self.running if track.room < READER_FRAMES)
        free = max(0, BATCH - unread)
        return StepPlan(plan.prefill, plan.frame[:free], plan.codec[:free])


POLICIES: dict[str, type[Scheduler]] = {
    "Polyvox": Scheduler,
    "first come, first served": FirstComeFirstServed,
    "global semaphore": GlobalSemaphore,
}


class Simulation:
    """Runs a scheduler as the engine's loop does; the result of a frame is known one step later."""

    def __init__(self, scheduler: Scheduler, gpu: Gpu, utterances: Sequence[Utterance]) -> None:
        self.scheduler, self.gpu, self.now = scheduler, gpu, 0.0
        self.coming = deque(utterances)
        self.tracks: dict[StreamState, Utterance] = {}
        self.done: list[StreamState] = []
        self.refused: list[Utterance] = []
        self.expired = 0  # of those, requests that expired in the queue
        self.frames: list[tuple[float, int]] = []  # of each step: end time, frames
        self.plan_seconds: list[float] = []  # in real time
        self._in_flight: deque[tuple[StreamState, ...]] = deque()
        self._stopped: dict[StreamState, float] = {}  # stopped readers, and when they resume
        self._ids = 0

    def run(self) -> None:
        while self.coming or self.scheduler.running or self.scheduler.waiting:
            self.step()

    def step(self) -> StepPlan:
        self._arrive()
        _, expired = self.scheduler.admit(self.now)
        self.refused += [self.tracks.pop(track) for track in expired]
        self.expired += len(expired)
        for track in [track for track, until in self._stopped.items() if until <= self.now]:
            track.room = inf
            del self._stopped[track]
        began = time.perf_counter()
        plan = self.scheduler.plan(self.now)
        self.plan_seconds.append(time.perf_counter() - began)
        if plan or self._in_flight:
            seconds = self.gpu.seconds(plan)
            self.now += seconds
            self._apply(plan)
            self.scheduler.observe(plan, seconds)
            self.frames.append((self.now, len(plan.frame)))
        else:
            moments = [*self._stopped.values(), *(track.arrived + 1e-6 for track in list(self.coming)[:1])]
            assert moments, "no work and no future event"
            self.now = max(self.now, min(moments))
        return plan

    def _arrive(self) -> None:
        while self.coming and self.coming[0].arrived <= self.now:
            one = self.coming.popleft()
            self._ids += 1
            track = StreamState(self._ids, one.arrived, one.prompt_rows, MAX_FRAMES, live=one.live, first_chunk=0)
            try:
                self.scheduler.offer(track, self.now)
                self.tracks[track] = one
            except Overloaded:
                self.refused.append(one)

    def _apply(self, plan: StepPlan) -> None:
        for track, rows in plan.prefill:
            track.prefilled += rows
        for track in plan.frame:
            assert not track.prompt_left
            track.started += 1
        if plan.frame:
            self._in_flight.append(plan.frame)
        while len(self._in_flight) > bool(plan.frame):
            for track in self._in_flight.popleft():
                track.ended = track.ended or track.made == self.tracks[track].frames
                track.made += not track.ended
        for track, frames in plan.codec:
            assert frames in CHUNK_SIZES
            assert track.decoded + frames <= track.made
            assert frames <= track.room
            self._give(track, frames)
        for track in [track for track in self.scheduler.running if track.ended and track.decoded == track.made]:
            if track.held:
                self.scheduler.gave(track, track.held, self.now)
            self.scheduler.release(track, self.now)
            self.done.append(track)

    def _give(self, track: StreamState, frames: int) -> None:
        stops_at = self.tracks[track].stops_at
        if track.decoded < stops_at <= track.decoded + frames:
            track.room = READER_FRAMES
            self._stopped[track] = self.now + self.tracks[track].stops_for
        elif track in self._stopped:
            track.room -= frames
        track.decoded += frames
        track.held += frames
        if self.scheduler.due(track, self.now) or (track.ended and track.decoded == track.made):
            self.scheduler.gave(track, track.held, self.now)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: the streams after the warm-up, and the underruns of all admitted streams."""

    policy: str
    load: float
    streams: int
    refused: int
    underruns: int
    broken: float  # share of streams with an underrun
    audio: float  # generated per second while streams arrived, as a share of the capacity
    first_audio: tuple[float, float]  # p50 and p95, from the request
    queue_wait: tuple[float, float]
    plan_seconds: float  # median, of the real clock


def measure(
    policy: str, load: float, utterances: Sequence[Utterance], streams: int, seed: int, slower: float = 1.0
) -> tuple[Outcome, list[Utterance]]:
    """Runs one policy to the end; also returns the admitted utterances."""
    gpu = Gpu(random.Random(seed), slower=slower)
    simulation = Simulation(POLICIES[policy](LIMITS, calibrated(), ledger(LIMITS)), gpu, utterances)
    simulation.run()
    begin, end = utterances[-streams].arrived, utterances[-1].arrived
    counted = [track for track in simulation.done if track.arrived >= begin]
    first = [track.first_audio - track.arrived for track in counted if track.first_audio is not None]
    waits = [track.admitted - track.arrived for track in counted if track.admitted is not None]
    made = sum(frames for when, frames in simulation.frames if begin <= when <= end)
    outcome = Outcome(
        policy=policy,
        load=load,
        streams=streams,
        refused=sum(one.arrived >= begin for one in simulation.refused),
        underruns=sum(track.underruns for track in simulation.done),
        broken=sum(track.underruns > 0 for track in simulation.done) / max(len(simulation.done), 1),
        audio=made * FRAME / (end - begin) / capacity(),
        first_audio=(share_of(first, 0.5), share_of(first, 0.95)),
        queue_wait=(share_of(waits, 0.5), share_of(waits, 0.95)),
        plan_seconds=share_of(simulation.plan_seconds, 0.5),
    )
    return outcome, sorted(simulation.tracks.values(), key=lambda one: one.arrived)


def share_of(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def compare(load: float, streams: int, seed: int) -> list[Outcome]:
    """Polyvox on the traffic, the others on the streams that Polyvox admitted, and one without admission control."""
    arrivals = traffic(load, streams, seed)
    first, admitted = measure("Polyvox", load, arrivals, streams, seed)
    rest = streams - first.refused
    outcomes = [first, *(measure(name, load, admitted, rest, seed)[0] for name in list(POLICIES)[1:])]
    if first.refused:
        unlimited, _ = measure("first come, first served", load, arrivals, streams, seed)
        outcomes.append(replace(unlimited, policy="first come, first served, none rejected"))
    return outcomes


def plot(outcomes: Sequence[Outcome], path: str) -> None:
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    figure, axes = pyplot.subplots(1, 3, figsize=(9.5, 3.2), layout="constrained")
    panels: list[tuple[str, Any]] = [
        ("TTFA p95, s", lambda one: one.first_audio[1]),
        ("queue wait p95, s", lambda one: max(one.queue_wait[1], 1e-2)),
        ("streams with an underrun, %", lambda one: 100 * one.broken),
    ]
    for axis, (title, value) in zip(axes, panels, strict=True):
        for name, style in zip(POLICIES, ("o-", "s--", "^:"), strict=True):
            mine = [one for one in outcomes if one.policy == name]
            axis.plot([one.load for one in mine], [value(one) for one in mine], style, label=name, markersize=4)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("offered load (1 = capacity)", fontsize=9)
        axis.grid(alpha=0.3, which="both")
        if "%" not in title:
            axis.set_yscale("log")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000, help="counted streams per load, after the warm-up")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="comma-separated shares of the capacity")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="file for the plot")
    options = parser.parse_args()
    sys.stdout.write(f"capacity {capacity():.0f} audio seconds per second, {mean_frames():.1f} frames per utterance\n")
    sys.stdout.write("| load | policy | rejected | audio / capacity | underruns | streams with an underrun ")
    sys.stdout.write("| TTFA p50, p95, ms | queue wait p50, p95, ms | plan, ms |\n" + "|---" * 9 + "|\n")
    outcomes = []
    for load in map(float, options.loads.split(",")):
        for one in compare(load, options.streams, options.seed):
            outcomes.append(one)
            first, wait = ([f"{1e3 * value:.0f}" for value in pair] for pair in (one.first_audio, one.queue_wait))
            sys.stdout.write(
                f"| {load} | {one.policy} | {one.refused / one.streams:.1%} | {one.audio:.3f} | {one.underruns} "
                f"| {one.broken:.1%} | {', '.join(first)} | {', '.join(wait)} | {1e3 * one.plan_seconds:.1f} |\n"
            )
            sys.stdout.flush()
    if options.plot:
        plot(outcomes, options.plot)


if __name__ == "__main__":
    main()
