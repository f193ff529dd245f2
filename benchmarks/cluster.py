# SPDX-License-Identifier: Apache-2.0
"""A simulated cluster: many GPUs with the real scheduler and admission control, behind routers with old reports.

python benchmarks/cluster.py [--gpus 64] [--listeners 100000] [--routing round-robin,capacity] [--plot FILE]

Requests arrive at random at one of the routers, which chooses a replica with the code of `polyvox.ray`. Each replica
reports its load once a second; a router also knows the number of requests of a replica at its own last request there.
At half of the counted time one node of `--node` GPUs fails: its streams are lost, and their requests are sent again.
"""

import argparse
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.engine_simulation import (
    FRAME,
    LIMITS,
    POLYVOX,
    Gpu,
    Simulation,
    Utterance,
    calibrated,
    mean_frames,
    quantile,
    utterance,
)

from polyvox.engine.stream_state import StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.ray.routing import ReplicaLoad, rank_replicas

REPORT_INTERVAL = 1.0  # seconds
REPORT_DELAY = 0.1  # seconds from a report to the routers: the loop of Serve's controller
ROUTE_SECONDS = 0.01  # from the proxy to the engine, as measured on Ray Serve
DETECT_SECONDS = 1.0  # after which the routers know that a node is dead
SLOWDOWN = 1.5  # of a slow GPU


@dataclass(slots=True)
class Replica:
    simulation: Simulation
    report: ReplicaLoad | None = None
    reported_requests: int = 0
    num_ended: int = 0  # at the last report
    next_report: float = 0.0
    dead: bool = False
    pending: deque[tuple[float, ReplicaLoad, int]] = field(default_factory=deque)  # reports on their way

    @property
    def num_requests(self) -> int:
        simulation = self.simulation
        return len(simulation.streams) + len(simulation.arriving)

    def advance(self, until: float) -> None:
        """Runs steps until this time, and reports when it is due."""
        simulation = self.simulation
        while simulation.now < until:
            if not len(simulation.streams) and not simulation.arriving:
                simulation.now = until
                break
            if not simulation.streams.active and simulation.arriving and simulation.arriving[0].arrived_at > until:
                simulation.now = until
                break
            simulation.step()
        while self.next_report <= until:
            load, streams = simulation.load, simulation.streams
            capacity, queued = load.capacity(), len(streams[StreamStatus.QUEUED])
            num_live = load.snapshot(simulation.now).num_live
            ended = len(simulation.done)
            report = ReplicaLoad(capacity, capacity - num_live - queued, ended - self.num_ended)
            self.pending.append((self.next_report + REPORT_DELAY, report, self.num_requests))
            self.num_ended = ended
            self.next_report += REPORT_INTERVAL

    def receive_reports(self, now: float) -> None:
        while self.pending and self.pending[0][0] <= now:
            _, self.report, self.reported_requests = self.pending.popleft()


class Cluster:
    """Replicas and routers. routing: capacity, most-free (always the replica with the most free capacity) or
    round-robin."""

    def __init__(self, num_gpus: int, num_slow: int, routing: str, seed: int) -> None:
        self.routing, self.draw = routing, random.Random(seed)
        self.replicas = []
        for index in range(num_gpus):
            slowdown = SLOWDOWN if index < num_slow else 1.0
            gpu = Gpu(random.Random(seed + index), slowdown=slowdown)
            cost = calibrated()
            scaled = replace(cost, step=cost.step * slowdown, stream=cost.stream * slowdown)
            scaled = replace(scaled, prefill_row=cost.prefill_row * slowdown, codec=cost.codec * slowdown)
            scaled = replace(scaled, codec_frame=cost.codec_frame * slowdown)
            replica = Replica(Simulation(POLYVOX, LIMITS, scaled, gpu, ()))
            replica.next_report = REPORT_INTERVAL * index / num_gpus
            self.replicas.append(replica)
        self.known = [dict[int, int]() for _ in range(num_gpus)]  # of each router: requests by replica
        self.turn = self.draw.randrange(num_gpus)
        self.avoided: set[int] = set()  # replicas that routers know to be dead

    def route(self, one: Utterance) -> int:
        """Sends a request to a replica and returns its index."""
        now = one.arrived_at
        alive = [index for index in range(len(self.replicas)) if index not in self.avoided]
        router = self.known[self.draw.randrange(len(self.known))]
        if self.routing == "round-robin":
            self.turn += 1
            index = alive[self.turn % len(alive)]
        else:
            loads = [self._load(index, router, now) for index in alive]
            if self.routing == "capacity":
                index = alive[rank_replicas(loads, self.draw)[0]]
            else:
                index = max(alive, key=lambda each: _free(loads[alive.index(each)]))
        replica = self.replicas[index]
        router[index] = replica.num_requests + 1
        replica.simulation.arriving.append(replace(one, arrived_at=now + ROUTE_SECONDS))
        return index

    def _load(self, index: int, router: dict[int, int], now: float) -> ReplicaLoad | None:
        replica = self.replicas[index]
        replica.receive_reports(now)
        if replica.report is None:
            return None
        since = router.get(index, replica.reported_requests) - replica.reported_requests
        return replace(replica.report, free=replica.report.free - since)


def _free(load: ReplicaLoad | None) -> float:
    return inf if load is None else load.free


@dataclass(frozen=True, slots=True)
class Phase:
    """Results of requests that arrived in a phase of a run."""

    name: str
    requests: int
    rejected: int
    lost: int  # streams that were cut off
    underruns: int  # streams with an underrun
    first_audio: tuple[float, float, float]  # p50, p95, p99 in seconds
    streams: float  # mean number of streams at the end of the phase
    spread: float  # largest less smallest share of capacity in use over the replicas, at the end


def run(
    num_gpus: int, num_listeners: int, routing: str, num_slow: int, node: int, seconds: float, seed: int
) -> list[Phase]:
    """Runs a cluster with this many listeners on average; returns the phases before and after a node's death."""
    draw = random.Random(seed)
    cluster = Cluster(num_gpus, num_slow, routing, seed)
    rate = num_listeners / (mean_frames() * FRAME)
    warm_up, death, end = 12.0, 12.0 + seconds / 2, 12.0 + seconds
    heap = [(0.0, index) for index in range(num_gpus)]
    now, phases = 0.0, [("before", warm_up, death), ("after the death of a node", death, end)]
    lost: list[Utterance] = []
    marks: list[tuple[float, float]] = []  # streams and spread at the end of each phase
    dead = range(num_gpus - node, num_gpus)
    while now < end:
        now += draw.expovariate(rate)
        while heap[0][0] < now:
            _, index = heapq.heappop(heap)
            if not cluster.replicas[index].dead:
                cluster.replicas[index].advance(now)
                heapq.heappush(heap, (max(cluster.replicas[index].simulation.now, now), index))
        if not marks and now >= death:
            marks.append(_state(cluster))
            for index in dead:
                replica = cluster.replicas[index]
                replica.dead = True
                lost += [replica.simulation.accepted[stream] for stream in replica.simulation.streams]
                lost += replica.simulation.arriving
        if marks and not cluster.avoided and now >= death + DETECT_SECONDS:
            cluster.avoided = set(dead)
        one = utterance(draw, now)
        index = cluster.route(one)
        if cluster.replicas[index].dead:  # Serve finds the actor dead and sends the request to another replica
            cluster.avoided.add(index)
            cluster.route(one)
    marks.append(_state(cluster))
    for replica in cluster.replicas:
        if not replica.dead:
            replica.advance(end + 30.0)
    return [
        _summary(cluster, name, begin, until, [one for one in lost if name != "before"], mark)
        for (name, begin, until), mark in zip(phases, marks, strict=True)
    ]


def _state(cluster: Cluster) -> tuple[float, float]:
    alive = [replica.simulation for replica in cluster.replicas if not replica.dead]
    shares = [len(each.streams) / each.load.capacity() for each in alive]
    return sum(len(each.streams) for each in alive), max(shares) - min(shares)


def _summary(
    cluster: Cluster, name: str, begin: float, until: float, lost: Sequence[Utterance], mark: tuple[float, float]
) -> Phase:
    done: list[StreamState] = []
    rejected = 0
    for replica in cluster.replicas:
        simulation = replica.simulation
        if replica.dead and name != "before":
            continue
        done += [stream for stream in simulation.done if begin <= stream.arrived_at < until]
        rejected += sum(begin <= one.arrived_at < until for one in simulation.rejected)
    first = [
        stream.first_audio_at - stream.arrived_at + ROUTE_SECONDS for stream in done if stream.first_audio_at < inf
    ]
    return Phase(
        name,
        len(done) + rejected,
        rejected,
        len(lost),
        sum(stream.underruns > 0 for stream in done),
        (quantile(first, 0.5), quantile(first, 0.95), quantile(first, 0.99)),
        *mark,
    )


def plot(runs: Sequence[tuple[str, Sequence[Phase]]], path: str) -> None:
    """Bars of each routing, before and after the death of a node."""
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    figure, axes = pyplot.subplots(1, 3, figsize=(9.5, 3.0), layout="constrained")
    panels: list[tuple[str, Callable[[Phase], float]]] = [
        ("rejected, %", lambda one: 100 * one.rejected / one.requests),
        ("TTFA p95, ms", lambda one: 1000 * one.first_audio[1]),
        ("spread of load over replicas", lambda one: one.spread),
    ]
    for axis, (title, value) in zip(axes, panels, strict=True):
        for position, (_, phases) in enumerate(runs):
            for offset, (phase, color) in enumerate(zip(phases, ("tab:blue", "tab:orange"), strict=True)):
                label = phase.name if position == 0 else None
                axis.bar(position + 0.4 * offset - 0.2, value(phase), 0.38, color=color, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(runs)), [name for name, _ in runs], fontsize=8)
        axis.grid(alpha=0.3, axis="y")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--listeners", type=int, default=100_000)
    parser.add_argument("--routing", default="capacity,round-robin", help="capacity, most-free, round-robin")
    parser.add_argument("--slow", type=int, default=0, help=f"GPUs of which every step takes {SLOWDOWN} times as long")
    parser.add_argument("--node", type=int, default=8, help="GPUs of the node that fails")
    parser.add_argument("--seconds", type=float, default=16.0, help="counted, after 12 s of warm-up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="path of the plot; needs matplotlib")
    options = parser.parse_args()
    columns = ("routing", "phase", "requests", "rejected", "lost", "with an underrun", "TTFA p50, p95, p99, ms")
    sys.stdout.write(f"| {' | '.join(columns)} | streams | spread of load |\n" + "|---" * 9 + "|\n")
    runs = []
    for routing in options.routing.split(","):
        phases = run(
            options.gpus, options.listeners, routing, options.slow, options.node, options.seconds, options.seed
        )
        runs.append((routing, phases))
        for one in phases:
            first = ", ".join(f"{1000 * value:.0f}" for value in one.first_audio)
            counts = f"{one.requests:,} | {one.rejected:,} | {one.lost:,} | {one.underruns:,}"
            sys.stdout.write(
                f"| {routing} | {one.name} | {counts} | {first} | {one.streams:,.0f} | {one.spread:.2f} |\n"
            )
            sys.stdout.flush()
    if options.plot:
        plot(runs, options.plot)


if __name__ == "__main__":
    main()
