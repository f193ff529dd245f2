# SPDX-License-Identifier: Apache-2.0
"""Which requests are rejected, queued and admitted."""

from dataclasses import replace
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.schedulers import FRAME, GPU, LIMITS, SLOW, Fixture, build, new_stream, playing, running
from polyvox.engine.admission import QUEUE_GRACE_SECONDS, RETRY_WAIT_SHARE
from polyvox.engine.config import MIN_QUEUE, EngineConfig
from polyvox.engine.cost_model import CostModel
from polyvox.engine.demand import Demand
from polyvox.engine.load import LoadSnapshot
from polyvox.engine.stream_state import StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.utterances import FRAMES_PER_BYTE
from polyvox.errors import InvalidRequest, Overloaded


def test_requests_are_admitted_in_order_of_arrival_and_live_ones_before_files() -> None:
    engine = build()
    streams = [new_stream(live=live) for live in (False, True, False, True)]
    for one in streams:
        engine.admission.enqueue(one, 0.0)
    assert engine.admission.expire(0.5) == []
    assert engine.admission.admit(0.5) == [streams[1], streams[3], streams[0], streams[2]]
    assert all(one.admitted_at == 0.5 for one in streams)


def bytes_of(engine: Fixture, seconds: float) -> int:
    """Text whose speech takes this many seconds of a full engine's time."""
    return round(seconds * engine.load.speed() / (FRAMES_PER_BYTE * FRAME))


def test_a_full_queue_rejects_with_the_time_to_retry_after() -> None:
    engine = build(num_slots=1, max_queue=3, max_queue_seconds=40.0)
    text_bytes = bytes_of(engine, 8.0)
    engine.admit_all(new_stream(max_frames=5000, text_bytes=text_bytes))
    for _ in range(3):
        engine.admission.enqueue(new_stream(max_frames=5000, text_bytes=text_bytes), 0.0)
    with pytest.raises(Overloaded, match="queue is full") as error:
        engine.admission.enqueue(new_stream(max_frames=5000, text_bytes=text_bytes), 0.0)
    assert error.value.reason == "queue_full"
    margin = engine.admission.estimate.margin(32.0)
    assert error.value.retry_after == ceil(32.0 + margin - RETRY_WAIT_SHARE * 40.0)
    assert len(engine.queued) == 3


def test_requests_that_would_wait_too_long_for_kv_pages_are_rejected_at_once() -> None:
    """Slots and time are there for 64 streams, pages for seven."""
    engine = build(num_slots=64, num_pages=120, max_queue=64, max_queue_seconds=2.0)
    accepted: list[StreamState] = []

    def arrive(num_streams: int) -> None:
        for one in [new_stream(0.0, 10, 365, text_bytes=60) for _ in range(num_streams)]:
            engine.admission.enqueue(one, 0.0)
            engine.admission.admit(0.0)
            accepted.append(one)

    with pytest.raises(Overloaded, match="free within 2 s"):
        arrive(64)
    num_active = len(engine.streams.active)
    assert num_active == 7
    assert [one.expected_wait > 0 for one in accepted] == [one in engine.queued for one in accepted]
    assert len(accepted) <= 3 * num_active
    load = engine.admission.current_load(0.0)
    assert load.free <= 0
    assert load.wait > accepted[-1].expected_wait


def test_a_request_that_would_wait_too_long_is_rejected_at_once() -> None:
    engine = build(num_slots=4, max_queue=100, max_queue_seconds=5.0)
    text_bytes = bytes_of(engine, 2.9)
    engine.admit_all(*(new_stream(max_frames=5000, text_bytes=text_bytes) for _ in range(4)))
    for _ in range(4):
        engine.admission.precheck(Demand(live=True), 0.0)
        engine.admission.enqueue(new_stream(max_frames=5000, text_bytes=text_bytes), 0.0)
    with pytest.raises(Overloaded, match="free within 5 s") as error:
        engine.admission.precheck(Demand(live=True), 0.0)
    assert error.value.reason == "no_slot_in_time"
    assert error.value.retry_after == ceil(5.8 + engine.admission.estimate.margin(5.8) - RETRY_WAIT_SHARE * 5.0)
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(), 0.0)


def test_the_wait_is_estimated_by_what_is_left_of_all_sentences() -> None:
    engine = build(num_slots=1, max_queue=100, max_queue_seconds=100.0)
    assert engine.wait(0.0) == 0.0
    text_bytes = bytes_of(engine, 7.0)
    running = new_stream(max_frames=5000, text_bytes=text_bytes, utterance_id=1, following_bytes=3 * text_bytes)
    engine.admit_all(running)
    assert engine.wait(0.0) == pytest.approx(28.0, rel=0.01)
    running.generated = round(0.5 * FRAMES_PER_BYTE * text_bytes)
    assert engine.wait(1.0) == pytest.approx(24.5, rel=0.01)
    engine.admission.enqueue(new_stream(max_frames=5000, text_bytes=text_bytes, following_bytes=text_bytes), 1.0)
    assert engine.wait(2.0) == pytest.approx(38.5, rel=0.01)


def test_the_length_of_speech_is_learned_from_streams_that_have_ended() -> None:
    engine = build(num_slots=1)
    before = engine.admission.utterances.seconds(100)
    now = 0.0
    for _ in range(200):
        one = new_stream(arrived_at=now, text_bytes=100)
        engine.admit_all(one, now=now)
        one.generated = one.decoded = 45  # half of what is expected at first
        now += 1.0
        engine.finish(one, now)
    assert engine.admission.utterances.seconds(100) == pytest.approx(before / 2, rel=0.05)


def test_the_next_segment_of_an_utterance_is_never_rejected_for_its_wait_and_goes_first() -> None:
    engine = build(num_slots=2, max_queue=2, max_queue_seconds=3.0)
    first = new_stream()
    engine.admit_all(first, new_stream())
    for one in (new_stream(), new_stream()):
        engine.admission.enqueue(one, 0.0)
    with pytest.raises(Overloaded):
        engine.admission.precheck(Demand(live=True), 0.0)
    following = [new_stream(continues=True), new_stream(continues=True)]
    for one in following:
        engine.admission.precheck(Demand(live=True, continues=True), 0.0)
        engine.admission.enqueue(one, 0.0)
    with pytest.raises(Overloaded, match="full"):
        engine.admission.enqueue(new_stream(continues=True), 0.0)
    assert engine.admission.admit(0.0) == []
    engine.finish(first, 1.0)
    assert engine.admission.admit(1.0) == [following[0]]


def test_the_next_segment_is_admitted_even_if_the_machine_became_slower() -> None:
    active = [playing(0.05) for _ in range(4)]
    engine = running(*active, cost=replace(SLOW, growing=1.2), num_slots=8, max_queue_seconds=100.0)
    assert engine.load.capacity() == 3
    engine.finish(active[0], 10.0)
    new, following = new_stream(arrived_at=10.0), new_stream(arrived_at=10.0, continues=True)
    engine.admission.enqueue(new, 10.0)
    engine.admission.enqueue(following, 10.0)
    assert engine.admission.admit(10.0) == [following]


def test_without_a_queue_a_free_slot_is_still_given() -> None:
    engine = build(max_queue=0, num_slots=1)
    engine.admit_all(new_stream())
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(), 0.0)


def test_a_queued_request_times_out() -> None:
    engine = build(num_slots=1, max_queue_seconds=5.0)
    engine.admit_all(new_stream())
    late = new_stream(arrived_at=1.0)
    engine.admission.enqueue(late, 1.0)
    assert engine.admission.expire(QUEUE_GRACE_SECONDS + 5.9) == []  # longer than estimated, and still served
    assert engine.admission.expire(QUEUE_GRACE_SECONDS + 6.1) == [late]
    assert late.status is StreamStatus.FINISHED
    assert not engine.queued


def test_a_request_larger_than_the_kv_cache_is_invalid() -> None:
    with pytest.raises(InvalidRequest, match="raise the engine's context"):
        build(num_pages=4).admission.enqueue(new_stream(max_frames=100), 0.0)


def test_files_leave_half_of_the_slots_and_of_the_queue_to_live_streams() -> None:
    engine = build(num_slots=4, max_queue=4, max_queue_seconds=10.0)
    for _ in range(4):
        engine.admission.enqueue(new_stream(live=False), 0.0)
    assert len(engine.admission.admit(0.0)) == 2
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(live=False), 0.0)
    engine.admit_all(new_stream(), new_stream())


def test_files_leave_half_of_the_kv_pages_to_live_streams() -> None:
    engine = build(num_slots=16, num_pages=120, max_queue=16, max_queue_seconds=100.0)
    for live in (False, False, False, False, False, True):
        engine.admission.enqueue(new_stream(0.0, 10, 365, live=live, text_bytes=60), 0.0)
    admitted = engine.admission.admit(0.0)
    num_pages = [len(one.allocation.pages) for one in admitted if one.allocation is not None]
    assert num_pages == 5 * [14]
    assert [one.live for one in admitted] == [True, False, False, False, False]  # of 60 pages, four files have 56


def test_a_burst_on_an_idle_engine_is_not_limited_by_the_queue() -> None:
    engine = build(num_slots=64, max_queue=2)
    for _ in range(66):
        engine.admission.enqueue(new_stream(), 0.0)
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(), 0.0)
    assert len(engine.admission.admit(0.0)) == 64


def test_the_queue_has_as_many_requests_as_streams_by_default() -> None:
    assert EngineConfig(max_streams=2048).queue_length == 2048
    assert EngineConfig(max_streams=8).queue_length == MIN_QUEUE
    assert EngineConfig(max_streams=2048, max_queue=0).queue_length == 0


def test_by_default_as_many_clients_as_slots_wait_instead_of_being_rejected() -> None:
    """The capacity is below the number of slots: the others wait for less than an utterance."""
    num_slots = 512
    max_queue = EngineConfig(max_streams=num_slots).queue_length
    engine = build(
        replace(GPU, growing=2.5), num_slots=num_slots, num_pages=1 << 20, max_queue=max_queue, max_queue_seconds=10.0
    )
    clients = [new_stream(text_bytes=bytes_of(engine, 5.0)) for _ in range(num_slots)]
    for client in clients:
        engine.admission.enqueue(client, 0.0)
        engine.admission.admit(0.0)
    assert 0 < len(engine.queued) < num_slots / 2
    engine.finish(clients[0], 1.0)
    assert engine.admission.admit(1.0) == [clients[engine.load.capacity()]]
    while engine.wait(1.0) < 9.0:
        engine.admission.streams.add(new_stream(1.0, text_bytes=bytes_of(engine, 5.0)))
        engine.admission.estimate.invalidate()
    with pytest.raises(Overloaded, match="within 10 s"):  # the wait decides
        engine.admission.enqueue(new_stream(1.0, text_bytes=bytes_of(engine, 5.0)), 1.0)


def test_a_stream_is_not_admitted_while_others_are_close_to_an_underrun() -> None:
    late, new = playing(0.03), new_stream(arrived_at=10.0)
    engine = running(late)
    engine.admission.enqueue(new, 10.0)
    assert engine.admission.admit(10.0) == []
    engine.deliver(late, 1.0 / FRAME, 10.0)
    assert engine.admission.admit(10.1) == [new]


def test_a_request_that_arrives_just_after_an_end_gets_the_free_slot() -> None:
    """The end invalidates the load snapshot."""
    slow = CostModel(step=0.03, stream=0.02, prefill_row=1e-4, codec=0.01, codec_frame=0.005)
    one = playing(1.0)
    engine = running(one, cost=slow, max_queue_seconds=0.0)
    assert engine.load.capacity() == 1
    engine.plan(10.0)
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(arrived_at=10.0), 10.0)
    engine.scheduler.discard_rest(one)
    engine.streams.transition(one, StreamStatus.RELEASING, 10.0)
    engine.admission.enqueue(new_stream(arrived_at=10.0), 10.0)


@pytest.mark.parametrize("following_bytes", [0, 20_000])
def test_a_request_that_arrives_just_after_a_cancel_is_queued_for_that_slot(following_bytes: int) -> None:
    engine = build(num_slots=2, max_queue=0, max_queue_seconds=5.0)
    length = bytes_of(engine, 60.0)
    streams = [new_stream(max_frames=5000, text_bytes=length, following_bytes=following_bytes) for _ in range(2)]
    engine.admit_all(*streams)
    with pytest.raises(Overloaded):
        engine.admission.precheck(Demand(live=True), 0.0)
    engine.admission.on_stop_requested(streams[0])
    assert engine.wait(0.0) == 0.0
    engine.admission.enqueue(new_stream(max_frames=5000, text_bytes=length), 0.0)
    with pytest.raises(Overloaded):  # one slot for one request
        engine.admission.precheck(Demand(live=True), 0.0)
    assert engine.admission.admit(0.0) == []
    engine.streams.transition(streams[0], StreamStatus.RELEASING, 0.0)
    engine.admission.release(streams[0], 0.0, completed=False)
    assert len(engine.admission.admit(0.0)) == 1


def test_a_queued_request_that_was_cancelled_does_not_fill_the_queue() -> None:
    engine = build(num_slots=1, max_queue=1, max_queue_seconds=100.0)
    engine.admit_all(new_stream(max_frames=5000, text_bytes=bytes_of(engine, 8.0)))
    queued = new_stream(max_frames=5000, text_bytes=bytes_of(engine, 8.0))
    engine.admission.enqueue(queued, 0.0)
    with pytest.raises(Overloaded, match="queue is full"):
        engine.admission.precheck(Demand(live=True), 0.0)
    engine.admission.on_stop_requested(queued)
    engine.admission.precheck(Demand(live=True), 0.0)
    assert engine.wait(0.0) == pytest.approx(8.0, abs=0.5)


def test_a_first_chunk_has_one_frame_if_steps_are_quick() -> None:
    assert build().load.first_chunk(10.0) == 1
    assert running(*(playing(1.0) for _ in range(400)), num_slots=400).load.first_chunk(10.0) == 2
    assert build(CostModel(0.02, 0.0, 0.0, 0.0, 0.0)).load.first_chunk(0.0) == 2


@pytest.mark.parametrize(("num_streams", "frames"), [(1, 1), (400, 2)])
def test_a_first_chunk_counts_all_streams_admitted_together(num_streams: int, frames: int) -> None:
    engine = build(num_slots=512, num_pages=20_000, max_queue=512)
    streams = [new_stream(first_chunk=0) for _ in range(num_streams)]
    for one in streams:
        engine.admission.enqueue(one, 0.0)
    assert engine.admission.admit(0.0) == streams
    assert {one.first_chunk for one in streams} == {frames}


# Capacity


def test_capacity_is_the_number_of_streams_that_run_in_real_time() -> None:
    streams = build(num_slots=10_000, max_batch=10_000).load.capacity()
    assert GPU.seconds(streams, 0, streams) <= FRAME * LIMITS.headroom < GPU.seconds(streams + 1, 0, streams + 1)


@given(
    factor=st.floats(1.0, 20.0),
    field=st.sampled_from(["step", "stream", "codec", "codec_frame"]),
    max_batch=st.integers(1, 600),
)
def test_a_slower_machine_has_less_capacity_and_a_larger_batch_more(factor: float, field: str, max_batch: int) -> None:
    slower = replace(GPU, **{field: getattr(GPU, field) * factor})
    before = build(num_slots=5000, max_batch=max_batch).load.capacity()
    assert 1 <= build(slower, num_slots=5000, max_batch=max_batch).load.capacity() <= before
    assert build(num_slots=5000, max_batch=max_batch + 1).load.capacity() >= before
    assert build(num_slots=max_batch).load.capacity() <= max_batch


def test_streams_beyond_capacity_wait() -> None:
    engine = build(SLOW, max_queue=20, max_queue_seconds=100.0)
    for _ in range(10):
        engine.admission.enqueue(new_stream(), 0.0)
    assert len(engine.admission.admit(0.0)) == engine.load.capacity() == 3


def test_a_lead_that_only_more_text_can_increase_does_not_delay_a_new_stream() -> None:
    def admitted(text_frames: float) -> int:
        engine = build()
        stream = new_stream(text_frames=text_frames)
        engine.admit_all(stream)
        engine.start(engine.plan(0.0), 0.0)
        stream.generated = 1
        engine.start(engine.plan(0.0), 0.0)
        engine.decode(stream, 1, 0.0)
        engine.admission.enqueue(new_stream(), 0.05)
        return len(engine.admission.admit(0.05))

    assert admitted(text_frames=inf) == admitted(text_frames=50) == 0  # its lead of 30 ms is the engine's task
    assert admitted(text_frames=5) == 1


def test_a_load_snapshot_answers_for_every_cost_of_a_frame() -> None:
    snapshot = LoadSnapshot(0.0, 3, np.array([0.25, 0.1, 0.2]))
    assert [round(snapshot.slack(each), 6) for each in (0.01, 0.08, 0.01)] == [0.09, 0.01, 0.09]
    assert LoadSnapshot(0.0, 0, np.zeros(0)).slack(0.01) == inf


# Accounting


class AdmissionMachine(RuleBasedStateMachine):
    """Requests arrive, run, end and are cancelled in any order: slots and pages always add up."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = build(num_slots=5, num_pages=60, max_queue=4, max_queue_seconds=1.0)
        self.now = 0.0
        self.accepted: list[StreamState] = []

    @rule(rows=st.integers(1, 300), frames=st.integers(1, 800), live=st.booleans(), continues=st.booleans())
    def enqueue(self, rows: int, frames: int, live: bool, continues: bool) -> None:
        one = new_stream(self.now, rows, frames, live=live, continues=continues)
        before = self.engine.queued
        try:
            self.engine.admission.enqueue(one, self.now)
            self.accepted.append(one)
        except (Overloaded, InvalidRequest):
            assert self.engine.queued == before

    @rule()
    def admit(self) -> None:
        expired = self.engine.admission.expire(self.now)
        admitted = self.engine.admission.admit(self.now)
        max_wait = 1.0 + QUEUE_GRACE_SECONDS
        assert all(self.now - one.arrived_at <= max_wait for one in admitted)
        assert all(self.now - one.arrived_at > max_wait for one in expired)
        self.accepted = [one for one in self.accepted if one not in expired]

    @rule(seconds=st.floats(0.001, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def step(self) -> None:
        active = self.engine.streams.active
        self.engine.admission.pages.grow()
        plan = self.engine.plan(self.now)
        assert plan or not any(not one.ended or one.decoded < one.generated for one in active)
        assert len(plan.frame) == len(set(plan.frame))
        assert all(0 < rows <= one.prompt_left for one, rows in plan.prefill)
        self.now += 0.01
        self.engine.start(plan, self.now)
        for one in plan.frame:
            assert one.prompt_left == 0
            assert one.started <= one.paged_frames
            one.generated += 1
        for one, frames in plan.codec:
            self.engine.decode(one, frames, self.now)
            assert one.decoded <= one.generated
        for one in active:
            if one.generated == one.max_frames and not one.ended:
                self.engine.drain(one, self.now)
        self.engine.load.observe(plan.step, 0.01)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.accepted))
        self.engine.finish(one, self.now)
        self.accepted.remove(one)

    @invariant()
    def slots_and_pages_add_up(self) -> None:
        active, ledger = list(self.engine.streams.active), self.engine.ledger
        assert {*active, *self.engine.queued} == set(self.accepted)
        assert len(active) + len(self.engine.queued) == len(self.accepted) == len(self.engine.streams)
        assert len(active) == 5 - len(ledger.free_slots)
        # The queue, as many later segments as slots, and requests for slots that are free.
        assert len(self.engine.queued) <= 4 + 5 + 5
        pages = [page for one in active if one.allocation is not None for page in one.allocation.pages]
        assert sorted([*pages, *ledger.free_pages]) == list(range(1, 61))
        assert all(one.paged_frames >= min(one.max_frames, one.started) for one in active)


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
