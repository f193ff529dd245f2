# SPDX-License-Identifier: Apache-2.0
"""Scheduler and admission on a simulated large GPU, compared with first come, first served and a global semaphore.

python benchmarks/scheduling.py [--streams 2000] [--loads 0.5,0.7,…] [--seed 1] [--plot docs/scheduling.png]

engine_simulation.py is the simulation. The plot needs matplotlib.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.engine_simulation import (
    FRAME,
    LIMITS,
    MAX_BATCH,
    POLYVOX,
    READER_FRAMES,
    Gpu,
    Policy,
    Simulation,
    Utterance,
    calibrated,
    capacity,
    mean_frames,
    quantile,
    traffic,
)

from polyvox.engine.admission import Admission
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.stream_pages import StreamPages
from polyvox.engine.stream_state import StepPlan, StreamState
from polyvox.engine.stream_status import StreamStatus

LOADS = (0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0)


class NoPages(StreamPages[StreamState]):
    """Streams need no pages."""

    def grow(self) -> tuple[list[StreamState], list[StreamState]]:
        return [], []


class FirstComeAdmission(Admission[StreamState]):
    """Admits in order of arrival while a slot is free; no deadlines, no limit of the queue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pages = NoPages(self.load, self.streams, self.ledger)

    @property
    def max_streams(self) -> int:
        return self.load.limits.num_slots

    def enqueue(self, stream: StreamState, now: float) -> None:  # noqa: ARG002
        self.streams.add(stream)

    def expire(self, now: float) -> list[StreamState]:  # noqa: ARG002
        return []

    def admit(self, now: float) -> list[StreamState]:
        free = max(0, self.max_streams - len(self.streams.active))
        admitted = list(islice(self.streams[StreamStatus.QUEUED], free))
        for stream in admitted:
            stream.admitted_at, stream.first_chunk = now, self.load.first_chunk(now)
            stream.allocation = self.ledger.allocate(0)
            self.streams.transition(stream, StreamStatus.PREFILL, now)
        return admitted

    def release(self, stream: StreamState, now: float, completed: bool = True) -> None:  # noqa: ARG002
        assert stream.allocation is not None
        self.streams.transition(stream, StreamStatus.FINISHED, now)
        self.ledger.release(stream.allocation)


class SemaphoreAdmission(FirstComeAdmission):
    """The same with at most a full batch of streams."""

    @property
    def max_streams(self) -> int:
        return MAX_BATCH


class AllStreamsScheduler(Scheduler[StreamState]):
    """All streams and all prompts in every step, without regard to deadlines."""

    def plan(self, now: float) -> StepPlan[StreamState]:
        arrays = self.streams.used()
        self._update_gaps(arrays, now)
        waiting = self.streams.at(np.flatnonzero(arrays.active & (arrays.prompt_left() > 0)))
        reads = arrays.active & (arrays.buffer_free >= 1)
        starting = arrays.first_audio_at == inf
        ready = reads & (arrays.generated > arrays.decoded)
        first = starting & (arrays.generated >= arrays.first_chunk)
        codec = np.flatnonzero(ready & (first | ~starting | arrays.ended))
        frames = np.where(first, arrays.first_chunk, 1)[codec]
        prefill = tuple((stream, stream.prompt_left) for stream in waiting)
        generating = np.flatnonzero(reads & ~arrays.ended)
        return StepPlan(prefill, generating, np.ones_like(generating), codec, frames)


class SemaphoreScheduler(AllStreamsScheduler):
    """The same with at most a full batch of undelivered frames over all streams; stopped readers keep theirs."""

    def plan(self, now: float) -> StepPlan[StreamState]:
        plan = super().plan(now)
        arrays = self.streams.used()
        unread = READER_FRAMES - np.minimum(arrays.buffer_free[arrays.active], READER_FRAMES).astype(np.int64)
        free = max(0, MAX_BATCH - int(unread.sum()))
        return StepPlan(
            plan.prefill, plan.frame[:free], plan.frame_counts[:free], plan.codec[:free], plan.codec_frames[:free]
        )


POLICIES = {
    "Polyvox": POLYVOX,
    "first come, first served": Policy(FirstComeAdmission, AllStreamsScheduler),
    "global semaphore": Policy(SemaphoreAdmission, SemaphoreScheduler),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one run: the streams after the warm-up, but underruns of all admitted ones."""

    policy: str
    load: float
    streams: int
    rejected: int
    underruns: int
    broken: float  # share of the streams with an underrun
    audio: float  # generated per second while streams arrived, as a share of capacity
    first_audio: tuple[float, float]  # p50 and p95, from the request
    queue_wait: tuple[float, float]
    plan_seconds: float  # p50, CPU time


def measure(
    policy: str, load: float, utterances: Sequence[Utterance], streams: int, seed: int, slowdown: float = 1.0
) -> tuple[Outcome, list[Utterance]]:
    """Runs a policy on these utterances; returns the outcome and the admitted utterances."""
    gpu = Gpu(random.Random(seed), slowdown=slowdown)
    simulation = Simulation(POLICIES[policy], LIMITS, calibrated(), gpu, utterances)
    simulation.run()
    begin, end = utterances[-streams].arrived_at, utterances[-1].arrived_at
    counted = [stream for stream in simulation.done if stream.arrived_at >= begin]
    first = [stream.first_audio_at - stream.arrived_at for stream in counted if stream.first_audio_at < inf]
    waits = [stream.admitted_at - stream.arrived_at for stream in counted]
    frames = sum(frames for when, frames in simulation.frames if begin <= when <= end)
    outcome = Outcome(
        policy=policy,
        load=load,
        streams=streams,
        rejected=sum(one.arrived_at >= begin for one in simulation.rejected),
        underruns=sum(stream.underruns for stream in simulation.done),
        broken=sum(stream.underruns > 0 for stream in simulation.done) / max(len(simulation.done), 1),
        audio=frames * FRAME / (end - begin) / capacity(),
        first_audio=(quantile(first, 0.5), quantile(first, 0.95)),
        queue_wait=(quantile(waits, 0.5), quantile(waits, 0.95)),
        plan_seconds=quantile(simulation.plan_seconds, 0.5),
    )
    return outcome, sorted(simulation.accepted.values(), key=lambda one: one.arrived_at)


def compare(load: float, streams: int, seed: int) -> list[Outcome]:
    """Polyvox, the others on exactly the streams that Polyvox admitted, and one of them on all streams."""
    arrivals = traffic(load, streams, seed)
    first, admitted = measure("Polyvox", load, arrivals, streams, seed)
    rest = streams - first.rejected
    outcomes = [first, *(measure(name, load, admitted, rest, seed)[0] for name in list(POLICIES)[1:])]
    if first.rejected:
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
    parser.add_argument("--streams", type=int, default=2000, help="streams counted at each load, after the warm-up")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="shares of capacity, comma-separated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="path of the plot")
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
                f"| {load} | {one.policy} | {one.rejected / one.streams:.1%} | {one.audio:.3f} | {one.underruns} "
                f"| {one.broken:.1%} | {', '.join(first)} | {', '.join(wait)} | {1e3 * one.plan_seconds:.1f} |\n"
            )
            sys.stdout.flush()
    if options.plot:
        plot(outcomes, options.plot)


if __name__ == "__main__":
    main()
