# SPDX-License-Identifier: Apache-2.0
"""KV pages that streams get on admission and while they run: no stream waits for one, whatever the lengths."""

from itertools import accumulate
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedulers import Fixture, build, new_stream
from polyvox.engine.page_reservation import (
    EXCEEDED_PROBABILITY,
    FRAMES_AHEAD,
    INITIAL_FRAMES,
    INITIAL_FRAMES_PER_BYTE,
    INITIAL_WEIGHT,
    LONGER_SHARE,
    OPEN_TEXT_BYTES,
    LengthQuantile,
    PageReservation,
    max_longer,
)
from polyvox.engine.stream_state import MAX_FRAMES_PER_STEP, StreamState

PAGE = 16


def reserved_frames(text_bytes: int) -> int:
    """Before anything was learned."""
    return INITIAL_FRAMES + INITIAL_FRAMES_PER_BYTE * text_bytes + FRAMES_AHEAD


def ended(
    reservation: PageReservation[StreamState], generated: int, max_frames: int = 525, language: str = ""
) -> StreamState:
    """A stream that has ended, from which the reservation has learned."""
    stream = new_stream(max_frames=max_frames, text_bytes=100, language=language)
    reservation.on_admitted(stream, 100)
    stream.generated = generated
    reservation.learn(stream)
    return stream


# What is learned


@given(st.lists(st.floats(0.0, 6.0), max_size=300), st.integers(1, 40))
def test_at_most_one_in_a_thousand_of_the_streams_was_longer(lengths: list[float], repeats: int) -> None:
    quantile = LengthQuantile()
    for length in lengths * repeats:
        quantile.add(length)
    longer = sum(min(length, 4.0) > quantile.value for length in lengths * repeats)
    assert longer <= LONGER_SHARE * (len(lengths) * repeats + INITIAL_WEIGHT)


def test_the_initial_figure_holds_until_enough_streams_have_ended() -> None:
    quantile = LengthQuantile()
    values = []
    for _ in range(4000):
        quantile.add(0.4)
        values.append(quantile.value)
    assert values[2990] == 1.0
    assert values[3010] == pytest.approx(0.4, abs=1 / 32)


def test_longer_streams_raise_the_figure_and_are_forgotten_slowly() -> None:
    quantile = LengthQuantile()
    for _ in range(10_000):
        quantile.add(0.4)
    for _ in range(11):  # more than one in a thousand
        quantile.add(1.7)
    assert quantile.value == pytest.approx(1.7, abs=1 / 32)
    for _ in range(60_000):
        quantile.add(0.4)
    assert quantile.value == pytest.approx(0.4, abs=1 / 32)


def test_languages_and_open_texts_are_learned_apart() -> None:
    reservation: PageReservation[StreamState] = PageReservation(PAGE)
    for _ in range(4000):
        ended(reservation, 50, language="german")
    german, french = new_stream(text_bytes=100, language="german"), new_stream(text_bytes=100, language="french")
    assert reservation.frames(german, text_is_open=False) == pytest.approx(50 + FRAMES_AHEAD, abs=10)
    assert reservation.frames(french, text_is_open=False) == reserved_frames(100)
    assert reservation.frames(german, text_is_open=True) == german.max_frames


def test_the_open_text_of_an_answer_reserves_its_limit_because_it_is_not_split_into_sentences() -> None:
    reservation: PageReservation[StreamState] = PageReservation(PAGE)
    sentence = new_stream(text_bytes=20, max_frames=4000, text_frames=0.0)
    answer = new_stream(text_bytes=20, max_frames=4000, text_frames=0.0, is_answer=True)
    for _ in range(4000):
        reservation.on_admitted(sentence, 100)
        sentence.generated = 50
        reservation.learn(sentence)
    assert reservation.frames(sentence, text_is_open=True) < reserved_frames(20 + OPEN_TEXT_BYTES)
    assert reservation.frames(answer, text_is_open=True) == 4000


def test_a_language_is_the_same_in_upper_and_lower_case() -> None:
    reservation: PageReservation[StreamState] = PageReservation(PAGE)
    for _ in range(4000):
        ended(reservation, 50, language="German")
    german = new_stream(text_bytes=100, language="german")
    assert reservation.frames(german, text_is_open=False) < reserved_frames(100)


def test_a_stream_that_its_request_limits_teaches_nothing() -> None:
    reservation: PageReservation[StreamState] = PageReservation(PAGE)
    for _ in range(4000):
        ended(reservation, 20, max_frames=20)
    assert reservation.frames(new_stream(text_bytes=100, max_frames=525), text_is_open=False) == reserved_frames(100)


@pytest.mark.parametrize("num_streams", [1, 2, 8, 64, 500, 1024, 2048])
def test_more_streams_than_the_reserve_expects_are_longer_once_in_a_million_times(num_streams: int) -> None:
    expected = max_longer(num_streams)
    terms = (
        comb(num_streams, count) * LONGER_SHARE**count * (1 - LONGER_SHARE) ** (num_streams - count)
        for count in range(expected + 1)
    )
    *_, at_most = accumulate(terms)
    assert 1 - at_most <= EXCEEDED_PROBABILITY
    assert 1 <= expected <= 3 + num_streams // 100


# Pages of running streams


def run_steps(engine: Fixture, lengths: dict[StreamState, int]) -> tuple[dict[StreamState, int], list[StreamState]]:
    """Runs all admitted streams to their lengths; returns their frames, and those that ended for lack of pages.

    Every stream generates frames in every step: none waits.
    """
    generated: dict[StreamState, int] = {}
    out_of_pages: list[StreamState] = []
    while active := list(engine.streams.active):
        out_of_pages += engine.admission.pages.grow()[1]
        for one in active:
            last = min(lengths[one], one.max_frames)
            num_frames = min(MAX_FRAMES_PER_STEP, last - one.started)
            assert num_frames > 0
            one.prefilled = one.prompt_rows - 1
            one.started += num_frames
            assert one.allocation is not None
            assert one.prompt_rows + one.started + 1 <= PAGE * len(one.allocation.pages)
            if one.started == last:
                generated[one] = one.generated = one.decoded = last
                engine.finish(one, 0.0)
        pages = [page for one in engine.streams.active for page in one.allocation.pages]  # type: ignore[union-attr]
        assert len({*pages, *engine.ledger.free_pages}) == engine.limits.num_pages
    assert sorted(engine.ledger.free_pages) == list(range(1, engine.limits.num_pages + 1))
    return generated, out_of_pages


# Prompt rows, bytes of text, frames if the stream is not over-long, whether it is.
STREAMS = st.lists(
    st.tuples(st.integers(1, 100), st.integers(1, 120), st.integers(1, 400), st.booleans()), min_size=1, max_size=16
)


def enqueue_all(engine: Fixture, streams: list[tuple[int, int, int, bool]]) -> tuple[dict[StreamState, int], ...]:
    """Queues streams; returns their limits, the frames that are expected at most, and their lengths."""
    limits, expected, lengths = {}, {}, {}
    for rows, text_bytes, frames, overlong in streams:
        limit = min(125 + 4 * text_bytes, engine.limits.num_pages * PAGE - rows - 1)
        one = new_stream(0.0, rows, limit, text_bytes=text_bytes)
        limits[one], expected[one] = limit, min(reserved_frames(text_bytes) - FRAMES_AHEAD, limit)
        lengths[one] = limit if overlong else min(frames, expected[one])
        engine.admission.enqueue(one, 0.0)
    return limits, expected, lengths


def pool(num_pages: int) -> Fixture:
    return build(
        num_slots=16,
        num_pages=num_pages,
        max_queue=16,
        max_queue_seconds=1000.0,
        max_frames_per_step=MAX_FRAMES_PER_STEP,
    )


@settings(max_examples=30)
@given(streams=STREAMS, num_pages=st.integers(50, 300))
def test_as_many_over_long_streams_as_the_reserve_expects_reach_their_limits(
    streams: list[tuple[int, int, int, bool]], num_pages: int
) -> None:
    engine = pool(num_pages)
    _, expected, lengths = enqueue_all(engine, streams)
    admitted = engine.admission.admit(0.0)
    longer = [one for one in admitted if lengths[one] > expected[one]]
    for one in longer[max_longer(len(admitted)) :]:
        lengths[one] = expected[one]
    generated, out_of_pages = run_steps(engine, lengths)
    assert out_of_pages == []
    assert generated == {one: lengths[one] for one in admitted} != {}


@settings(max_examples=30)
@given(streams=STREAMS, num_pages=st.integers(50, 300))
def test_if_all_streams_run_to_their_limits_none_waits_and_all_end(
    streams: list[tuple[int, int, int, bool]], num_pages: int
) -> None:
    engine = pool(num_pages)
    limits, expected, _ = enqueue_all(engine, streams)
    admitted = engine.admission.admit(0.0)
    generated, out_of_pages = run_steps(engine, limits)
    assert set(generated) == set(admitted)
    assert all(one.out_of_pages == (one in out_of_pages) for one in admitted)
    assert all(generated[one] == limits[one] for one in admitted if not one.out_of_pages)
    assert all(expected[one] <= generated[one] < limits[one] for one in out_of_pages)
    assert len(admitted) > 2 or not out_of_pages


def test_a_stream_alone_always_reaches_its_limit() -> None:
    engine = pool(20)
    one = new_stream(0.0, 10, 20 * PAGE - 11, text_bytes=1)
    engine.admit_all(one)
    assert one.paged_frames < one.max_frames
    assert run_steps(engine, {one: one.max_frames}) == ({one: 20 * PAGE - 11}, [])


def test_pages_beyond_the_shared_reserve_are_given_to_new_streams() -> None:
    engine = build(num_slots=64, num_pages=400, max_queue=64)
    for _ in range(64):
        engine.admission.enqueue(new_stream(0.0, 1, 365, text_bytes=60), 0.0)
    admitted = engine.admission.admit(0.0)
    reserved, longest = -(-(1 + reserved_frames(60) + 1) // PAGE), -(-(1 + 365 + 1) // PAGE)
    num_longer = max_longer(len(admitted))
    free = 400 - len(admitted) * reserved
    assert len(engine.ledger.free_pages) == free
    assert free >= num_longer * (longest - reserved) > 0
    assert free < reserved + max_longer(len(admitted) + 1) * (longest - reserved)
    assert len(admitted) > 1.4 * 400 / longest


def test_a_finished_text_frees_what_its_speech_is_not_expected_to_need() -> None:
    engine = build()
    one = new_stream(0.0, 10, 1500, text_bytes=60, text_frames=0.0)
    engine.admit_all(one)
    assert 0 <= one.paged_frames - reserved_frames(60 + OPEN_TEXT_BYTES) < PAGE
    one.started = one.generated = 40
    one.max_frames = 365
    before = len(engine.ledger.free_pages)
    freed = engine.admission.pages.shrink(one)
    assert len(engine.ledger.free_pages) == before + len(freed)
    assert reserved_frames(60) <= one.paged_frames < reserved_frames(60) + PAGE
    one.started = one.generated = one.paged_frames - 2
    assert list(engine.admission.pages.shrink(one)) == []
    assert engine.admission.pages.grow() == ([], [])
    one.started = one.generated = one.paged_frames - 1
    assert engine.admission.pages.grow() == ([one], [])
    assert one.paged_frames > one.started + 3 * PAGE


def test_a_page_pool_without_a_free_page_lowers_the_limit_of_the_stream_that_needs_one() -> None:
    engine = build(num_pages=40)
    one = new_stream(0.0, 10, 500, text_bytes=60)
    engine.admit_all(one)
    engine.ledger.allocate(len(engine.ledger.free_pages))  # not what admission does
    one.started = one.paged_frames - 2
    assert engine.admission.pages.grow() == ([], [])  # the next step needs none
    one.started += 1
    assert engine.admission.pages.grow() == ([], [one])
    assert one.out_of_pages
    assert one.max_frames == one.paged_frames == one.started + 1  # a frame is left, after which it ends
    assert engine.admission.pages.grow() == ([], [])
