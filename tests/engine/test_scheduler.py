"""The scheduler's arithmetic, on a clock that the tests set."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polyvox.engine.cost_model import FOLLOW, CostModel
from polyvox.engine.scheduler import CROWD, GIVE_UP, Scheduler, _Look
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_state import CHUNK_SIZES, SchedulerLimits, StepPlan, StreamState
from polyvox.errors import InvalidRequest, Overloaded

FRAME = 0.08
LIMITS = SchedulerLimits(
    frame_seconds=FRAME,
    slots=64,
    pages=4096,
    page_size=16,
    ring=64,
    max_queue=8,
    max_queue_seconds=2.0,
    prefill_rows=512,
    batch=512,
)
# Like a large GPU: 10 ms for any step, 0.05 ms for each stream in it.
GPU = CostModel(step=0.006, stream=2.2e-5, prefill_row=1.2e-5, codec=0.0039, codec_frame=3e-5)


def scheduler(cost: CostModel = GPU, **changes: Any) -> Scheduler:
    limits = replace(LIMITS, **changes)
    return Scheduler(limits, replace(cost), SlotLedger(limits.slots, limits.pages))


_ids = iter(range(1, 1_000_000))


def track(arrived: float = 0.0, prompt_rows: int = 1, max_frames: int = 500, **fields: Any) -> StreamState:
    return StreamState(next(_ids), arrived, prompt_rows, max_frames, **fields)


def playing(lead: float, now: float = 10.0, **fields: Any) -> StreamState:
    """A stream in the middle of speech that has so much lead at `now`, and everything made is given."""
    values: dict[str, Any] = {"made": 20, "started": 20, "decoded": 20, "first_audio": 0.0, "given": now + lead}
    found = track(**(values | fields))
    found.deadline = now + lead
    return found


def let_in(engine: Scheduler, *tracks: StreamState, now: float = 0.0) -> None:
    for one in tracks:
        engine.offer(one, now)
        admitted, _ = engine.admit(now)
        assert admitted == [one]


def running(*tracks: StreamState, cost: CostModel = GPU, **changes: Any) -> Scheduler:
    """A scheduler in which these run, whatever the door would have said."""
    engine = scheduler(cost, **changes)
    for one in tracks:
        engine.running.append(one)
        engine._count(one, 1)
    return engine


# Order


def test_starting_streams_go_first_then_the_nearest_deadline_then_files() -> None:
    new, newer = track(arrived=1.0), track(arrived=2.0)
    near, far, file = playing(0.1), playing(2.0), track(arrived=0.0, live=False)
    plan = running(file, far, newer, near, new).plan(10.0)
    assert plan.frame == (new, newer, near, far, file)


def test_a_full_batch_takes_those_with_the_nearest_deadlines() -> None:
    leads = [1.5, 0.2, 0.9, 0.3, 2.5]
    tracks = [playing(lead) for lead in leads]
    plan = running(*tracks, batch=2).plan(10.0)
    assert plan.frame == (tracks[1], tracks[3])


def test_a_prompt_that_is_complete_makes_its_first_frame_in_the_same_step() -> None:
    new = track(prompt_rows=30)
    plan = running(new).plan(0.0)
    assert plan.prefill == ((new, 29),)
    assert plan.frame == (new,)


def test_a_prompt_longer_than_a_step_takes_several_and_no_frame_before_its_end() -> None:
    new = track(prompt_rows=1000)
    engine = running(new)
    plan = engine.plan(0.0)
    assert plan == StepPlan(prefill=((new, 512),))
    new.prefilled = 512
    assert engine.plan(0.1) == StepPlan(prefill=((new, 487),), frame=(new,))


# The lead cap and files


@given(leads=st.lists(st.floats(0.01, 60), min_size=1, max_size=20), files=st.integers(0, 5))
def test_the_lead_cap_never_idles_and_leaves_out_nobody_below_it(leads: list[float], files: int) -> None:
    tracks = [playing(lead) for lead in leads] + [track(live=False) for _ in range(files)]
    chosen = running(*tracks).plan(10.0).frame
    assert chosen
    if min(leads) >= LIMITS.urgent:  # nobody is in a hurry: everybody runs
        assert set(chosen) == set(tracks)
    assert {one for one in tracks if one.lead(10.0) < LIMITS.lead_cap} <= set(chosen)


def test_streams_beyond_the_cap_rest_while_another_starts_on_a_machine_that_feels_them() -> None:
    slow = CostModel(step=0.01, stream=0.005, prefill_row=1e-4, codec=0.004, codec_frame=0.005)
    new, far = track(), [playing(10.0) for _ in range(5)]
    engine = running(new, *far, cost=slow)
    chosen = engine.plan(10.0).frame
    assert chosen[0] is new
    assert len(chosen) < 6
    new.first_audio, new.deadline = 9.0, 13.0
    assert len(engine.plan(10.0).frame) == 6


def test_one_stream_on_an_idle_engine_runs_in_every_step_to_its_end() -> None:
    one, engine, now = track(max_frames=300), scheduler(), 0.0
    let_in(engine, one)
    steps = 0
    while one.decoded < 300:
        plan = engine.plan(now)
        assert plan.frame == ((one,) if one.started < 300 else ())
        now, steps = now + 0.01, steps + 1
        one.made = one.started
        one.started += len(plan.frame)
        one.ended = one.made == 300
        for _, frames in plan.codec:
            one.decoded += frames
            engine.gave(one, frames, now)
    assert steps < 310
    assert one.underruns == 0


@given(
    leads=st.lists(st.floats(0.02, 5), min_size=1, max_size=30),
    files=st.integers(1, 30),
    waiting=st.integers(0, 16),
    rows=st.integers(0, 400),
)
def test_files_never_take_the_place_of_a_live_stream_nor_its_time(
    leads: list[float], files: int, waiting: int, rows: int
) -> None:
    def streams() -> list[StreamState]:
        return [playing(lead, made=20 + i % 3, started=23) for i, lead in enumerate(leads)]

    live, alone = streams(), streams()
    others = [track(live=False, prompt_rows=1 + rows * (i % 2), made=waiting, started=waiting) for i in range(files)]
    with_files, without = running(*others, *live, batch=16), running(*alone, batch=16)
    plan, bare = with_files.plan(10.0), without.plan(10.0)

    def near(tracks: list[StreamState], frame: tuple[StreamState, ...]) -> list[int]:
        return [tracks.index(one) for one in frame if one.live and one.lead(10.0) < LIMITS.lead_cap]

    assert near(live, plan.frame) == near(alone, bare.frame)
    assert {live.index(one) for one, _ in plan.codec if one.live} == {alone.index(one) for one, _ in bare.codec}
    # What they add fits the lead of the stream that is nearest to its deadline, or is nothing.
    cost = GPU.seconds(*plan.sizes())
    assert cost <= max(GPU.seconds(*bare.sizes()) + 2e-5, min(leads) / 3, LIMITS.frame_seconds / 3)


# Prefill


@given(lead=st.floats(0.1, 1.0), prompts=st.lists(st.integers(2, 3000), min_size=1, max_size=20))
def test_a_burst_of_long_prompts_delays_nobody(lead: float, prompts: list[int]) -> None:
    slow_rows = replace(GPU, prefill_row=0.001)
    plan = running(playing(lead), *(track(prompt_rows=rows) for rows in prompts), cost=slow_rows).plan(10.0)
    assert plan.prefill
    assert slow_rows.seconds(*plan.sizes()) < max(lead / 2, 0.03)


def test_prompts_get_on_even_where_every_stream_is_late() -> None:
    engine = running(*(playing(0.01) for _ in range(60)), track(prompt_rows=400))
    assert engine.plan(10.0).prefill


def test_live_prompts_go_before_those_of_files() -> None:
    file, live = track(arrived=0, prompt_rows=300, live=False), track(arrived=1, prompt_rows=300)
    assert running(file, live).plan(2.0).prefill == ((live, 299), (file, 213))


# The door


def test_requests_are_let_in_in_the_order_they_came_and_live_ones_before_files() -> None:
    engine = scheduler()
    tracks = [track(live=live) for live in (False, True, False, True)]
    for one in tracks:
        engine.offer(one, 0.0)
    admitted, expired = engine.admit(0.5)
    assert admitted == [tracks[1], tracks[3], tracks[0], tracks[2]]
    assert expired == []
    assert all(one.admitted == 0.5 for one in tracks)


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    engine = scheduler(slots=1, max_queue=3, max_queue_seconds=30.0)
    let_in(engine, track())
    for _ in range(3):
        engine.offer(track(), 5.0)
    with pytest.raises(Overloaded, match="queue is full") as error:
        engine.offer(track(), 5.0)
    assert error.value.retry_after == 2.0  # the usual 3 s and the 5 s that nobody ended: the fourth would wait 32 s
    assert len(engine.waiting) == 3


def test_who_would_wait_too_long_is_refused_at_once_and_told_when_to_come_back() -> None:
    engine = scheduler(slots=4, max_queue=100, max_queue_seconds=3.5)
    let_in(engine, *(track() for _ in range(4)))
    for _ in range(4):  # streams hold their place for 3 s as long as none has ended: one of four ends every 0.75 s
        engine.look(live=True, continues=False, now=0.0)
        engine.offer(track(), 0.0)
    with pytest.raises(Overloaded, match=r"not come free within 3\.5 s") as error:
        engine.look(live=True, continues=False, now=0.0)
    assert error.value.retry_after == 1.0
    with pytest.raises(Overloaded):
        engine.offer(track(), 0.0)


def test_the_wait_is_foreseen_by_how_long_streams_held_their_places() -> None:
    engine = scheduler(slots=1, max_queue=100, max_queue_seconds=100.0)
    now = 0.0
    for _ in range(100):
        one = track(arrived=now)
        let_in(engine, one, now=now)
        now += 7.0
        engine.release(one, now)
    assert engine.wait(True, 0, now) == 0.0
    let_in(engine, track(arrived=now), now=now)
    assert engine.wait(True, 0, now) == pytest.approx(7.0, rel=0.01)
    assert engine.wait(True, 0, now + 20) == pytest.approx(11.0, rel=0.01)  # a long one tells before it has ended
    engine.offer(track(arrived=now), now)
    assert engine.wait(True, 0, now) == pytest.approx(14.0, rel=0.01)
    assert engine.wait(False, 10_000, now) == 3.0  # no file has ended yet, and its pages are not there


def test_the_next_sentence_of_an_utterance_is_never_refused_for_its_wait_and_goes_first() -> None:
    engine = scheduler(slots=2, max_queue=2, max_queue_seconds=3.0)
    speaking = track()
    let_in(engine, speaking, track())
    newcomers = [track(), track()]
    for one in newcomers:
        engine.offer(one, 0.0)
    with pytest.raises(Overloaded):
        engine.look(live=True, continues=False, now=0.0)
    following = [track(continues=True), track(continues=True)]
    for one in following:
        engine.look(live=True, continues=True, now=0.0)
        engine.offer(one, 0.0)
    with pytest.raises(Overloaded, match="full"):
        engine.offer(track(continues=True), 0.0)
    assert engine.admit(0.0) == ([], [])
    engine.release(speaking, 1.0)
    assert engine.admit(1.0) == ([following[0]], [])


def test_the_next_sentence_has_a_place_also_where_the_machine_became_slower() -> None:
    slow = CostModel(step=0.02, stream=0.005, prefill_row=1e-4, codec=0.01, codec_frame=0.005)
    speaking = [playing(0.05) for _ in range(4)]
    engine = running(*speaking, cost=replace(slow, growing=1.2), slots=8)
    assert engine.capacity() == 3
    engine.release(speaking[0], 10.0)
    newcomer, following = track(arrived=10.0), track(arrived=10.0, continues=True)
    engine.offer(newcomer, 10.0)
    engine.offer(following, 10.0)
    assert engine.admit(10.0) == ([following], [])


def test_without_a_queue_a_free_place_is_still_given() -> None:
    engine = scheduler(max_queue=0, slots=1)
    let_in(engine, track())
    with pytest.raises(Overloaded):
        engine.offer(track(), 0.0)


def test_a_request_that_waited_too_long_is_given_up() -> None:
    engine = scheduler(slots=1, max_queue_seconds=5.0)
    let_in(engine, track())
    late = track(arrived=1.0)
    engine.offer(late, 1.0)
    assert engine.admit(GIVE_UP + 5.9) == ([], [])  # longer than was foreseen, and still to be served
    assert engine.admit(GIVE_UP + 6.1) == ([], [late])
    assert not engine.waiting


def test_a_request_larger_than_the_memory_is_refused_for_good() -> None:
    with pytest.raises(InvalidRequest, match="raise the engine's context"):
        scheduler(pages=4).offer(track(max_frames=100), 0.0)


def test_files_leave_half_of_the_engine_and_of_the_queue_to_live_streams() -> None:
    engine = scheduler(slots=4, max_queue=4, max_queue_seconds=10.0)
    for _ in range(4):
        engine.offer(track(live=False), 0.0)
    assert len(engine.admit(0.0)[0]) == 2
    with pytest.raises(Overloaded):
        engine.offer(track(live=False), 0.0)
    let_in(engine, track(), track())


def test_a_burst_on_an_idle_engine_is_not_refused_for_the_length_of_the_queue() -> None:
    engine = scheduler(slots=64, max_queue=2)
    for _ in range(66):
        engine.offer(track(), 0.0)
    with pytest.raises(Overloaded):
        engine.offer(track(), 0.0)
    assert len(engine.admit(0.0)[0]) == 64


def test_a_stream_waits_at_the_door_while_others_are_about_to_run_dry() -> None:
    late, new = playing(0.03), track(arrived=10.0)
    engine = running(late)
    engine.offer(new, 10.0)
    assert engine.admit(10.0) == ([], [])
    engine.gave(late, 1.0 / FRAME, 10.0)
    assert engine.admit(10.1) == ([new], [])


def test_who_comes_when_another_has_just_ended_finds_its_place() -> None:
    """Also within the time for which a look at all streams is good."""
    slow = CostModel(step=0.03, stream=0.02, prefill_row=1e-4, codec=0.01, codec_frame=0.005)
    one = playing(1.0)
    engine = running(one, cost=slow, max_queue_seconds=0.0)
    assert engine.capacity() == 1
    engine.plan(10.0)
    with pytest.raises(Overloaded):
        engine.offer(track(arrived=10.0), 10.0)
    engine.ends_now(one)
    engine.offer(track(arrived=10.0), 10.0)


def test_a_first_chunk_is_one_frame_where_steps_are_quick() -> None:
    engine = scheduler()
    assert engine.first_chunk(10.0) == 1
    crowd = running(*(playing(1.0) for _ in range(400)))
    assert crowd.first_chunk(10.0) == 2
    assert scheduler(CostModel(0.02, 0.0, 0.0, 0.0, 0.0)).first_chunk(0.0) == 2


def test_a_first_chunk_counts_all_who_begin_together() -> None:
    for many, frames in ((1, 1), (400, 2)):
        engine, tracks = scheduler(slots=512, pages=20_000, max_queue=512), [track(first_chunk=0) for _ in range(many)]
        for one in tracks:
            engine.offer(one, 0.0)
        assert engine.admit(0.0) == (tracks, [])
        assert {one.first_chunk for one in tracks} == {frames}


def test_whoever_is_late_is_in_the_next_step_however_cheap_it_was_said_to_be() -> None:
    """By a cost model that is far off, a step with a few streams would seem to do."""
    late = [playing(-0.5, made=21, started=21) for _ in range(200)]
    engine = running(*late, cost=CostModel(1e-5, 1e-7, 1e-7, 1e-5, 1e-7))
    plan = engine.plan(10.0)
    assert len(plan.frame) == 200
    assert len(plan.codec) == 200


def test_capacity_is_what_can_be_kept_fed() -> None:
    engine = scheduler(slots=10_000, batch=10_000)
    streams = engine.capacity()
    assert GPU.seconds(streams, 0, streams) <= FRAME * LIMITS.headroom < GPU.seconds(streams + 1, 0, streams + 1)


@given(
    factor=st.floats(1.0, 20.0),
    field=st.sampled_from(["step", "stream", "codec", "codec_frame"]),
    batch=st.integers(1, 600),
)
def test_a_slower_machine_has_less_capacity_and_a_larger_batch_more(factor: float, field: str, batch: int) -> None:
    slower = replace(GPU, **{field: getattr(GPU, field) * factor})
    before = scheduler(slots=5000, batch=batch).capacity()
    assert 1 <= scheduler(slower, slots=5000, batch=batch).capacity() <= before
    assert scheduler(slots=5000, batch=batch + 1).capacity() >= before
    assert scheduler(slots=batch).capacity() <= batch


def test_streams_beyond_capacity_wait() -> None:
    slow = CostModel(step=0.02, stream=0.005, prefill_row=1e-4, codec=0.01, codec_frame=0.005)
    engine = scheduler(slow, max_queue=20, max_queue_seconds=10.0)
    for _ in range(10):
        engine.offer(track(), 0.0)
    assert len(engine.admit(0.0)[0]) == engine.capacity() == 3


# The cost model


def test_the_cost_model_learns_a_slower_machine_and_forgives_a_stall() -> None:
    engine = running(*(playing(1.0) for _ in range(40)), slots=5000)
    before, plan = engine.capacity(), engine.plan(10.0)
    expected = GPU.seconds(*plan.sizes())
    engine.observe(plan, expected * 50)
    assert engine.capacity() > before * 0.95
    for _ in range(400):
        engine.observe(plan, expected * 1.5)
    assert engine.cost.seconds(*plan.sizes()) == pytest.approx(expected * 1.5, rel=0.01)
    for _ in range(400):
        engine.observe(plan, expected)
    assert engine.cost.seconds(*plan.sizes()) == pytest.approx(expected, rel=0.01)


def test_small_quick_steps_promise_nothing_about_full_ones() -> None:
    cost = replace(GPU)
    for _ in range(2000):
        cost.observe(1, 0, 1, 1, 0.5 * GPU.seconds(1, 0, 1))
    assert cost.seconds(1, 0, 1) == pytest.approx(0.5 * GPU.seconds(1, 0, 1), rel=0.01)
    assert cost.growing > 0.99


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600), st.integers(0, 600), st.floats(0, 1e3))))
def test_no_measurement_breaks_the_cost_model(steps: list[tuple[int, int, int, float]]) -> None:
    cost = replace(GPU)
    for streams, rows, frames, seconds in steps:
        cost.observe(streams, rows, frames, 1, seconds)
    assert 0.2 <= cost.fixed <= 10
    assert 0.2 <= cost.growing <= 10


def test_prompts_and_codec_calls_count_in_the_capacity() -> None:
    engine = scheduler(slots=5000)
    before = engine.capacity()
    streams = tuple(playing(1.0) for _ in range(512))
    plan = StepPlan(((streams[0], 500),), streams, tuple((one, 1 + one.id % 2) for one in streams))
    for _ in range(int(3 / FOLLOW)):
        engine.observe(plan, engine.cost.seconds(*plan.sizes()))
    assert engine.capacity() < before * 0.9


# Chunks


def test_chunks_grow_with_the_lead_from_a_small_first_one() -> None:
    engine = scheduler()
    assert engine.chunk(track(first_chunk=2), 0.0) == 2
    sizes = [engine.chunk(playing(lead / 10), 10.0) for lead in range(60)]
    assert sizes == sorted(sizes)
    assert set(sizes) == set(CHUNK_SIZES)
    assert engine.chunk(track(live=False), 0.0) == CHUNK_SIZES[-1]


def test_a_chunk_waits_until_it_is_whole_and_the_end_is_flushed_at_once() -> None:
    one = playing(1.0, made=23, started=25)  # 3 of the 4 frames that its lead asks for
    engine = running(one)
    assert engine.plan(10.0).codec == ()
    one.ended = True
    assert engine.plan(10.0).codec == ((one, 2),)
    one.decoded += 2
    assert engine.plan(10.0).codec == ((one, 1),)


def test_a_stream_without_text_gives_what_it_has() -> None:
    one = playing(1.0, made=21, started=21, text_frames=21)
    assert running(one).plan(10.0).codec == ((one, 1),)


@given(ring=st.integers(2, 40), first_chunk=st.integers(1, 16), live=st.booleans(), room=st.integers(1, 20))
def test_no_ring_buffer_or_first_chunk_stops_a_stream(ring: int, first_chunk: int, live: bool, room: int) -> None:
    """Frames are known a step late, and the reader takes a frame each step: the stream still comes to its end."""
    one = track(max_frames=50, first_chunk=first_chunk, live=live, room=room)
    engine, now = running(one, ring=ring), 0.0
    for _ in range(600):
        plan = engine.plan(now)
        now += 0.01
        one.made = one.started
        one.started += len(plan.frame)
        one.ended = one.made == 50
        one.room = min(one.room + 1, room)
        for _, frames in plan.codec:
            assert frames in CHUNK_SIZES
            one.decoded += frames
            one.room -= frames
            assert one.room >= 0
            engine.gave(one, frames, now)
    assert one.decoded == 50


def test_a_file_with_a_small_buffer_gets_on_while_others_start() -> None:
    file = track(live=False, made=20, started=20, decoded=4, room=8)
    new = track(prompt_rows=100)
    assert running(file, new).plan(0.0).codec == ((file, 8),)


def test_a_crowd_is_decoded_in_few_calls() -> None:
    many = [playing(0.2 + 0.01 * i, made=21 + i % 7, started=30) for i in range(500)]
    plan = running(*many, slots=600).plan(10.0)
    assert plan.sizes()[3] <= 2
    assert plan.sizes()[2] >= 400


def speak(engine: Scheduler, tracks: list[StreamState], stall: float = 0.0) -> None:
    """Runs all to their ends, each step as long as it was foreseen; one stalls."""
    now = 0.0
    while plan := engine.plan(now):
        now += engine.cost.seconds(*plan.sizes())
        if stall and now > 0.6:
            now, stall = now + stall, 0.0
        for one, rows in plan.prefill:
            one.prefilled += rows
        for one in plan.frame:
            one.started = one.made = one.started + 1
            one.ended = one.made == one.max_frames
        for one, frames in plan.codec:
            one.decoded += frames
            one.held += frames
            if engine.due(one, now):
                engine.gave(one, one.held, now)
        for one in [one for one in engine.running if one.ended and one.decoded == one.made]:
            engine.release(one, now)
    assert all(one.decoded == one.max_frames for one in tracks)


def test_near_its_deadline_a_stream_is_given_what_its_chunk_waited_for() -> None:
    near, far = playing(0.4), playing(2.0)
    engine = running(near, far, *(playing(1.0) for _ in range(CROWD - 2)))
    near.held, far.held = engine.chunk(near, 10.0), engine.chunk(far, 10.0)
    assert (near.held, far.held) == (2, 8)
    assert engine.due(near, 10.0)
    assert not engine.due(far, 10.0)  # a longer one costs the host less
    engine.release(near, 10.0)
    assert engine.due(far, 10.0)  # now that they are few


# A machine whose codec takes as long as its frames do; it keeps 64 listeners fed.
EVEN = CostModel(step=0.002, stream=5e-4, prefill_row=1e-5, codec=0.002, codec_frame=5e-4)


@pytest.mark.parametrize("first_chunk", [1, 2])
@pytest.mark.parametrize(("many", "stall"), [(40, 0.0), (62, 0.0), (62, 1.0)])
def test_frames_do_not_pile_up_before_the_codec(many: int, stall: float, first_chunk: int) -> None:
    tracks = [track(prompt_rows=20, max_frames=60, first_chunk=first_chunk) for _ in range(many)]
    speak(running(*tracks, cost=EVEN), tracks, stall)
    assert all(one.underruns <= (stall > 0) for one in tracks), "all start at once, and one step stalls"


# Deadlines


def test_a_late_chunk_is_an_underrun_and_moves_the_deadline() -> None:
    one, engine = track(), scheduler()
    engine.gave(one, 2, 1.0)
    assert one.first_audio == 1.0
    assert one.deadline == pytest.approx(1.16)
    assert one.lead(1.1) == pytest.approx(0.06)
    engine.gave(one, 1, 1.15)
    assert one.underruns == 0
    engine.gave(one, 1, 1.5)
    assert one.underruns == 1
    assert one.deadline == pytest.approx(1.58)


def test_a_file_has_no_deadline() -> None:
    one, engine = track(live=False), scheduler()
    engine.gave(one, 1, 1.0)
    engine.gave(one, 1, 100.0)
    assert one.underruns == 0
    assert one.lead(1000.0) == inf


def test_waiting_for_text_is_not_an_underrun_and_does_not_hurry_others() -> None:
    one = playing(0.1, text_frames=20)
    engine = running(one, playing(1.0))
    alone = running(playing(1.0)).plan(15.0)
    assert len(engine.plan(15.0).frame) == len(alone.frame)  # 5 s of silence
    assert one.lead(15.0) == 0.0
    one.text_frames = 40  # text comes: like a start
    plan = engine.plan(15.0)
    assert plan.frame[0] is one
    one.started, one.made, one.decoded = 22, 22, 21
    engine.gave(one, 1, 15.2)
    assert one.underruns == 0
    assert one.deadline == pytest.approx(15.28)
    one.decoded = 22
    engine.gave(one, 1, 15.5)  # from here on it is the engine's again
    assert one.underruns == 1


def test_frames_made_before_the_text_ran_out_are_still_due() -> None:
    one = playing(0.1, made=22, started=22, text_frames=22)
    engine = running(one)
    engine.plan(10.0)
    one.decoded = 22
    engine.gave(one, 2, 10.5)
    assert one.underruns == 1


def test_text_that_comes_word_by_word_is_late_itself_and_not_the_engine() -> None:
    one = playing(0.1, text_frames=20)
    engine = running(one)
    for second in range(11, 16):
        engine.plan(second - 0.5)
        one.text_frames += 1
        assert engine.plan(second).frame == (one,)
        one.started = one.made = int(one.text_frames)
        assert engine.plan(second + 0.01).codec == ((one, 1),)
        one.decoded = one.made
        engine.gave(one, 1, second + 0.02)
    assert one.underruns == 0


def test_a_reader_that_stops_is_not_an_underrun() -> None:
    one = playing(0.1, made=24, started=24, room=0)
    engine = running(one)
    assert engine.plan(13.0).codec == ()
    one.room = 25
    assert engine.plan(13.0).codec == ((one, 4),)
    one.decoded = 24
    engine.gave(one, 4, 13.1)
    assert one.underruns == 0
    assert one.lead(13.1) == pytest.approx(0.32)


def test_a_reader_with_a_full_buffer_keeps_the_lead_that_it_has() -> None:
    one = playing(2.0, made=24, started=24, room=0)
    engine = running(one)
    engine.plan(10.0)
    assert one.lead(10.0) == pytest.approx(2.0)
    assert not one.starts(10.0)


def test_a_reader_that_stopped_makes_a_few_frames_ahead_and_then_rests() -> None:
    one = playing(2.0, room=0)
    engine, steps = running(one), 0
    while engine.plan(10.0).frame:
        one.started += 1
        one.made = one.started
        steps += 1
    assert steps == CHUNK_SIZES[-1]


# Accounts


class EngineEndpoint(RuleBasedStateMachine):
    """Requests come, run, end and are given up in any order: slots and pages always add up."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = scheduler(slots=5, pages=60, max_queue=4, max_queue_seconds=1.0)
        self.now = 0.0
        self.inside: list[StreamState] = []

    @rule(rows=st.integers(1, 300), frames=st.integers(1, 800), live=st.booleans(), continues=st.booleans())
    def offer(self, rows: int, frames: int, live: bool, continues: bool) -> None:
        one = track(self.now, rows, frames, live=live, continues=continues)
        waiting = len(self.engine.waiting)
        try:
            self.engine.offer(one, self.now)
            self.inside.append(one)
        except (Overloaded, InvalidRequest):
            assert len(self.engine.waiting) == waiting

    @rule()
    def admit(self) -> None:
        admitted, expired = self.engine.admit(self.now)
        patience = 1.0 + GIVE_UP
        assert all(self.now - one.arrived <= patience for one in admitted)
        assert all(self.now - one.arrived > patience for one in expired)
        self.inside = [one for one in self.inside if one not in expired]

    @rule(seconds=st.floats(0.001, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def step(self) -> None:
        plan = self.engine.plan(self.now)
        assert plan or not any(not one.ended or one.decoded < one.made for one in self.engine.running)
        assert len(plan.frame) == len(set(plan.frame))
        self.now += 0.01
        for one, rows in plan.prefill:
            assert 0 < rows <= one.prompt_left
            one.prefilled += rows
        for one in plan.frame:
            assert one.prompt_left == 0
            one.started += 1
            one.made += 1
        for one, frames in plan.codec:
            one.decoded += frames
            assert one.decoded <= one.made
            self.engine.gave(one, frames, self.now)
        for one in self.engine.running:
            one.ended = one.made == one.max_frames
        self.engine.observe(plan, 0.01)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.inside))
        self.engine.release(one, self.now)
        self.engine.release(one, self.now)  # a second time does nothing
        self.inside.remove(one)

    @invariant()
    def accounts_add_up(self) -> None:
        engine = self.engine
        assert set(engine.running) | set(engine.waiting) == set(self.inside)
        assert len(engine.running) + len(engine.waiting) == len(self.inside)
        assert len(engine.running) <= 5
        # The queue, as many later sentences as slots, and some that are on their way to free places.
        assert len(engine.waiting) <= 4 + 5 + 5
        assert len(engine.ledger.free_pages) == 60 - sum(engine.pages(one) for one in engine.running) >= 0
        assert engine.files == sum(not one.live for one in engine.running)
        assert engine.file_pages == sum(engine.pages(one) for one in engine.running if not one.live)


TestDoor = EngineEndpoint.TestCase
TestDoor.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_one_look_at_all_streams_answers_for_every_cost_of_a_frame() -> None:
    look = _Look(0.0, 3, [0.1, 0.2, 0.25])
    assert [round(look.slack(each), 6) for each in (0.01, 0.08, 0.01)] == [0.09, 0.01, 0.09]
    assert _Look(0.0, 0, []).slack(0.01) == inf
