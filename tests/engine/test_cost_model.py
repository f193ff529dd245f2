# SPDX-License-Identifier: Apache-2.0
"""The cost model follows the machine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedulers import GPU, build, playing, running
from polyvox.engine.cost_model import LEARNING_RATE, CostModel
from polyvox.engine.load import CPU_SLOWDOWN, Slowdown
from polyvox.engine.stream_state import StepPlan


def test_the_cost_model_learns_a_slower_machine_and_ignores_a_stall() -> None:
    engine = running(*(playing(1.0) for _ in range(40)), num_slots=5000)
    before, plan = engine.load.capacity(), engine.plan(10.0)
    expected = GPU.seconds(*plan.sizes())
    engine.load.observe(plan.step, expected * 50)
    assert engine.load.capacity() > before * 0.95
    for _ in range(400):
        engine.load.observe(plan.step, expected * 1.5)
    assert engine.cost.seconds(*plan.sizes()) == pytest.approx(expected * 1.5, rel=0.01)
    for _ in range(400):
        engine.load.observe(plan.step, expected)
    assert engine.cost.seconds(*plan.sizes()) == pytest.approx(expected, rel=0.01)


def test_small_quick_steps_do_not_change_the_prediction_of_full_ones() -> None:
    cost = replace(GPU)
    for _ in range(2000):
        cost.observe(1, 0, 1, 1, 1, 0.5 * GPU.seconds(1, 0, 1))
    assert cost.seconds(1, 0, 1) == pytest.approx(0.5 * GPU.seconds(1, 0, 1), rel=0.01)
    assert cost.growing > 0.99


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600), st.integers(0, 600), st.floats(0, 1e3))))
def test_corrections_stay_within_their_bounds(steps: list[tuple[int, int, int, float]]) -> None:
    cost = replace(GPU)
    for streams, rows, frames, seconds in steps:
        cost.observe(streams, rows, frames, 1, 1, seconds)
    assert 0.2 <= cost.fixed <= 10
    assert 0.2 <= cost.growing <= 10


def test_prompts_and_codec_calls_reduce_the_capacity() -> None:
    engine = build(num_slots=5000)
    before = engine.load.capacity()
    slots = np.arange(512)
    plan = StepPlan(((playing(1.0), 500),), slots, np.ones_like(slots), slots, 1 + slots % 2)
    for _ in range(int(3 / LEARNING_RATE)):
        engine.load.observe(plan, engine.cost.seconds(*plan.sizes()))
    assert engine.load.capacity() < before * 0.9


def test_a_cpu_has_less_capacity_than_calibrated_until_two_seconds_are_measured() -> None:
    cpu = CostModel(step=0.004, stream=0.0025, prefill_row=1e-4, codec=0.004, codec_frame=0.0025)
    engine = running(*(playing(1.0) for _ in range(3)), cost=cpu)
    calibrated, plan = engine.load.capacity(), engine.plan(10.0)
    engine.load.slowdown = Slowdown(CPU_SLOWDOWN)
    assert engine.load.capacity() < calibrated
    seconds = engine.cost.seconds(*plan.sizes())
    for _ in range(int(1.5 / seconds)):
        engine.load.observe(plan.step, seconds)
    assert engine.load.capacity() < calibrated  # one second may have been lucky
    for _ in range(int(1.5 / seconds)):
        engine.load.observe(plan.step, seconds)
    assert engine.load.capacity() == calibrated
