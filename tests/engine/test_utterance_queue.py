# SPDX-License-Identifier: Apache-2.0
"""Utterances in the queue: their share of the capacity, the deadlines of their sentences, and times for retries."""

from contextlib import suppress
from math import inf
from typing import Any

import numpy as np
import pytest

from engine.reference_scheduler import is_starting, urgency
from engine.schedulers import FRAME, GPU, SLOW, Fixture, build, new_stream
from polyvox.engine.admission import LATE_HEADROOM, LATE_SHARE, MAX_RETRY_SECONDS
from polyvox.engine.demand import Demand
from polyvox.engine.load import MAX_SLOWDOWN, NUM_WINDOWS
from polyvox.engine.reservations import CLAIM_LATE_SECONDS, MAX_RESERVATIONS, Reservation, Reservations
from polyvox.engine.stream_state import StepPlan, StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.utterances import KEEP_SECONDS
from polyvox.engine.wait_estimate import MIN_MARGIN
from polyvox.errors import Overloaded

TEXT = 60  # bytes of a sentence


def first(utterance_id: int = 1, following: int = 1, **fields: Any) -> StreamState:
    return new_stream(utterance_id=utterance_id, text_bytes=TEXT, following_bytes=following * TEXT, **fields)


def later(utterance_id: int = 1, following: int = 0, **fields: Any) -> StreamState:
    return new_stream(
        utterance_id=utterance_id, text_bytes=TEXT, following_bytes=following * TEXT, continues=True, **fields
    )


def complete(engine: Fixture, stream: StreamState, now: float) -> None:
    """Ends a stream after all of its frames were delivered."""
    stream.started = stream.generated = stream.decoded = max(stream.decoded, 1)
    engine.streams.transition(stream, StreamStatus.RELEASING, now)
    engine.admission.release(stream, now)


def played(engine: Fixture, stream: StreamState, seconds: float, now: float) -> None:
    stream.generated = stream.decoded = stream.decoded + round(seconds / FRAME)
    engine.deliver(stream, seconds / FRAME, now)


# Capacity


def test_the_capacity_of_an_utterance_is_kept_between_two_sentences() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    one, other, following = first(), first(utterance_id=2), later()
    engine.admit_all(one)
    engine.admission.enqueue(other, 0.0)
    complete(engine, one, 1.0)
    assert engine.admission.admit(1.0) == []
    engine.admission.enqueue(following, 1.1)
    assert engine.admission.admit(1.1) == [following]
    complete(engine, following, 2.0)
    assert engine.admission.admit(2.0) == [other]


def test_the_capacity_is_free_again_if_no_sentence_follows_in_time() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    one, other = first(), first(utterance_id=2)
    engine.admit_all(one)
    engine.admission.enqueue(other, 0.0)
    complete(engine, one, 1.0)
    assert engine.admission.admit(1.0 + 0.9 * KEEP_SECONDS) == []
    assert engine.admission.admit(1.0 + 1.1 * KEEP_SECONDS) == [other]


def test_the_last_sentence_frees_the_capacity_at_once_if_it_ends_soon_after_the_one_before() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    one, other, following = first(), first(utterance_id=2), later()
    engine.admit_all(one)
    engine.admission.enqueue(other, 0.0)
    complete(engine, one, 1.0)
    engine.admission.enqueue(following, 1.01)
    assert engine.admission.admit(1.01) == [following]
    complete(engine, following, 1.02)
    assert engine.admission.admit(1.02) == [other]


def test_an_idle_engine_admits_a_queued_request_when_kept_capacity_expires() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    one, other = first(), first(utterance_id=2)
    engine.admit_all(one)
    engine.admission.enqueue(other, 0.0)
    complete(engine, one, 1.0)
    assert engine.admission.admit(1.0) == []
    moment = engine.admission.next_change(1.0)
    assert moment == 1.0 + KEEP_SECONDS
    assert engine.admission.admit(moment) == [other]
    assert engine.admission.next_change(moment) == inf


def test_a_cancelled_utterance_leaves_its_capacity_at_once() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    one, other = first(), first(utterance_id=2)
    engine.admit_all(one)
    engine.admission.enqueue(other, 0.0)
    engine.streams.transition(one, StreamStatus.RELEASING, 1.0)
    engine.admission.release(one, 1.0, completed=False)
    assert engine.admission.admit(1.0) == [other]


def test_a_cancelled_sentence_in_the_queue_holds_no_capacity() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    one, other, following = first(), first(utterance_id=2), later()
    engine.admit_all(one)
    engine.admission.enqueue(other, 0.0)
    engine.admission.enqueue(following, 0.5)
    complete(engine, one, 1.0)
    engine.streams.transition(following, StreamStatus.FINISHED, 1.0)
    assert engine.admission.admit(1.0) == [other]


def test_the_next_sentence_is_accepted_into_a_full_queue() -> None:
    engine = build(num_slots=1, max_queue=0)
    engine.admit_all(first(following=3))
    with pytest.raises(Overloaded):
        engine.admission.enqueue(first(utterance_id=2), 0.0)
    for _ in range(3):
        engine.admission.enqueue(later(), 0.0)


def test_a_sentence_with_nothing_left_to_play_goes_before_one_that_runs_ahead() -> None:
    engine = build(num_slots=2)
    streams = first(1, following=2), first(2)
    engine.admit_all(*streams)
    ahead, due = later(1), later(2)
    engine.admission.enqueue(ahead, 0.5)
    engine.admission.enqueue(due, 0.6)
    complete(engine, streams[1], 1.0)
    assert engine.admission.admit(1.0) == [due]


def test_a_sentence_that_runs_ahead_does_not_count_as_another_utterance() -> None:
    engine = build(SLOW, num_slots=8, max_queue_seconds=100.0)
    assert engine.load.capacity() == 3
    one = first(1)
    engine.admit_all(one, first(2))
    engine.admit_all(later(1))
    new = [first(3), first(4)]
    for stream in new:
        engine.admission.enqueue(stream, 0.0)
    assert engine.admission.admit(0.0) == new[:1]


def test_a_new_utterance_does_not_wait_for_a_sentence_that_runs_ahead() -> None:
    engine = build(SLOW, num_slots=8, max_queue_seconds=100.0)
    assert engine.load.capacity() == 3
    for utterance in (1, 2):
        engine.admit_all(first(utterance, following=3))
        engine.admit_all(later(utterance, following=2))
    third_sentence, new = later(1, following=1), first(3)
    engine.admission.enqueue(third_sentence, 0.0)
    engine.admission.enqueue(new, 0.0)
    assert engine.admission.admit(0.0) == [new]


# Deadlines


def test_the_next_sentence_is_due_when_the_one_before_it_has_been_played() -> None:
    engine = build()
    one, following = first(following=1), later()
    engine.admit_all(one)
    played(engine, one, 2.0, now=1.0)
    engine.admit_all(following, now=2.0)
    left = engine.admission.utterances.seconds(TEXT) - 2.0
    assert following.plays_at == pytest.approx(3.0 + left)
    assert not is_starting(following, 2.0)
    assert urgency(following, 2.0) == pytest.approx(1.0 + left)
    played(engine, following, 1.0, now=2.5)
    assert following.deadline == pytest.approx(4.0 + left)
    complete(engine, one, 2.6)  # it was shorter than expected
    assert following.plays_at == 3.0
    assert following.deadline == pytest.approx(4.0)


def test_a_sentence_after_all_audio_was_played_starts_at_once() -> None:
    engine = build()
    one, following = first(following=1), later()
    engine.admit_all(one)
    played(engine, one, 0.4, now=1.0)
    complete(engine, one, 1.2)
    engine.admit_all(following, now=1.3)
    assert not is_starting(following, 1.35)
    assert is_starting(following, 1.5)


def test_a_short_sentence_that_ends_before_the_one_before_it_does_not_move_its_deadline() -> None:
    engine = build()
    one, following = first(following=1), later()
    engine.admit_all(one)
    played(engine, one, 2.0, now=1.0)
    engine.admit_all(following, now=2.0)
    played(engine, following, 0.5, now=2.1)
    complete(engine, following, 2.2)
    assert one.deadline == 3.0


# The error of the estimate


def test_waits_longer_than_expected_raise_the_bound() -> None:
    engine = build(num_slots=1, max_queue_seconds=100.0)
    estimate = engine.admission.estimate
    before, now = estimate.upper_bound(10.0), 0.0
    running = first(0, following=0)
    engine.admit_all(running)
    for _ in range(30):
        following = first(0, following=0, arrived_at=now)
        engine.admission.enqueue(following, now)
        assert following.expected_wait > 0
        now += following.expected_wait + 3.0
        complete(engine, running, now)
        assert engine.admission.admit(now) == [following]
        running = following
    assert estimate.upper_bound(10.0) > before + 1.5
    assert estimate.upper_bound(0.1) == 0.2


def test_the_bound_has_a_margin_however_exact_the_estimates_were() -> None:
    estimate = build().admission.estimate
    estimate.bias = estimate.deviation = 0.0
    assert estimate.margin(10.0) == 0.0
    assert estimate.upper_bound(10.0) == pytest.approx(10.0 * (1 + MIN_MARGIN))


def test_a_request_that_has_almost_waited_as_long_as_promised_may_use_the_reserve() -> None:
    engine = build(SLOW, num_slots=8, max_queue=50, max_queue_seconds=10.0)
    assert engine.load.capacity() == 3
    assert engine.load.capacity(LATE_HEADROOM) == 5
    for _ in range(3):
        engine.admit_all(first(0, following=0))
    late, other = first(0, following=0), first(0, following=0, arrived_at=5.0)
    for stream in (late, other):
        engine.admission.enqueue(stream, stream.arrived_at)
    moment = LATE_SHARE * 10.0
    assert engine.admission.admit(moment - 0.1) == []
    assert engine.admission.next_change(moment - 0.1) == moment
    assert engine.admission.admit(moment) == [late]
    assert engine.admission.admit(5.0 + moment) == [other]


# Retries


def fill(engine: Fixture) -> None:
    """Fills slots and queue until a request is rejected."""
    with suppress(Overloaded):
        while True:
            engine.admission.enqueue(new_stream(text_bytes=TEXT), 0.0)
            engine.admission.admit(0.0)


def rejected(engine: Fixture, fingerprint: int, now: float) -> float:
    with pytest.raises(Overloaded) as error:
        engine.admission.precheck(Demand(live=True, num_bytes=TEXT, fingerprint=fingerprint), now)
    return error.value.retry_after


def test_rejected_requests_are_given_times_one_after_another() -> None:
    engine = build(SLOW, num_slots=3, max_queue=50, max_queue_seconds=10.0)
    fill(engine)
    times = [rejected(engine, fingerprint, 0.0) for fingerprint in range(1, 31)]
    assert times == sorted(times)
    throughput = engine.load.capacity() * engine.load.speed()
    work = 29 * engine.admission.utterances.seconds(TEXT)
    assert times[-1] - times[0] == pytest.approx(work / throughput, abs=3.0)


def test_a_request_that_is_sent_again_at_its_time_goes_before_new_ones() -> None:
    engine = build(SLOW, num_slots=3, max_queue=50, max_queue_seconds=10.0)
    fill(engine)
    times = [rejected(engine, fingerprint, 0.0) for fingerprint in range(1, 31)]
    now = times[0]
    for stream in engine.queued[:2]:  # two of them were served meanwhile
        engine.finish(stream, now)
    rejected(engine, 1000, now)
    rejected(engine, 20, now)  # too early
    engine.admission.precheck(Demand(live=True, num_bytes=TEXT, fingerprint=1), now)
    engine.admission.enqueue(new_stream(text_bytes=TEXT, fingerprint=1), now)
    rejected(engine, 1, now)  # a reservation is for one request


def test_reservations_that_are_not_claimed_expire_and_count_less() -> None:
    reservations = Reservations()
    for fingerprint in range(1, 101):
        reservations.add(Reservation(fingerprint, at=5.0, seconds=4.0))
    due = reservations.find_due(7, 5.0)
    assert due is not None
    assert reservations.find_due(7, 4.0) is None
    reservations.claim(due)
    assert reservations.find_due(7, 5.0) is None
    assert (len(reservations), reservations.claimed_share) == (99, 1.0)
    reservations.expire(5.0 + CLAIM_LATE_SECONDS + 0.1)
    assert len(reservations) == 0
    assert reservations.claimed_share < 0.01


def test_the_number_of_reservations_is_bounded() -> None:
    engine = build(GPU, num_slots=64, max_queue=500, max_queue_seconds=10.0)
    fill(engine)
    for fingerprint in range(1, MAX_RESERVATIONS + 100):
        rejected(engine, fingerprint, 0.0)
    assert len(engine.admission.estimate.reservations) == MAX_RESERVATIONS


def test_a_turn_in_the_far_future_is_not_reserved() -> None:
    engine = build(SLOW, num_slots=3, max_queue=50, max_queue_seconds=10.0)
    fill(engine)
    times = [rejected(engine, fingerprint, 0.0) for fingerprint in range(1, 401)]
    assert max(times) == MAX_RETRY_SECONDS
    assert len(engine.admission.estimate.reservations) == sum(time < MAX_RETRY_SECONDS for time in times)


def test_a_free_slot_is_given_even_if_all_time_is_reserved() -> None:
    """The clients may not come back."""
    engine = build(SLOW, num_slots=3, max_queue=50, max_queue_seconds=10.0)
    fill(engine)
    for fingerprint in range(1, 31):
        rejected(engine, fingerprint, 0.0)
    for stream in [*engine.queued, *engine.streams.active]:
        engine.finish(stream, 0.1)
    engine.admit_all(new_stream(arrived_at=0.2), now=0.2)


# A machine that is slow now and then


def observe(engine: Fixture, seconds: float, factor: float) -> None:
    """Steps of one stream for this long, each `factor` times as long as calibrated."""
    plan: StepPlan[StreamState] = StepPlan(frame=np.array([0]), frame_counts=np.array([1]))
    expected = engine.cost.calibrated_seconds(*plan.sizes())
    for _ in range(round(seconds / (factor * expected))):
        engine.load.observe(plan, factor * expected)


def test_slow_seconds_lower_the_capacity_for_a_while() -> None:
    engine = build(GPU, num_slots=4096, max_batch=4096)
    observe(engine, 10.0, 1.0)
    before = engine.load.capacity()
    observe(engine, 3.0, 2.0)
    observe(engine, 5.0, 1.0)
    assert engine.load.capacity() < 0.7 * before
    observe(engine, 2 * NUM_WINDOWS, 1.0)
    assert engine.load.capacity() == pytest.approx(before, rel=0.02)


def test_one_stall_does_not_lower_the_capacity() -> None:
    engine = build(GPU, num_slots=4096, max_batch=4096)
    observe(engine, 10.0, 1.0)
    before = engine.load.capacity()
    engine.load.observe(StepPlan(frame=np.array([0]), frame_counts=np.array([1])), 0.9)
    observe(engine, 10.0, 1.0)
    assert engine.load.capacity() == pytest.approx(before, rel=0.02)
    assert engine.load.slowdown.value < MAX_SLOWDOWN


# Owners


def test_owners_get_their_turns_in_the_queue() -> None:
    engine = build(num_slots=2, max_queue_seconds=100.0)
    running = [new_stream(owner="a"), new_stream(owner="a")]
    engine.admit_all(*running)
    queued = [new_stream(owner="a"), new_stream(owner="a"), new_stream(owner="b")]
    for stream in queued:
        engine.admission.enqueue(stream, 0.0)
    complete(engine, running[0], 1.0)
    assert engine.admission.admit(1.0) == [queued[2]]
    complete(engine, running[1], 2.0)
    assert engine.admission.admit(2.0) == [queued[0]]


def test_an_utterance_that_has_waited_for_long_is_not_overtaken_by_another_owner() -> None:
    engine = build(num_slots=2, max_queue_seconds=10.0)
    running, queued = [new_stream(owner="a"), new_stream(owner="a")], new_stream(owner="a")
    engine.admit_all(*running)
    engine.admission.enqueue(queued, 0.0)
    engine.admission.enqueue(new_stream(owner="b", arrived_at=6.0), 6.0)
    complete(engine, running[0], 6.1)  # the owner still has more in progress than the other one
    assert engine.admission.admit(6.1) == [queued]


def test_the_wait_of_an_owner_with_nothing_in_progress_is_shorter() -> None:
    engine = build(SLOW, num_slots=3, max_queue=50, max_queue_seconds=30.0)
    for _ in range(9):
        engine.admission.enqueue(new_stream(owner="a", text_bytes=TEXT), 0.0)
        engine.admission.admit(0.0)
    waits = {owner: engine.admission.estimate_wait(Demand(live=True, owner=owner), 0.0) for owner in "ab"}
    assert 0 < waits["b"] < 0.5 * waits["a"]


def test_an_owner_below_its_share_does_not_wait_for_the_turns_of_others() -> None:
    engine = build(SLOW, num_slots=3, max_queue=50, max_queue_seconds=10.0)
    with suppress(Overloaded):
        while True:
            engine.admission.enqueue(new_stream(owner="a", text_bytes=TEXT), 0.0)
            engine.admission.admit(0.0)
    for fingerprint in range(1, 31):
        with pytest.raises(Overloaded):
            engine.admission.precheck(Demand(True, owner="a", num_bytes=TEXT, fingerprint=fingerprint), 0.0)
    engine.admission.enqueue(new_stream(owner="b", text_bytes=TEXT), 0.0)
