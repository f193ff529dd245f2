# SPDX-License-Identifier: Apache-2.0
"""The index of queued streams and the estimates over arrays agree with a visit to each stream."""

import random
from heapq import heapreplace
from math import inf
from unittest import mock

import numpy as np
import pytest

from engine.schedulers import GPU, SLOW, Fixture, build, new_stream
from polyvox.engine.demand import Demand
from polyvox.engine.stream_state import StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.utterances import UtteranceState
from polyvox.engine.wait_estimate import WaitEstimate

OWNERS = ("a", "b")


def draw_engine(seed: int) -> tuple[Fixture, float]:
    """An engine after random arrivals, admissions, progress, stop requests and ends."""
    draw = random.Random(seed)
    engine = build(SLOW, num_slots=24, max_queue=200, max_queue_seconds=1e6)
    now = 0.0
    for number in range(1, 120):
        now += draw.random()
        continues = draw.random() < 0.3
        stream = new_stream(
            now,
            live=draw.random() < 0.8,
            continues=continues,
            utterance_id=draw.randint(1, number) if continues else draw.choice([0, number]),
            text_bytes=draw.randint(1, 200),
            following_bytes=draw.choice([0, 0, 300]),
            owner=draw.choice(OWNERS[: 1 + seed % 2]),
        )
        engine.admission.enqueue(stream, now)
        engine.admission.admit(now)
        for active in list(engine.streams.active):
            active.generated += draw.randint(0, 20)
            match draw.randint(0, 9):
                case 0:
                    engine.finish(active, now)
                case 1 if active.status is StreamStatus.RUNNING:
                    engine.drain(active, now)
        if streams := list(engine.streams):
            engine.admission.on_stop_requested(draw.choice(streams))
        if draw.random() < 0.2 and engine.queued:
            engine.finish(draw.choice(engine.queued), now)
    return engine, now


def test_the_queue_has_the_queued_streams_whose_end_was_not_requested() -> None:
    for seed in range(8):
        engine, _ = draw_engine(seed)
        queue, queued = engine.streams.queue, [one for one in engine.queued if not one.stopping]
        assert queued
        assert len(queue) == len(queued)
        assert queue.num_files() == sum(not one.live for one in queued)
        for live in (True, False):
            new = [one for one in queued if one.live is live and not one.continues]
            assert queue.new_utterances(live) == new
            assert queue.num_new(live) == len(new)
            assert queue.continuing(live) == [one for one in queued if one.live is live and one.continues]
            assert queue.has_several_owners(live) == (len({one.owner for one in new}) > 1)
            for owner in OWNERS:
                assert queue.num_of(owner, live) == sum(one.owner == owner for one in new)
                assert queue.has_other_owners(owner, live) == any(one.owner != owner for one in new)
        assert set(engine.streams.stopping) == {one for one in engine.streams if one.stopping}


def remaining(engine: Fixture, utterance: UtteranceState[StreamState]) -> float:
    """The reference implementation of `UtteranceTable.remaining` for one utterance."""
    table, frame = engine.admission.utterances, engine.limits.frame_seconds
    if utterance.is_stopping:
        return 0.0
    seconds, following = table.seconds(utterance.following_bytes), utterance.following
    if following is not None and following.status is StreamStatus.QUEUED and not following.stopping:
        seconds += min(table.seconds(following.text_bytes), following.max_frames * frame)
    for stream in utterance.active:
        expected = min(table.seconds(stream.text_bytes), stream.max_frames * frame)
        if not stream.ended:
            seconds += max(expected - stream.generated * frame, table._overrun.value * expected)
    return seconds


@pytest.mark.parametrize("live", [True, False], ids=["live", "files"])
def test_the_remaining_audio_of_all_utterances_is_the_sum_over_their_segments(live: bool) -> None:
    for seed in range(8):
        engine, _ = draw_engine(seed)
        utterances = [one for one in engine.admission.utterances._utterances.values() if one.live is live]
        expected = sorted(remaining(engine, one) for one in utterances)
        np.testing.assert_allclose(np.sort(engine.admission.utterances.remaining(live)), expected, atol=1e-9)


def test_more_utterances_than_rows_grow_the_arrays() -> None:
    engine = build(GPU, num_slots=400, num_pages=1 << 20, max_queue=400)
    streams = [new_stream(text_bytes=number + 1, following_bytes=number % 2) for number in range(200)]
    engine.admit_all(*streams)
    table = engine.admission.utterances
    expected = [table.seconds(one.text_bytes) + table.seconds(one.following_bytes) for one in streams]
    np.testing.assert_allclose(np.sort(table.remaining(True)), sorted(expected))
    for stream in streams[:150]:
        engine.finish(stream, 1.0)
    assert len(table.remaining(True)) == table.between_segments(1.0)[0] + 50


def test_the_wait_is_that_after_each_of_the_queued_streams_that_go_first() -> None:
    for seed in range(0, 8, 2):  # one owner
        engine, now = draw_engine(seed)
        estimate, count = engine.admission.estimate, engine.admission._max_utterances(True)
        queued = engine.streams.queue.new_utterances(True)
        estimate.invalidate()
        waits = [estimate.wait(True, count, now, num_behind) for num_behind in range(len(queued), -1, -1)]
        timeline = estimate._timelines[True]
        free_at = (np.sort(engine.admission.utterances.remaining(True)) / timeline.speed).tolist()
        free_at = ([0.0] * max(0, count - len(free_at)) + free_at)[-count:]
        expected = [free_at[0]]
        for stream in queued:
            heapreplace(free_at, free_at[0] + engine.admission.utterances.total(stream) / timeline.speed)
            expected.append(free_at[0])
        np.testing.assert_allclose(waits, expected)
        demand = Demand(live=True, owner="a", num_pages=10**9)
        assert engine.admission.estimate_wait(demand, now) == waits[-1] < inf


def test_streams_that_end_as_expected_cost_no_new_estimate() -> None:
    engine = build(SLOW, max_queue=100, max_queue_seconds=1e6)
    streams = [new_stream() for _ in range(20)]
    for stream in streams:
        engine.admission.enqueue(stream, 0.0)
        engine.admission.admit(0.0)
    engine.wait(0.0)
    with mock.patch.object(WaitEstimate, "_new_timeline", side_effect=AssertionError) as new_timeline:
        engine.finish(streams[0], 0.01)
        engine.wait(0.01)
    new_timeline.assert_not_called()
    before = engine.wait(0.02)
    for stream in streams[1:6]:
        engine.admission.on_stop_requested(stream)
    assert engine.wait(0.02) < before, "cancelled streams leave earlier than expected"
