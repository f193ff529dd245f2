"""The scheduler over time: a simulated large GPU with noise and stalls, and lengths that nobody told it.

The full size is `benchmarks/scheduling.py`; here fewer streams at each load, and the promises that must hold.
"""

import importlib.util
import random
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from polyvox.engine.cost_model import CostModel
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.stream_state import StepPlan


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "scheduling.py"
    spec = importlib.util.spec_from_file_location("scheduling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scheduling"] = module
    spec.loader.exec_module(module)
    return module


scheduling = benchmark()
STREAMS, SEED, WARM_UP = 500, 7, 8.0


@pytest.fixture(scope="module")
def outcomes() -> dict[float, Any]:
    """By load: what happened, and who was let in."""
    return {
        load: scheduling.measure("Polyvox", load, scheduling.traffic(load, STREAMS, SEED, WARM_UP), STREAMS, SEED)
        for load in scheduling.LOADS
    }


@pytest.mark.parametrize("load", scheduling.LOADS)
def test_no_admitted_stream_ever_runs_dry(outcomes: dict[float, Any], load: float) -> None:
    outcome, admitted = outcomes[load]
    assert outcome.underruns == 0
    assert len(admitted) > STREAMS


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_below_capacity_hardly_anyone_is_refused(outcomes: dict[float, Any], load: float) -> None:
    assert outcomes[load][0].refused < 0.01 * STREAMS


@pytest.mark.parametrize("load", [1.0, 1.2, 1.5, 2.0])
def test_at_overload_the_machine_is_used(outcomes: dict[float, Any], load: float) -> None:
    assert outcomes[load][0].audio >= 0.9


def test_first_audio_stays_early_and_waiting_is_bounded(outcomes: dict[float, Any]) -> None:
    assert outcomes[0.5][0].first_audio[1] < 0.12
    assert outcomes[0.9][0].first_audio[1] < 0.3
    assert outcomes[2.0][0].queue_wait[1] <= scheduling.LIMITS.max_queue_seconds
    assert outcomes[2.0][0].first_audio[1] < 1.0


def test_with_the_same_streams_the_other_ways_are_worse(outcomes: dict[float, Any]) -> None:
    """First come, first served starves those who listen; a semaphore makes all wait for those who do not read."""
    open_door, _ = scheduling.measure(
        "first come, first served", 1.5, scheduling.traffic(1.5, STREAMS, SEED, WARM_UP), STREAMS, SEED
    )
    assert open_door.broken > 0.3
    mine, admitted = outcomes[1.2]
    rest = STREAMS - mine.refused
    first, _ = scheduling.measure("first come, first served", 1.2, admitted, rest, SEED)
    semaphore, _ = scheduling.measure("global semaphore", 1.2, admitted, rest, SEED)
    assert first.underruns > 0
    assert semaphore.first_audio[1] > 2 * mine.first_audio[1]


def run(utterances: list[Any], slower: float = 1.0, queue: int = scheduling.LIMITS.max_queue) -> Any:
    simulation = scheduling.Simulation(
        Scheduler(
            replace(scheduling.LIMITS, max_queue=queue), scheduling.calibrated(), scheduling.ledger(scheduling.LIMITS)
        ),
        scheduling.Gpu(random.Random(SEED), slower=slower),
        utterances,
    )
    simulation.run()
    return simulation


def test_a_machine_slower_than_it_was_measured_admits_fewer_and_starves_none() -> None:
    simulation = run(scheduling.traffic(1.2, 300, SEED), slower=1.3)
    assert sum(track.underruns for track in simulation.done) == 0
    assert simulation.scheduler.cost.growing > 1.1


def test_at_four_times_the_load_nobody_is_refused_after_having_waited() -> None:
    """Admission decides at the door: whoever is let into the queue is served, about when it was foreseen."""
    simulation = run(scheduling.traffic(4.0, 2000, SEED, warm_up=2.0), queue=1000)  # so only the wait is a limit
    assert len(simulation.refused) > 1000
    assert simulation.expired == 0
    assert sum(track.underruns for track in simulation.done) == 0
    waits = [track.admitted - track.arrived for track in simulation.done]
    assert scheduling.share_of(waits, 0.95) <= 1.5 * scheduling.LIMITS.max_queue_seconds


@dataclass(slots=True)
class Cpu:
    """A device on which one step with all streams takes most of a frame."""

    cost: CostModel
    random: random.Random

    def seconds(self, plan: StepPlan) -> float:
        seconds = self.cost.seconds(*plan.sizes()) * self.random.uniform(0.8, 1.2)
        return seconds * (3.0 if self.random.random() < 0.01 else 1.0)


def test_on_small_engines_at_four_times_their_load_hardly_a_player_runs_dry() -> None:
    """Stalls and noise are felt by all who listen at once; headroom is what is kept for them."""
    limits = replace(scheduling.LIMITS, slots=32, batch=32, pages=32 * 36)
    served = dry = 0
    for seed, slower in product(range(3), (0.7, 1.0, 1.2, 1.5)):
        cost = CostModel(0.010 * slower, 0.005 * slower, 1e-5, 0.004 * slower, 0.003 * slower)
        draw, now, coming = random.Random(seed), 0.0, []
        while now < 60:
            now += draw.expovariate(7 / slower)  # it keeps 7 / slower fed, and an utterance lasts 4 s
            coming.append(scheduling.Utterance(now, 30, max(12, int(draw.gauss(50, 15)))))
        simulation = scheduling.Simulation(
            Scheduler(limits, replace(cost), scheduling.ledger(limits)), Cpu(cost, draw), coming
        )
        simulation.run()
        assert simulation.expired == 0
        served += len(simulation.done)
        dry += sum(track.underruns > 0 for track in simulation.done)
    assert served > 1000
    assert dry < 0.01 * served


def test_a_burst_of_long_prompts_starves_nobody() -> None:
    quiet = scheduling.traffic(0.7, 300, SEED, warm_up=2.0)
    burst = [replace(one, arrived=2.5, prompt_rows=2000) for one in quiet[:40]]
    simulation = run(sorted([*quiet, *burst], key=lambda one: one.arrived))
    assert len(simulation.done) == len(quiet) + len(burst)
    assert sum(track.underruns for track in simulation.done) == 0


def test_a_flood_of_files_changes_nothing_for_those_who_listen() -> None:
    live = scheduling.traffic(0.5, 300, SEED, warm_up=2.0)
    files = [replace(one, arrived=one.arrived / 2, live=False, stops_for=0.0) for one in live]
    alone, both = run(live), run(sorted([*live, *files], key=lambda one: one.arrived))

    def first_audio(simulation: Any) -> float:
        times = [track.first_audio - track.arrived for track in simulation.done if track.live]
        assert len(times) == len(live)
        return float(scheduling.share_of(times, 0.95))

    assert sum(track.underruns for track in both.done) == 0
    assert first_audio(both) < first_audio(alone) + 0.05
    assert sum(not track.live for track in both.done) > 0.5 * len(files)


def test_a_plan_for_two_thousand_streams_costs_little_of_a_step() -> None:
    """Growth, not speed, can be tested on any machine: four times the streams, about four times the time."""
    times = {}
    for streams in (500, 2000):
        draw = random.Random(SEED)
        scheduler = Scheduler(
            replace(scheduling.LIMITS, headroom=5.0, max_queue=4000),
            scheduling.calibrated(),
            scheduling.ledger(scheduling.LIMITS),
        )
        many = [scheduling.utterance(draw, 0.0, 0.0) for _ in range(streams)]
        simulation = scheduling.Simulation(scheduler, scheduling.Gpu(draw), many)
        for _ in range(40):
            simulation.step()
        times[streams] = min(simulation.plan_seconds[-20:])
    assert times[2000] < 12 * times[500]
