# SPDX-License-Identifier: Apache-2.0
"""Several frames of a stream in one step: when, how many, and that they change nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any
from unittest import mock

import numpy as np
import pytest

from conftest import Loaded
from engine.schedulers import new_stream, playing, running
from engine.stepped_engine import LOW_COST
from engine.synthesis import read_all, record_codes, request
from polyvox.audio.samples import Samples
from polyvox.engine.batch_sizes import batch_sizes
from polyvox.engine.config import EngineConfig
from polyvox.engine.cost_model import CostModel
from polyvox.engine.engine import LocalEngine
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.scheduler import BUSY_STEP_SHARE, MIN_STREAMS_TO_WITHHOLD
from polyvox.engine.stream_state import MAX_FRAMES_PER_STEP, StepPlan

# 1.7B on one H200: lines through its smallest and its largest batch.
H200 = CostModel(step=0.0027, stream=1.8e-5, prefill_row=7e-6, codec=7e-4, codec_frame=1.9e-5)
MANY: dict[str, Any] = {"num_slots": 2048, "max_batch": 2048, "max_frames_per_step": MAX_FRAMES_PER_STEP}


def calls(*streams: Any, cost: CostModel = H200, **limits: Any) -> int:
    return running(*streams, cost=cost, **(MANY | limits)).plan(10.0).step.num_calls


def relaxed(count: int, **fields: Any) -> list[Any]:
    return [playing(2.0, **fields) for _ in range(count)]


# When


def test_relaxed_streams_generate_several_frames_within_a_quarter_of_a_frame() -> None:
    engine = running(*relaxed(120), cost=H200, **MANY)
    plan = engine.plan(10.0)
    assert plan.step.num_calls == 4
    assert H200.seconds(120, 0, 0) * 4 <= BUSY_STEP_SHARE * engine.limits.frame_seconds
    assert plan.step.frame_counts.tolist() == [4] * 120
    assert plan.sizes()[0] == 4 * 120


@pytest.mark.parametrize(
    "other",
    [
        {"first_audio_at": inf, "plays_at": 0.0},  # starts
        {"deadline": 10.3},  # urgent
        {"prompt_rows": 40, "generated": 0, "started": 0, "decoded": 0, "first_audio_at": inf},  # a new prompt
    ],
    ids=["starting", "urgent", "prompt"],
)
def test_a_step_with_a_stream_that_cannot_wait_has_one_frame_of_each(other: dict[str, Any]) -> None:
    one = playing(2.0, **{name: value for name, value in other.items() if name != "deadline"})
    one.deadline = other.get("deadline", one.deadline)
    assert calls(*relaxed(120)) > 1
    assert calls(*relaxed(120), one) == 1


def test_with_few_live_streams_or_long_calls_a_step_has_one_frame_of_each() -> None:
    assert calls(*relaxed(MIN_STREAMS_TO_WITHHOLD - 1)) == 1
    assert calls(*relaxed(MIN_STREAMS_TO_WITHHOLD)) > 1
    assert calls(*relaxed(1024)) == 1
    assert calls(*(new_stream(live=False) for _ in range(2))) > 1, "files alone have no deadline"
    cpu = CostModel(step=0.012, stream=0.0025, prefill_row=3e-4, codec=0.010, codec_frame=0.0066)
    assert calls(new_stream(live=False), cost=cpu) == 1


def test_a_stream_generates_no_more_frames_than_its_text_its_buffer_and_its_length_allow() -> None:
    limited = {
        1: playing(2.0, text_frames=21),
        2: playing(2.0, max_frames=22),
        3: playing(2.0, generated=49, started=49),  # the ring has 32 frames
        4: playing(2.0, buffer_free=2, generated=34, started=34),  # the buffer and a chunk
    }
    engine = running(*relaxed(120), *limited.values(), cost=H200, ring_frames=32, **MANY)
    step = engine.plan(10.0).step
    found = dict(zip(step.frame.tolist(), step.frame_counts.tolist(), strict=True))
    assert {expected: found[stream.row] for expected, stream in limited.items()} == {n: n for n in limited}
    counts = step.frame_counts.tolist()
    assert counts == sorted(counts, reverse=True)
    for call in range(step.num_calls):
        assert set(step.slots_of_call(call).tolist()) == {slot for slot, count in found.items() if count > call}
    engine.scheduler.start(step, 10.0)
    assert limited[3].started == 52
    assert limited[4].started - limited[4].decoded == 18


# The same speech


@pytest.fixture(scope="module")
def tiny(loaded: Loaded) -> Any:
    return loaded("custom_voice", "float64").model


@pytest.fixture
def every_stream_counts() -> Iterator[None]:
    with mock.patch("polyvox.engine.scheduler.MIN_STREAMS_TO_WITHHOLD", 0):
        yield


def synthesise(model: Any, max_calls: int, **config: Any) -> tuple[list[Samples], list[Any], set[int]]:
    """Samples, codes and finish reasons of streams that end by themselves, by their length or are live text."""
    used: set[int] = set()
    with mock.patch("polyvox.engine.engine.calibrate", side_effect=lambda *_: replace(LOW_COST)):
        engine = LocalEngine(model, EngineConfig(max_streams=4, poison_freed=True, **config))
    try:
        engine.load.limits = replace(engine.load.limits, max_frames_per_step=max_calls, urgent_lead=0.0)
        codes, run = record_codes(engine), engine._run

        def recorded(plan: StepPlan[Any]) -> Any:
            used.add(plan.num_calls)
            return run(plan)

        with mock.patch.object(engine, "_run", recorded):
            streams = [engine.submit(request("one two three", seed=1, frames=40))]
            streams.append(engine.submit(request("four five", seed=2, frames=7, whole_file=True)))
            live = engine.submit(request("six ", seed=3, frames=30, live=True))
            for word in ("seven ", "eight ", "nine"):
                live.append(word)
            live.finish_text()
            streams.append(live)
            samples = [read_all(stream) for stream in streams]
            # A file that runs alone: it has several frames in a step on a machine of any speed.
            streams.append(engine.submit(request("ten eleven", seed=4, frames=12, whole_file=True)))
            samples.append(read_all(streams[-1]))
        reasons = [(codes[stream], stream.result and stream.result.finish_reason) for stream in streams]
        with engine.lock:
            assert len(engine.ledger.free_slots) == 4 or engine._work.wait_for(
                lambda: len(engine.ledger.free_slots) == 4, 30
            )
        return samples, reasons, used
    finally:
        engine.close()


@pytest.mark.parametrize(
    "config",
    [{}, {"cuda_graphs": True, "min_streams_to_pipeline": 1}],
    ids=["one step at a time", "fixed sizes, pipelined"],
)
@pytest.mark.usefixtures("every_stream_counts")
def test_codes_and_samples_do_not_depend_on_the_frames_per_step(tiny: Any, config: dict[str, Any]) -> None:
    expected_samples, expected, used = synthesise(tiny, 1, **config)
    assert max(used) == 1
    samples, found, used = synthesise(tiny, MAX_FRAMES_PER_STEP, **config)
    assert found == expected
    assert max(used) > 1, "the engine generated one frame at a time"
    for one, other in zip(samples, expected_samples, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_the_flags_of_a_step_are_those_of_its_calls(tiny: Any) -> None:
    """Slots with fewer frames are in the first calls only; every call has the size that its slots need."""
    generator = ModelRunner(tiny, EngineConfig(max_streams=4, cuda_graphs=True)).generator
    assert generator.graphs is not None
    assert generator.graphs.frame_sizes == batch_sizes(4)
    seen: list[list[int]] = []

    def frame(slots: Any, *_: Any) -> Any:
        seen.append(slots.tolist())
        return slots + 100 * len(seen)

    with mock.patch.object(generator.state, "frame", frame):
        flags = generator.frame(np.array([2, 0, 1]), np.array([3, 3, 1]), np.array([5, 5, 5])).get()
    assert seen == [[2, 0, 1, 4], [2, 0], [2, 0]], "slot 4 is the scratch slot"
    assert flags[0].tolist() == [102, 100, 101]
    assert flags[1][:2].tolist() == [202, 200]
    assert flags[2][:2].tolist() == [302, 300]
