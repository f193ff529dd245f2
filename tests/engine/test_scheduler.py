# SPDX-License-Identifier: Apache-2.0
"""Which streams a step has, how many prompt rows, and how long it may take."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.schedulers import GPU, LIMITS, build, new_stream, playing, running
from polyvox.engine.cost_model import CostModel
from polyvox.engine.stream_state import StreamState
from polyvox.engine.stream_status import StreamStatus

# Order


def test_starting_streams_go_first_then_the_nearest_deadline_then_files() -> None:
    new, newer = new_stream(arrived_at=1.0), new_stream(arrived_at=2.0)
    near, far, file = playing(0.1), playing(2.0), new_stream(arrived_at=0.0, live=False)
    order = [new, newer, near, far, file]
    for count in range(1, 6):
        engine = running(file, far, newer, near, new, max_batch=count)
        assert set(engine.plan(10.0).frame) == set(order[:count])
        for stream in order:
            engine.finish(stream, 10.0)
            stream.status, stream.ended = StreamStatus.RUNNING, False


def test_a_full_batch_takes_the_streams_with_the_nearest_deadlines() -> None:
    streams = [playing(lead) for lead in (1.5, 0.2, 0.9, 0.3, 2.5)]
    plan = running(*streams, max_batch=2).plan(10.0)
    assert set(plan.frame) == {streams[1], streams[3]}


def test_a_complete_prompt_generates_its_first_frame_in_the_same_step() -> None:
    new = new_stream(prompt_rows=30)
    plan = running(new).plan(0.0)
    assert plan.prefill == ((new, 29),)
    assert plan.frame == (new,)


def test_a_prompt_longer_than_a_step_takes_several_steps() -> None:
    new = new_stream(prompt_rows=1000)
    engine = running(new)
    plan = engine.plan(0.0)
    assert (plan.prefill, plan.frame) == (((new, 512),), ())
    engine.start(plan, 0.0)
    plan = engine.plan(0.1)
    assert (plan.prefill, plan.frame) == (((new, 487),), (new,))


def test_a_stream_past_its_deadline_is_in_the_next_step_whatever_the_cost_model_predicts() -> None:
    """A cost model that is far too low would choose a small step."""
    late = [playing(-0.5, generated=21, started=21) for _ in range(200)]
    plan = running(*late, cost=CostModel(1e-5, 1e-7, 1e-7, 1e-5, 1e-7), num_slots=200).plan(10.0)
    assert len(plan.frame) == 200
    assert len(plan.codec) == 200


def test_all_chunks_of_urgent_streams_are_decoded_where_the_codec_is_slow() -> None:
    """Otherwise frames pile up undecoded, and a few streams in turn get large chunks while the others run dry."""
    cpu = CostModel(step=0.012, stream=0.0025, prefill_row=3e-4, codec=0.010, codec_frame=0.0066)
    streams = [playing(lead, generated=22, started=22) for lead in (0.1, 0.13, 0.2)]
    plan = running(*streams, cost=cpu, num_slots=8, max_batch=8).plan(10.0)
    assert plan.codec == tuple((stream, 2) for stream in streams)


# The lead cap and files


@given(leads=st.lists(st.floats(0.01, 60), min_size=1, max_size=20), files=st.integers(0, 5))
def test_the_lead_cap_never_idles_the_engine_and_excludes_no_stream_below_it(leads: list[float], files: int) -> None:
    streams = [playing(lead) for lead in leads] + [new_stream(live=False) for _ in range(files)]
    chosen = running(*streams).plan(10.0).frame
    assert chosen
    if min(leads) >= LIMITS.urgent_lead:  # no stream is urgent: all run
        assert set(chosen) == set(streams)
    assert {one for one in streams if one.lead(10.0) < LIMITS.lead_cap} <= set(chosen)


def test_streams_beyond_the_lead_cap_pause_while_another_starts_on_a_slow_machine() -> None:
    slow = CostModel(step=0.01, stream=0.005, prefill_row=1e-4, codec=0.004, codec_frame=0.005)
    new, far = new_stream(), [playing(10.0) for _ in range(5)]
    engine = running(new, *far, cost=slow)
    chosen = engine.plan(10.0).frame
    assert new in chosen
    assert len(chosen) < 6
    new.first_audio_at, new.deadline = 9.0, 13.0
    assert len(engine.plan(10.0).frame) == 6


def test_one_stream_on_an_idle_engine_is_in_every_step_until_its_end() -> None:
    one, engine, now = new_stream(max_frames=300), build(), 0.0
    engine.admit_all(one)
    steps = 0
    while one.decoded < 300:
        plan = engine.plan(now)
        assert plan.frame == ((one,) if one.started < 300 else ())
        now, steps = now + 0.01, steps + 1
        one.generated = one.started
        engine.start(plan, now)
        if one.generated == 300 and not one.ended:
            engine.drain(one)
        for _, frames in plan.codec:
            engine.decode(one, frames, now)
    assert steps < 310
    assert one.underruns == 0


@given(
    leads=st.lists(st.floats(0.02, 5), min_size=1, max_size=30),
    files=st.integers(1, 30),
    waiting=st.integers(0, 16),
    rows=st.integers(0, 400),
)
def test_files_do_not_delay_live_streams(leads: list[float], files: int, waiting: int, rows: int) -> None:
    def streams() -> list[StreamState]:
        return [playing(lead, generated=20 + i % 3, started=23) for i, lead in enumerate(leads)]

    live, alone = streams(), streams()
    others = [
        new_stream(live=False, prompt_rows=1 + rows * (i % 2), generated=waiting, started=waiting) for i in range(files)
    ]
    plan = running(*others, *live, max_batch=16).plan(10.0)
    plan_alone = running(*alone, max_batch=16).plan(10.0)

    def below_cap(streams: list[StreamState], frame: tuple[StreamState, ...]) -> set[int]:
        return {streams.index(one) for one in frame if one.live and one.lead(10.0) < LIMITS.lead_cap}

    assert below_cap(live, plan.frame) == below_cap(alone, plan_alone.frame)
    assert {live.index(one) for one, _ in plan.codec if one.live} == {alone.index(one) for one, _ in plan_alone.codec}
    # What files add fits the shortest lead, or is nothing.
    cost = GPU.seconds(*plan.sizes())
    assert cost <= max(GPU.seconds(*plan_alone.sizes()) + 2e-5, min(leads) / 3, LIMITS.frame_seconds / 3)


# Prefill


@given(lead=st.floats(0.1, 1.0), prompts=st.lists(st.integers(2, 3000), min_size=1, max_size=20))
def test_a_burst_of_long_prompts_delays_no_playing_stream(lead: float, prompts: list[int]) -> None:
    slow_rows = replace(GPU, prefill_row=0.001)
    plan = running(playing(lead), *(new_stream(prompt_rows=rows) for rows in prompts), cost=slow_rows).plan(10.0)
    assert plan.prefill
    assert slow_rows.seconds(*plan.sizes()) < max(lead / 2, 0.03)


def test_prompts_progress_even_if_every_stream_is_late() -> None:
    engine = running(*(playing(0.01) for _ in range(60)), new_stream(prompt_rows=400))
    assert engine.plan(10.0).prefill


def test_prompts_of_live_streams_go_before_those_of_files() -> None:
    file, live = new_stream(arrived_at=0, prompt_rows=300, live=False), new_stream(arrived_at=1, prompt_rows=300)
    assert running(file, live).plan(2.0).prefill == ((live, 299), (file, 213))
