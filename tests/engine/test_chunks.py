# SPDX-License-Identifier: Apache-2.0
"""How many frames a chunk has, and when it is decoded and delivered."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedulers import Fixture, build, new_stream, playing, running
from polyvox.engine.cost_model import CostModel
from polyvox.engine.scheduler import MIN_STREAMS_FOR_CHUNKS, MIN_STREAMS_TO_WITHHOLD
from polyvox.engine.stream_state import CHUNK_SIZES, StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.models.request import MAX_CHUNK_FRAMES

# A machine whose codec takes as long as its frames; its capacity is 64 streams.
SLOW_CODEC = CostModel(step=0.002, stream=5e-4, prefill_row=1e-5, codec=0.002, codec_frame=5e-4)


def test_chunks_grow_with_the_lead_from_a_small_first_one() -> None:
    engine = build()
    assert engine.chunk(new_stream(first_chunk=2), 0.0) == 2
    sizes = [engine.chunk(playing(lead / 10), 10.0) for lead in range(60)]
    assert sizes == sorted(sizes)
    assert set(sizes) == set(CHUNK_SIZES)
    assert engine.chunk(new_stream(live=False), 0.0) == MAX_CHUNK_FRAMES


def test_a_chunk_waits_until_it_is_complete_and_the_rest_of_an_ended_stream_is_flushed() -> None:
    one = playing(1.0, generated=23, started=25)  # 3 of the 4 frames of its next chunk
    engine = running(one)
    assert engine.plan(10.0).codec == ()
    engine.drain(one)
    assert engine.plan(10.0).codec == ((one, 2),)
    one.decoded += 2
    assert engine.plan(10.0).codec == ((one, 1),)


def test_a_stream_without_text_delivers_what_it_has() -> None:
    one = playing(1.0, generated=21, started=21, text_frames=21)
    assert running(one).plan(10.0).codec == ((one, 1),)


@settings(deadline=None)
@given(ring=st.integers(2, 40), first_chunk=st.integers(1, 16), live=st.booleans(), free=st.integers(1, 20))
def test_every_ring_buffer_and_first_chunk_lets_a_stream_finish(
    ring: int, first_chunk: int, live: bool, free: int
) -> None:
    """Flags are known a step late, and the reader takes a frame in each step."""
    one = new_stream(max_frames=50, first_chunk=first_chunk, live=live, buffer_free=free)
    engine, now = running(one, ring_frames=ring), 0.0
    for _ in range(600):
        plan = engine.plan(now)
        now += 0.01
        one.generated = one.started
        engine.start(plan, now)
        if one.generated == 50 and not one.ended:
            engine.drain(one)
        one.buffer_free = min(one.buffer_free + 1, free)
        for _, frames in plan.codec:
            assert frames in CHUNK_SIZES
            one.buffer_free -= frames
            assert one.buffer_free >= 0
            engine.decode(one, frames, now)
        if one.decoded == 50:
            return
    pytest.fail("The stream did not finish.")


def test_a_file_with_a_small_buffer_progresses_while_others_start() -> None:
    file = new_stream(live=False, generated=20, started=20, decoded=4, buffer_free=8)
    assert running(file, new_stream(prompt_rows=100)).plan(0.0).codec == ((file, 8),)


def test_many_streams_are_decoded_in_few_calls() -> None:
    many = [playing(0.2 + 0.01 * i, generated=21 + i % 7, started=30) for i in range(500)]
    plan = running(*many, num_slots=600).plan(10.0)
    assert plan.sizes()[3] <= 2
    assert plan.sizes()[2] >= 400


def test_very_many_streams_are_decoded_in_complete_chunks() -> None:
    many = [playing(0.2 + 0.01 * i, generated=21 + i % 16, started=40) for i in range(MIN_STREAMS_FOR_CHUNKS)]
    plan = running(*many, num_slots=600).plan(10.0)
    frames = dict(plan.codec)
    assert plan.sizes()[3] <= 3
    assert plan.sizes()[2] >= 200
    assert all(frames[one] for one in many[:28] if one.generated - one.decoded >= 4), "urgent streams do not wait"
    assert len(frames) < len(many) / 2, "others wait for complete chunks"


def test_audio_near_its_deadline_is_delivered_in_shorter_chunks() -> None:
    near, far = playing(0.4), playing(2.0)
    engine = running(near, far, *(playing(1.0) for _ in range(MIN_STREAMS_TO_WITHHOLD - 2)))
    near.undelivered, far.undelivered = engine.chunk(near, 10.0), engine.chunk(far, 10.0)
    assert (near.undelivered, far.undelivered) == (2, 8)
    assert engine.is_due(near, 10.0)
    assert not engine.is_due(far, 10.0)  # a longer chunk costs the host less
    engine.finish(near, 10.0)
    assert engine.is_due(far, 10.0)  # with few streams nothing is withheld


def test_audio_with_a_long_lead_is_withheld_up_to_the_largest_chunk() -> None:
    far = playing(60.0)
    engine = running(far, *(playing(1.0) for _ in range(MIN_STREAMS_TO_WITHHOLD - 1)))
    far.undelivered = MAX_CHUNK_FRAMES - 1
    assert not engine.is_due(far, 10.0)
    far.undelivered = MAX_CHUNK_FRAMES
    assert engine.is_due(far, 10.0)


def run_to_end(engine: Fixture, streams: list[StreamState], stall: float) -> None:
    """Runs all streams to their end, each step as long as predicted; one step stalls."""
    now = 0.0
    while plan := engine.plan(now):
        now += engine.cost.seconds(*plan.sizes())
        if stall and now > 0.6:
            now, stall = now + stall, 0.0
        engine.start(plan, now)
        for one in plan.frame:
            one.generated = one.started
            if one.generated == one.max_frames:
                engine.drain(one, now)
        for one, frames in plan.codec:
            engine.scheduler.on_decoded(np.array([one.row]), np.array([frames]))
            if engine.is_due(one, now):
                engine.deliver(one, one.undelivered, now)
        draining = engine.streams[StreamStatus.DRAINING]
        for one in [one for one in draining if one.decoded == one.generated]:
            engine.finish(one, now)
    assert all(one.decoded == one.max_frames for one in streams)


@pytest.mark.parametrize("first_chunk", [1, 2])
@pytest.mark.parametrize(("num_streams", "stall"), [(40, 0.0), (62, 0.0), (62, 1.0)])
def test_frames_do_not_pile_up_before_the_codec(num_streams: int, stall: float, first_chunk: int) -> None:
    streams = [new_stream(prompt_rows=20, max_frames=60, first_chunk=first_chunk) for _ in range(num_streams)]
    run_to_end(running(*streams, cost=SLOW_CODEC), streams, stall)
    assert all(one.underruns <= (stall > 0) for one in streams), "all start at once, and one step stalls"
