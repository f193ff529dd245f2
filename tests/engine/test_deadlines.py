# SPDX-License-Identifier: Apache-2.0
"""Deadlines, underruns, and the gaps that text and readers cause."""

from math import inf

import pytest

from engine.schedulers import new_stream, playing, running
from polyvox.models.request import MAX_CHUNK_FRAMES


def test_a_late_chunk_is_an_underrun_and_moves_the_deadline() -> None:
    one = new_stream()
    engine = running(one)
    engine.deliver(one, 2, 1.0)
    assert one.first_audio_at == 1.0
    assert one.deadline == pytest.approx(1.16)
    assert one.lead(1.1) == pytest.approx(0.06)
    engine.deliver(one, 1, 1.15)
    assert one.underruns == 0
    engine.deliver(one, 1, 1.5)
    assert one.underruns == 1
    assert one.deadline == pytest.approx(1.58)


def test_a_file_has_no_deadline() -> None:
    one = new_stream(live=False)
    engine = running(one)
    engine.deliver(one, 1, 1.0)
    engine.deliver(one, 1, 100.0)
    assert one.underruns == 0
    assert one.lead(1000.0) == inf


def test_waiting_for_text_is_no_underrun_and_does_not_change_the_steps_of_others() -> None:
    one = playing(0.1, text_frames=20)
    engine = running(one, playing(1.0))
    alone = running(playing(1.0)).plan(15.0)
    assert len(engine.plan(15.0).frame) == len(alone.frame)  # after 5 s without text
    assert one.lead(15.0) == 0.0
    one.text_frames = 40  # text arrives: like a start
    plan = engine.plan(15.0)
    assert one in plan.frame
    one.started, one.generated, one.decoded = 22, 22, 21
    engine.deliver(one, 1, 15.2)
    assert one.underruns == 0
    assert one.deadline == pytest.approx(15.28)
    one.decoded = 22
    engine.deliver(one, 1, 15.5)  # later delays are the engine's own
    assert one.underruns == 1


def test_frames_generated_before_the_text_ran_out_keep_their_deadline() -> None:
    one = playing(0.1, generated=22, started=22, text_frames=22)
    engine = running(one)
    engine.plan(10.0)
    one.decoded = 22
    engine.deliver(one, 2, 10.5)
    assert one.underruns == 1


def test_text_that_arrives_word_by_word_causes_no_underrun() -> None:
    one = playing(0.1, text_frames=20)
    engine = running(one)
    for second in range(11, 16):
        engine.plan(second - 0.5)
        one.text_frames += 1
        assert engine.plan(second).frame == (one,)
        one.started = one.generated = int(one.text_frames)
        assert engine.plan(second + 0.01).codec == ((one, 1),)
        one.decoded = one.generated
        engine.deliver(one, 1, second + 0.02)
    assert one.underruns == 0


@pytest.mark.parametrize(("seconds_before", "underruns"), [(0.005, 0), (0.06, 1)])
def test_a_delay_is_an_underrun_only_if_the_text_came_in_time_for_a_frame(
    seconds_before: float, underruns: int
) -> None:
    one = playing(0.1, text_frames=20)
    engine = running(one)
    engine.plan(10.0)
    one.text_frames = 21
    assert engine.plan(10.1 - seconds_before).frame == (one,)
    one.started = one.generated = 21
    engine.plan(10.1 - seconds_before + 0.001)
    one.decoded = 21
    engine.deliver(one, 1, 10.13)
    assert one.underruns == underruns
    assert one.deadline == pytest.approx(10.21)


def test_a_stopped_reader_causes_no_underrun() -> None:
    one = playing(0.1, generated=24, started=24, buffer_free=0)
    engine = running(one)
    assert engine.plan(13.0).codec == ()
    one.buffer_free = 25
    assert engine.plan(13.0).codec == ((one, 4),)
    one.decoded = 24
    engine.deliver(one, 4, 13.1)
    assert one.underruns == 0
    assert one.lead(13.1) == pytest.approx(0.32)


def test_a_reader_with_a_full_buffer_keeps_its_lead() -> None:
    one = playing(2.0, generated=24, started=24, buffer_free=0)
    engine = running(one)
    engine.plan(10.0)
    assert one.lead(10.0) == pytest.approx(2.0)
    assert not engine.streams.arrays.is_starting(10.0)[one.row]


def test_a_stream_with_a_full_buffer_generates_one_chunk_ahead_and_stops() -> None:
    one = playing(2.0, buffer_free=0)
    engine, steps = running(one), 0
    while engine.plan(10.0).frame:
        one.started += 1
        one.generated = one.started
        steps += 1
    assert steps == MAX_CHUNK_FRAMES
