# SPDX-License-Identifier: Apache-2.0
"""Sizes of padded calls, and the scheduler's choice among them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedulers import GPU, new_stream, playing, running
from polyvox.engine.batch_sizes import batch_sizes, next_size, previous_size
from polyvox.engine.cost_model import CostModel

LARGE = batch_sizes(2048)
# 1.7B on one H200: lines through its smallest and its largest batch.
H200 = CostModel(step=0.0027, stream=1.8e-5, prefill_row=7e-6, codec=7e-4, codec_frame=1.9e-5)


@given(st.integers(1, 5000), st.sampled_from([1, 16]))
def test_padding_is_bounded_and_the_largest_size_holds_all(max_size: int, min_size: int) -> None:
    sizes = batch_sizes(max_size, min_size)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max_size
    for before, size in pairwise(sizes):
        share = 1 / 5 if before >= 256 else 1 / 3 if before >= 16 else 1 / 2
        assert size - before - 1 <= share * size


@given(st.integers(1, 2048))
def test_a_count_is_between_its_sizes(count: int) -> None:
    assert previous_size(LARGE, count) <= count <= next_size(LARGE, count)
    assert (previous_size(LARGE, count) == count) == (next_size(LARGE, count) == count)
    assert previous_size((4, 8), 3) == 0


@pytest.mark.parametrize(
    ("relaxed", "urgent", "expected"),
    [
        (520, 0, 512),  # a call for 640 would be an eighth longer per frame
        (512, 0, 512),
        (630, 0, 630),  # a call for 512 would leave out more frames than the padding costs
        (0, 520, 520),  # urgent streams do not wait
        (500, 20, 512),
        (3, 0, 3),  # most of a small call is its fixed cost
    ],
)
def test_a_frame_call_is_filled_or_made_smaller(relaxed: int, urgent: int, expected: int) -> None:
    streams = [playing(1.0) for _ in range(relaxed)] + [playing(0.4) for _ in range(urgent)]
    limits = {"num_slots": 2048, "max_batch": 2048, "frame_sizes": LARGE}
    plan = running(*streams, cost=H200, **limits).plan(10.0)
    assert len(plan.frame) == expected
    assert set(streams[relaxed:]) <= set(plan.frame)


def test_a_step_of_limited_time_has_the_smaller_size_and_fills_it() -> None:
    """A starting stream limits the time of files: 19 streams fit."""
    cost = CostModel(step=0.001, stream=0.001, prefill_row=1e-5, codec=1e-4, codec_frame=1e-6)
    streams = [new_stream(), *(new_stream(live=False) for _ in range(40))]
    for sizes, expected in (((), 19), ((1, 24, 64), 1), ((20, 24), 20), ((16, 24), 16)):
        limits = {"num_slots": 64, "max_batch": sizes[-1] if sizes else 64, "frame_sizes": sizes}
        plan = running(*streams, cost=cost, **limits).plan(10.0)
        assert len(plan.frame) == expected, sizes
        assert streams[0] in plan.frame
        for stream in streams:
            stream.move(type(stream.arrays)(1), 0)


@given(st.integers(1, 64), st.integers(0, 63))
def test_calls_without_sizes_have_as_many_streams_as_are_ready(count: int, files: int) -> None:
    streams = [playing(1.0) for _ in range(count)] + [new_stream(live=False) for _ in range(min(files, 64 - count))]
    assert len(running(*streams, cost=GPU).plan(10.0).frame) == len(streams)
