# SPDX-License-Identifier: Apache-2.0
"""Scheduler and admission over time, on a simulated large GPU with noise and stalls.

`benchmarks/scheduling.py` is the full size; here fewer streams at each load, and the guarantees.
"""

import random
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from benchmarks.engine_simulation import (
    LIMITS,
    POLYVOX,
    Gpu,
    Simulation,
    Utterance,
    calibrated,
    quantile,
    traffic,
    utterance,
)
from benchmarks.scheduling import LOADS, measure

from polyvox.engine.cost_model import CostModel
from polyvox.engine.stream_state import StepPlan, StreamState

pytestmark = pytest.mark.slow


STREAMS, SEED, WARM_UP = 500, 7, 8.0


@pytest.fixture(scope="module")
def outcomes() -> dict[float, Any]:
    """By load: the outcome and the admitted utterances."""
    return {load: measure("Polyvox", load, traffic(load, STREAMS, SEED, WARM_UP), STREAMS, SEED) for load in LOADS}


@pytest.mark.parametrize("load", LOADS)
def test_no_admitted_stream_has_an_underrun(outcomes: dict[float, Any], load: float) -> None:
    outcome, admitted = outcomes[load]
    assert outcome.underruns == 0
    assert len(admitted) > STREAMS


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_below_capacity_fewer_than_one_percent_are_rejected(outcomes: dict[float, Any], load: float) -> None:
    assert outcomes[load][0].rejected < 0.01 * STREAMS


@pytest.mark.parametrize("load", [1.0, 1.2, 1.5, 2.0])
def test_overload_uses_at_least_ninety_percent_of_the_capacity(outcomes: dict[float, Any], load: float) -> None:
    assert outcomes[load][0].audio >= 0.9


def test_first_audio_and_queue_wait_are_bounded(outcomes: dict[float, Any]) -> None:
    assert outcomes[0.5][0].first_audio[1] < 0.12
    assert outcomes[0.9][0].first_audio[1] < 0.3
    assert outcomes[2.0][0].queue_wait[1] <= LIMITS.max_queue_seconds
    assert outcomes[2.0][0].first_audio[1] < 1.0


def test_the_other_policies_are_worse_on_the_same_streams(outcomes: dict[float, Any]) -> None:
    """First come, first served causes underruns; with a semaphore stopped readers delay all streams."""
    unlimited, _ = measure("first come, first served", 1.5, traffic(1.5, STREAMS, SEED, WARM_UP), STREAMS, SEED)
    assert unlimited.broken > 0.3
    polyvox, admitted = outcomes[1.2]
    rest = STREAMS - polyvox.rejected
    first, _ = measure("first come, first served", 1.2, admitted, rest, SEED)
    semaphore, _ = measure("global semaphore", 1.2, admitted, rest, SEED)
    assert first.underruns > 0
    assert semaphore.first_audio[1] > 2 * polyvox.first_audio[1]


def run(utterances: list[Any], slowdown: float = 1.0, max_queue: int = LIMITS.max_queue) -> Any:
    simulation = Simulation(
        POLYVOX,
        replace(LIMITS, max_queue=max_queue),
        calibrated(),
        Gpu(random.Random(SEED), slowdown=slowdown),
        utterances,
    )
    simulation.run()
    return simulation


def test_a_machine_slower_than_its_calibration_has_no_underruns() -> None:
    simulation = run(traffic(1.2, 300, SEED), slowdown=1.3)
    assert sum(stream.underruns for stream in simulation.done) == 0
    assert simulation.load.cost.growing > 1.1


def test_at_four_times_the_load_no_queued_request_times_out() -> None:
    """Queued requests are served, about when it was estimated."""
    simulation = run(traffic(4.0, 2000, SEED, warm_up=2.0), max_queue=1000)  # only the wait is a limit
    assert len(simulation.rejected) > 1000
    assert simulation.num_expired == 0
    assert sum(stream.underruns for stream in simulation.done) == 0
    waits = [stream.admitted_at - stream.arrived_at for stream in simulation.done]
    assert quantile(waits, 0.95) <= 1.5 * LIMITS.max_queue_seconds


@dataclass(slots=True)
class Cpu:
    """A device whose step with all streams takes most of a frame's time."""

    cost: CostModel
    random: random.Random

    def seconds(self, plan: StepPlan[StreamState]) -> float:
        seconds = self.cost.seconds(*plan.sizes()) * self.random.uniform(0.8, 1.2)
        return seconds * (3.0 if self.random.random() < 0.01 else 1.0)


def test_on_small_engines_at_four_times_their_load_fewer_than_one_percent_have_an_underrun() -> None:
    """Stalls and noise affect all streams at once; the headroom is for them."""
    limits = replace(LIMITS, num_slots=32, max_batch=32, num_pages=32 * 36)
    served = broken = 0
    for seed, slowdown in product(range(3), (0.7, 1.0, 1.2, 1.5)):
        cost = CostModel(0.010 * slowdown, 0.005 * slowdown, 1e-5, 0.004 * slowdown, 0.003 * slowdown)
        draw, now, arriving = random.Random(seed), 0.0, []
        while now < 60:
            now += draw.expovariate(7 / slowdown)  # its capacity is 7 / slowdown, and an utterance lasts 4 s
            arriving.append(Utterance(now, 30, max(12, int(draw.gauss(50, 15)))))
        simulation = Simulation(POLYVOX, limits, replace(cost), Cpu(cost, draw), arriving)
        simulation.run()
        assert simulation.num_expired == 0
        served += len(simulation.done)
        broken += sum(stream.underruns > 0 for stream in simulation.done)
    assert served > 1000
    assert broken < 0.01 * served


def test_a_device_with_a_large_fixed_cost_keeps_up_at_nine_tenths_of_its_capacity() -> None:
    """A step takes 34 ms however small it is: steps with half of the streams would lose a quarter of the throughput."""
    limits = replace(LIMITS, num_slots=40, max_batch=40, num_pages=40 * 36)
    cost, draw, now, arriving = CostModel(0.030, 0.0009, 1e-5, 0.004, 0.0002), random.Random(SEED), 0.0, []
    while now < 60:
        now += draw.expovariate(0.9 * 30 / 4)  # its capacity is 30, and an utterance lasts 4 s
        arriving.append(Utterance(now, 30, max(12, int(draw.gauss(50, 15)))))
    simulation = Simulation(POLYVOX, limits, replace(cost), Cpu(cost, draw), arriving)
    simulation.run()
    assert len(simulation.done) > 0.8 * len(arriving)
    assert sum(stream.underruns > 0 for stream in simulation.done) < 0.25 * len(simulation.done)  # else nine tenths


def test_a_burst_of_long_prompts_causes_no_underrun() -> None:
    quiet = traffic(0.7, 300, SEED, warm_up=2.0)
    burst = [replace(one, arrived_at=2.5, prompt_rows=2000) for one in quiet[:40]]
    simulation = run(sorted([*quiet, *burst], key=lambda one: one.arrived_at))
    assert len(simulation.done) == len(quiet) + len(burst)
    assert sum(stream.underruns for stream in simulation.done) == 0


def test_a_flood_of_files_delays_no_live_stream() -> None:
    live = traffic(0.5, 300, SEED, warm_up=2.0)
    files = [replace(one, arrived_at=one.arrived_at / 2, live=False, stops_for=0.0) for one in live]
    alone, both = run(live), run(sorted([*live, *files], key=lambda one: one.arrived_at))

    def first_audio(simulation: Any) -> float:
        times = [stream.first_audio_at - stream.arrived_at for stream in simulation.done if stream.live]
        assert len(times) == len(live)
        return float(quantile(times, 0.95))

    assert sum(stream.underruns for stream in both.done) == 0
    assert first_audio(both) < first_audio(alone) + 0.05
    assert sum(not stream.live for stream in both.done) > 0.5 * len(files)


def test_the_time_of_a_plan_grows_linearly_with_the_streams() -> None:
    """Growth, unlike speed, can be tested on any machine: four times the streams, about four times the time."""
    times = {}
    for streams in (500, 2000):
        draw = random.Random(SEED)
        limits = replace(LIMITS, headroom=5.0, max_queue=4000)
        many = [utterance(draw, 0.0, 0.0) for _ in range(streams)]
        cost, gpu = calibrated(), Gpu(draw)
        simulation = Simulation(POLYVOX, limits, cost, gpu, many)
        for _ in range(40):
            simulation.step()
        times[streams] = min(simulation.plan_seconds[-20:])
    assert times[2000] < 12 * times[500]
