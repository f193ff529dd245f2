# SPDX-License-Identifier: Apache-2.0
"""What limits the number of streams in real time, and how it is stated."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedulers import GPU, LIMITS, build
from polyvox.engine.capacity import CapacityLimits, describe_capacity, find_limit


def test_the_capacity_is_stated_with_its_limit_and_the_others() -> None:
    stats = {"capacity": 1604.0, **CapacityLimits(1604.7, 1900.2, 2048).stats(gpu=True, slots_limited_by="memory")}
    assert find_limit(stats) == "gpu_time"
    assert describe_capacity(stats) == "1,604 streams in real time, limited by GPU time (host 1,900, memory 2,048)"
    stats = {"capacity": 8.0, **CapacityLimits(12.0, inf, 8).stats(gpu=False, slots_limited_by="max_streams")}
    assert describe_capacity(stats) == "8 streams in real time, limited by max_streams (CPU time 12)"


def test_statistics_of_an_engine_that_has_not_started_have_no_limit() -> None:
    assert find_limit({}) is None
    assert describe_capacity({"capacity": 3.0}) == "3 streams in real time"
    assert describe_capacity({"capacity": 1.0}) == "1 stream in real time"


@given(host=st.floats(0.0, 1e-3), growing=st.floats(0.2, 5.0), num_slots=st.integers(1, 4000))
def test_the_capacity_is_the_smallest_limit(host: float, growing: float, num_slots: int) -> None:
    load = build(replace(GPU, host_frame=host, growing=growing), num_slots=num_slots).load
    limits = load.capacity_limits().stats(gpu=True, slots_limited_by="memory")
    assert load.capacity() == min(limits.values())


def test_a_step_takes_as_long_as_the_slower_of_host_and_device() -> None:
    device, host = GPU.seconds(100, 50, 100), 100 * 1e-3
    assert replace(GPU, host_frame=1e-3).seconds(100, 50, 100) == pytest.approx(GPU.step + GPU.codec + host)
    assert replace(GPU, host_frame=1e-9).seconds(100, 50, 100) == device


def test_an_estimate_of_the_host_that_is_too_high_is_corrected_while_running() -> None:
    load = build(replace(GPU, host_frame=2e-4), num_slots=2000, max_batch=1024).load
    before = load.capacity()
    sizes = (512, 0, 512, 1, 1)
    for _ in range(400):
        load.cost.observe(*sizes, GPU.seconds(*sizes))
    assert load.cost.seconds(*sizes) == pytest.approx(GPU.seconds(*sizes), rel=0.05)
    assert before < load.capacity() <= LIMITS.frame_seconds / (GPU.stream + GPU.codec_frame)
