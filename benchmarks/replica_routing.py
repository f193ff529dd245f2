# SPDX-License-Identifier: Apache-2.0
"""Requests over several simulated GPUs: the router of the server, compared with round robin and with counting requests.

python benchmarks/replica_routing.py [--replicas 3] [--streams 1500] [--seed 1]

A discrete-event simulation with the engine's own admission and scheduler (engine_simulation.py) and the server's
router (`ReplicaSet`), which sees reports that are up to 20 ms old. Each GPU runs about 200 streams in real time.
"""

import argparse
import asyncio
import random
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.engine_simulation import (
    CODEC_CALL,
    FRAME,
    FRAME_STEP,
    LIMITS,
    MAX_BATCH,
    MAX_FRAMES,
    POLYVOX,
    PREFILL_ROW,
    Gpu,
    Simulation,
    Utterance,
    calibrated,
    capacity,
    interpolate,
    mean_frames,
    utterance,
)

from polyvox.engine.cost_model import CostModel
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.engine.replica_set import ReplicaEngine, ReplicaSet
from polyvox.engine.stream_state import StepPlan, StreamState
from polyvox.errors import Overloaded
from polyvox.models.request import Request

REPORT_INTERVAL = 0.02  # seconds
STREAM_SIZE = 8  # streams of the measured GPU that one costs, so that a run takes a minute
RUNNING = EngineStatus(EngineState.RUNNING)


@dataclass(slots=True)
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class SmallGpu(Gpu):
    """The measured GPU with streams that cost STREAM_SIZE times as much."""

    def seconds(self, plan: StepPlan[StreamState]) -> float:
        calls = [STREAM_SIZE * len(plan.slots_of_call(call)) for call in range(plan.num_calls)]
        total = sum(interpolate(FRAME_STEP, size) for size in calls) + STREAM_SIZE * PREFILL_ROW * plan.sizes()[1]
        for size, streams in Counter(plan.codec_frames.tolist()).items():
            total += interpolate(CODEC_CALL, STREAM_SIZE * size * streams)
        total *= self.slowdown * self.random.uniform(1 - self.noise, 1 + self.noise)
        return total / 1e3 * (self.stall if self.random.random() < self.stalls else 1.0)


def small_cost(slowdown: float) -> CostModel:
    """The calibrated cost model of a small GPU."""
    cost = calibrated()
    each = STREAM_SIZE * slowdown
    return CostModel(
        step=cost.step * slowdown,
        stream=cost.stream * each,
        prefill_row=cost.prefill_row * each,
        codec=cost.codec * slowdown,
        codec_frame=cost.codec_frame * each,
    )


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """An engine on a simulated GPU of its own, with the part of `ReplicaEngine` that the router uses."""

    replica: int
    clock: Clock
    simulation: Simulation
    arriving: Utterance | None = None  # the request that is being submitted
    _report: EngineLoad = field(init=False)

    def __post_init__(self) -> None:
        self._report = self.simulation.admission.current_load(0.0)

    def advance(self, moment: float) -> None:
        """Runs the engine up to a moment; the step in progress may end after it."""
        simulation = self.simulation
        while simulation.now < moment:
            if not len(simulation.streams):
                simulation.now = moment
            else:
                simulation.step()
            if simulation.now - self._report.taken_at >= REPORT_INTERVAL:
                self._report = simulation.admission.current_load(simulation.now)

    @property
    def num_active(self) -> int:
        return len(self.simulation.streams.active)

    def load(self) -> EngineLoad:
        return replace(self._report, taken_at=min(self._report.taken_at, self.clock.now))

    def status(self) -> EngineStatus:
        return RUNNING

    async def submit(self, request: Request) -> "SimulatedReplica":
        assert self.arriving is not None
        one, simulation = self.arriving, self.simulation
        now = max(simulation.now, self.clock.now)
        stream = StreamState(
            id(one), now, one.prompt_rows, MAX_FRAMES, live=one.live, first_chunk=0, may_reserve=request.may_reserve
        )
        simulation.admission.enqueue(stream, now)
        simulation.accepted[stream] = one
        return self


class Router(ABC):
    """Sends requests to replicas in an order of its own; a rejected request goes to the next one."""

    def __init__(self, replicas: Sequence[SimulatedReplica]) -> None:
        self.replicas = replicas

    @abstractmethod
    def order(self) -> Sequence[SimulatedReplica]: ...

    async def submit(self, request: Request) -> None:
        for index, replica in enumerate(order := self.order()):
            try:
                await replica.submit(request)
                return
            except Overloaded:
                if index + 1 == len(order):
                    raise


class RoundRobin(Router):
    def __init__(self, replicas: Sequence[SimulatedReplica]) -> None:
        super().__init__(replicas)
        self._next = count()

    def order(self) -> Sequence[SimulatedReplica]:
        first = next(self._next) % len(self.replicas)
        return [*self.replicas[first:], *self.replicas[:first]]


class FewestRequests(Router):
    """The replica with the fewest requests in progress, which a proxy can count without a report."""

    def order(self) -> Sequence[SimulatedReplica]:
        return sorted(self.replicas, key=lambda replica: len(replica.simulation.streams))


class SpareCapacity(Router):
    """The server's own router."""

    def __init__(self, replicas: Sequence[SimulatedReplica], draw: random.Random) -> None:
        super().__init__(replicas)
        self._set = ReplicaSet(cast(Sequence[ReplicaEngine], replicas), 1, replicas[0].clock, draw.random)

    async def submit(self, request: Request) -> None:
        await self._set.submit(request)


POLICIES: dict[str, Callable[[Sequence[SimulatedReplica], random.Random], Router]] = {
    "spare capacity": SpareCapacity,
    "fewest requests": lambda replicas, _: FewestRequests(replicas),
    "round robin": lambda replicas, _: RoundRobin(replicas),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """speeds: of each GPU. busy: streams that run on the first replica before the others start, as after restarts."""

    name: str
    speeds: Sequence[float]
    load: float  # of all GPUs together; 0: all requests at once
    num_busy: int = 0


def scenarios(num_replicas: int) -> list[Scenario]:
    equal = [1.0] * num_replicas
    return [
        Scenario("burst", equal, 0.0),
        Scenario("burst, one GPU busy", equal, 0.0, num_busy=80),
        Scenario("load 0.9, equal GPUs", equal, 0.9),
        Scenario("load 0.9, one GPU half as fast", [0.5, *equal[1:]], 0.9),
        Scenario("load 1.2, one GPU half as fast", [0.5, *equal[1:]], 1.2),
    ]


@dataclass(frozen=True, slots=True)
class RoutingOutcome:
    num_requests: int
    num_rejected: int
    first_audio: list[float]
    num_underruns: int
    shares: list[float]  # of the accepted requests, by replica

    def row(self) -> str:
        times = sorted(self.first_audio)
        p50, p95, p99 = (times[min(len(times) - 1, int(q * len(times)))] * 1000 for q in (0.5, 0.95, 0.99))
        shares = " / ".join(f"{share:.0%}" for share in self.shares)
        return (
            f"{self.num_rejected / self.num_requests:.1%} | {p50:.0f} | {p95:.0f} | {p99:.0f} "
            f"| {self.num_underruns} | {shares}"
        )


async def simulate(scenario: Scenario, policy: str, num_streams: int, seed: int) -> RoutingOutcome:
    draw = random.Random(seed)
    clock = Clock()
    limits = replace(LIMITS, num_slots=256, num_pages=256 * 36, max_batch=MAX_BATCH // STREAM_SIZE)
    replicas = []
    for index, speed in enumerate(scenario.speeds):
        gpu = SmallGpu(random.Random(seed + index), slowdown=1 / speed)
        cost = small_cost(1 / speed)
        replicas.append(SimulatedReplica(index, clock, Simulation(POLYVOX, limits, cost, gpu, [])))
    router = POLICIES[policy](replicas, draw)
    request = Request("Hello.")
    for _ in range(scenario.num_busy):
        replicas[0].arriving = utterance(draw, 0.0, slow_readers=0.0)
        await replicas[0].submit(request)
    num_before = [len(replica.simulation.accepted) for replica in replicas]
    start = 1.0 if scenario.num_busy else 0.0
    rate = scenario.load * capacity() / STREAM_SIZE * sum(scenario.speeds) / (mean_frames() * FRAME)
    moment, num_rejected = start, 0
    for _ in range(num_streams):
        moment += draw.expovariate(rate) if rate else 0.0
        clock.now = moment
        for replica in replicas:
            replica.advance(moment)
            replica.arriving = utterance(draw, moment) if replica is replicas[0] else replicas[0].arriving
        try:
            await router.submit(request)
        except Overloaded:
            num_rejected += 1
    accepted = [len(replica.simulation.accepted) - before for replica, before in zip(replicas, num_before, strict=True)]
    for replica in replicas:
        while len(replica.simulation.streams):
            replica.simulation.step()
    done = [stream for replica in replicas for stream in replica.simulation.done]
    counted = [stream for stream in done if stream.arrived_at >= start]
    return RoutingOutcome(
        num_streams,
        num_rejected,
        [stream.first_audio_at - stream.arrived_at for stream in counted if stream.first_audio_at < inf],
        sum(stream.underruns for stream in done),
        [one / max(1, sum(accepted)) for one in accepted],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare routers over several simulated GPUs.")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--streams", type=int, default=1500, help="requests of a scenario with a load")
    parser.add_argument("--burst", type=int, default=240, help="requests of a burst")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.stdout.write("| scenario | router | rejected | TTFA p50 (ms) | p95 | p99 | underruns | accepted by replica |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    for scenario in scenarios(options.replicas):
        for policy in POLICIES:
            num_streams = options.streams if scenario.load else options.burst
            outcome = asyncio.run(simulate(scenario, policy, num_streams, options.seed))
            sys.stdout.write(f"| {scenario.name} | {policy} | {outcome.row()} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
