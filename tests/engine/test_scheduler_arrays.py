# SPDX-License-Identifier: Apache-2.0
"""The scheduler with arrays decides like its reference implementation, over random states of streams."""

import random
from copy import copy
from math import inf
from typing import Any

import numpy as np
import pytest

from engine.reference_scheduler import (
    ReferenceScheduler,
    is_starting,
    is_text_limited,
    lead,
    needs_frames,
    needs_text,
    urgency,
)
from engine.schedulers import GPU, LIMITS, SLOW, Fixture, new_stream, running
from polyvox.engine import scheduler
from polyvox.engine.cost_model import CostModel
from polyvox.engine.stream_arrays import StreamArrays
from polyvox.engine.stream_state import ArrayField, StreamState
from polyvox.engine.stream_status import StreamStatus

NOW, NUM_CASES = 10.0, 30
FAST = CostModel(1e-5, 1e-7, 1e-7, 1e-5, 1e-7)
CPU = CostModel(step=0.012, stream=0.0025, prefill_row=3e-4, codec=0.010, codec_frame=0.0066)
FIELDS = [name for name, value in vars(StreamState).items() if isinstance(value, ArrayField)]


def draw_fields(draw: random.Random) -> dict[str, Any]:
    """A stream that has a slot, with counts and moments that can occur."""
    decoded, decoding = draw.randint(0, 60), draw.choice([0, 0, 1, 4])
    generated = decoded + decoding + draw.randint(0, 20)
    started = generated + draw.randint(0, 3)
    rows = draw.choice([1, 1, 1, 40, 700])
    prefilling = rows > 1 and draw.random() < 0.5
    if prefilling:
        decoded = decoding = generated = started = 0
    statuses = [StreamStatus.RUNNING] * 4 + [StreamStatus.DRAINING]

    def moment() -> float:
        return draw.choice([NOW - 1.0, NOW - 0.01, NOW, NOW + 0.05, NOW + 0.3, draw.uniform(NOW - 0.5, NOW + 5.0)])

    return {
        "arrived_at": draw.choice([1.0, 2.0, 3.0]),
        "prompt_rows": rows,
        "prefilled": draw.randint(0, rows - 2) if prefilling else rows - 1,
        "max_frames": started + draw.choice([0, 1, 200]),
        "live": draw.random() < 0.8,
        "first_chunk": draw.choice([1, 2, 16]),
        "status": StreamStatus.PREFILL if prefilling else draw.choice(statuses),
        "started": started,
        "generated": generated,
        "decoding": decoding,
        "decoded": decoded,
        "undelivered": draw.randint(0, 4),
        "text_frames": draw.choice([inf, inf, inf, 0.0, float(started), started + 2.0]),
        "buffer_free": draw.choice([inf, inf, inf, 0.0, 1.0, 5.0, 30.0]),
        "plays_at": draw.choice([-inf, moment()]),
        "first_audio_at": draw.choice([0.0, 0.0, inf]),
        "text_gap": draw.choice([inf, inf, inf, float(decoded), decoded - 1.0]),
        "reader_gap": draw.random() < 0.2,
        "deadline": moment(),
    }


def draw_states(draw: random.Random) -> list[dict[str, Any]]:
    """Few streams, or enough that audio is withheld; all relaxed in every third case, which is then not busy."""
    values = [draw_fields(draw) for _ in range(draw.choice([1, 3, 12, 66]))]
    if draw.random() < 0.3:
        for one in values:
            one |= {"deadline": NOW + draw.uniform(0.6, 5.0), "first_audio_at": 0.0, "prompt_rows": 1, "prefilled": 0}
            one["status"] = StreamStatus.RUNNING if one["status"] is StreamStatus.PREFILL else one["status"]
    return values


def build(values: list[dict[str, Any]], cost: CostModel, **limits: Any) -> tuple[Fixture, list[StreamState]]:
    streams = []
    for one in values:
        stream = new_stream(**{name: value for name, value in one.items() if name != "deadline"})
        stream.deadline = one["deadline"]
        streams.append(stream)
    return running(*streams, cost=cost, **limits), streams


def state(streams: list[StreamState]) -> list[dict[str, float]]:
    return [{name: getattr(stream, name) for name in FIELDS} for stream in streams]


@pytest.mark.parametrize("cost", [GPU, SLOW, FAST, CPU], ids=["gpu", "slow", "fast", "cpu"])
def test_the_plan_is_that_of_the_reference(cost: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(NUM_CASES):
        draw = random.Random(seed)
        monkeypatch.setattr(scheduler, "MIN_STREAMS_FOR_CHUNKS", 10 if seed % 2 else 100)
        limits = {"max_batch": draw.choice([3, 16, 512]), "ring_frames": draw.choice([4, 64]), "num_slots": 70}
        compare_plans(draw_states(draw), cost, limits)


def compare_plans(values: list[dict[str, Any]], cost: CostModel, limits: dict[str, Any]) -> None:
    engine, streams = build(values, cost, **limits)
    expected_engine, expected_streams = build(values, cost, **limits)
    reference = ReferenceScheduler(expected_engine.load, expected_engine.streams)
    expected, plan = reference.plan(NOW), engine.plan(NOW)

    def named(entries: Any, of: list[StreamState]) -> list[tuple[int, int]]:
        return [(of.index(stream), count) for stream, count in entries]

    assert named(plan.prefill, streams) == named(expected.prefill, expected_streams)
    assert {streams.index(one) for one in plan.frame} == {expected_streams.index(one) for one in expected.frame}
    assert len(plan.frame) == len(expected.frame)
    assert set(named(plan.codec, streams)) == set(named(expected.codec, expected_streams))
    assert state(streams) == state(expected_streams)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_what_is_due_and_where_deadlines_move_are_those_of_the_reference(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MIN_STREAMS_FOR_CHUNKS", 10 if seed % 2 else 100)
    draw = random.Random(seed)
    values = draw_states(draw)
    engine, streams = build(values, GPU, num_slots=70)
    expected_engine, expected_streams = build(values, GPU, num_slots=70)
    reference = ReferenceScheduler(expected_engine.load, expected_engine.streams)
    assert [engine.is_due(one, NOW) for one in streams] == [reference.is_due(one, NOW) for one in expected_streams]
    frames = [draw.choice([0.5, 1.0, 4.0]) for _ in streams]
    engine.scheduler.deliver(np.array([one.row for one in streams]), np.array(frames), NOW)
    for stream, count in zip(expected_streams, frames, strict=True):
        reference.deliver(stream, count, NOW)
    assert state(streams) == state(expected_streams)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_the_values_of_all_rows_are_those_of_each_stream(seed: int) -> None:
    engine, streams = build(draw_states(random.Random(seed)), GPU, num_slots=70)
    arrays = engine.streams.used()
    for stream in streams:
        row = stream.row
        assert arrays.is_starting(NOW)[row] == is_starting(stream, NOW)
        assert arrays.lead(NOW)[row] == lead(stream, NOW) == stream.lead(NOW)
        assert arrays.urgency(NOW)[row] == urgency(stream, NOW)
        assert arrays.needs_text()[row] == needs_text(stream)
        assert arrays.needs_frames()[row] == needs_frames(stream)
        assert arrays.prompt_left()[row] == stream.prompt_left
    snapshot = copy(engine.load.snapshot(NOW))
    assert snapshot.num_live == sum(stream.live for stream in streams if needs_frames(stream))
    leads = sorted(
        urgency(stream, NOW)
        for stream in streams
        if needs_frames(stream) and not is_starting(stream, NOW) and not is_text_limited(stream, NOW, LIMITS)
    )
    assert sorted(snapshot.leads.tolist()) == leads
    ranked = [lead - 0.01 * rank for rank, lead in enumerate(leads, 1)]
    assert snapshot.slack(0.01) == min(ranked, default=inf)


def test_a_stream_keeps_its_values_when_it_gets_a_slot_and_when_it_leaves_it() -> None:
    values = draw_fields(random.Random(1))
    engine, (stream,) = build([values], GPU)
    before = state([stream])
    assert stream.arrays is engine.streams.arrays
    stream.move(StreamArrays(1), 0)
    assert state([stream]) == before
    assert values["deadline"] == stream.deadline


def test_only_rows_up_to_the_highest_slot_in_use_are_planned() -> None:
    engine, streams = build([], GPU), [new_stream() for _ in range(5)]
    fixture = engine[0]
    fixture.admit_all(*streams)
    assert len(fixture.streams.used().active) == 5
    fixture.finish(streams[1], NOW)
    assert len(fixture.streams.used().active) == 5
    fixture.finish(streams[4], NOW)
    assert len(fixture.streams.used().active) == 4
    later = new_stream()
    fixture.admit_all(later)
    assert later.row == 1, "the lowest free slot is used first"
