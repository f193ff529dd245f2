# SPDX-License-Identifier: Apache-2.0
"""The engine in this process: output, resources, errors."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Loaded
from engine.stepped_engine import LOW_COST, SteppedEngine
from engine.synthesis import TIMEOUT, assert_idle, read_all, request, solo_samples, text_rows, wait_for_end
from polyvox.engine import page_reservation
from polyvox.engine.admission import QUEUE_GRACE_SECONDS
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.model_runner import MIN_LIVE_TO_PIPELINE, MIN_STREAMS_TO_PIPELINE
from polyvox.engine.slots import SlotAllocation, SlotLedger
from polyvox.engine.step_pipeline import StepPipeline
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_state import StepPlan
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, StreamFailed
from polyvox.models.protocol import PreparedRequest
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import ClonedVoice, Request, Sampling

pytestmark = pytest.mark.slow

TEXTS = ("hello there", "the other assistant", "on and on it goes, the line", "a")


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


@pytest.fixture(
    scope="module", params=[(0, False), (1, False), (1, True)], ids=["not pipelined", "pipelined", "fixed sizes"]
)
def engine(speech: Qwen3TTSModel, request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    min_streams_to_pipeline, graphs = request.param
    config = EngineConfig(
        max_streams=3,
        max_queue=64,
        max_queue_seconds=1000.0,
        poison_freed=True,
        min_streams_to_pipeline=min_streams_to_pipeline,
        cuda_graphs=graphs,
        context=256 if graphs else 1024,  # calls of a fixed size read all of it
    )
    engine = LocalEngine(speech, config)
    engine.load.cost = replace(LOW_COST)  # the calibrated capacity may be one stream
    yield engine
    engine.close()


REQUESTS = st.builds(
    request,
    text=st.sampled_from(TEXTS),
    voice=st.sampled_from(["serena", "vivian"]),
    seed=st.integers(0, 2),
    frames=st.sampled_from([3, 9, 20]),
    whole_file=st.booleans(),
    sampling=st.sampled_from([None, Sampling(temperature=0, predictor_temperature=0)]),
)
OUTCOMES = st.sampled_from(["read", "read late", "cancel at once", "cancel after a chunk", "fail"])


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(st.tuples(REQUESTS, OUTCOMES), min_size=1, max_size=10))
def test_concurrent_streams_equal_their_solo_runs_and_free_everything(
    batch: list[tuple[Request, str]], engine: LocalEngine, speech: Qwen3TTSModel
) -> None:
    failing: list[LocalStream] = []
    rows = engine._runner.generator.state
    assign = rows.assign

    def assign_or_fail(slot: int, prepared: PreparedRequest) -> None:
        if any(prepared is stream.prepared for stream in failing):
            raise RuntimeError("injected")
        assign(slot, prepared)

    with mock.patch.object(rows, "assign", assign_or_fail):
        with engine.lock:
            streams = [engine.submit(wanted) for wanted, _ in batch]
            failing += [stream for stream, (_, outcome) in zip(streams, batch, strict=True) if outcome == "fail"]
        late = []
        for stream, (wanted, outcome) in zip(streams, batch, strict=True):
            if outcome == "cancel at once":
                stream.cancel()
            elif outcome == "cancel after a chunk":
                next(stream.chunks(TIMEOUT))
            elif outcome == "fail":
                with pytest.raises(StreamFailed, match="injected"):
                    read_all(stream)
            elif outcome == "read late":
                late.append((stream, wanted))
            else:
                np.testing.assert_allclose(read_all(stream), solo_samples(speech, wanted), atol=1e-6)
        for stream, wanted in reversed(late):
            np.testing.assert_allclose(read_all(stream), solo_samples(speech, wanted), atol=1e-6)
    for stream, (_, outcome) in zip(streams, batch, strict=True):
        wait_for_end(stream)
        assert stream.result is not None
        expected = {"read": ("stop", "length"), "read late": ("stop", "length"), "fail": ("error",)}
        assert stream.result.finish_reason in expected.get(outcome, ("cancelled", "stop", "length"))
    assert_idle(engine)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.sampled_from(TEXTS[:3]), cuts=st.lists(st.integers(0, 27), max_size=6))
def test_text_in_any_pieces_gives_the_same_samples(
    text: str, cuts: list[int], engine: LocalEngine, speech: Qwen3TTSModel
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    stream = engine.submit(request(pieces[0], live=True, guard=False))
    for piece in pieces[1:]:
        stream.append(piece)
    stream.finish_text()
    whole = solo_samples(speech, request(text, layout="streaming", guard=False))
    np.testing.assert_allclose(read_all(stream), whole, atol=1e-6)
    assert_idle(engine)


def test_text_can_be_appended_as_rows_of_another_model(engine: LocalEngine, speech: Qwen3TTSModel) -> None:
    ids = speech.tokenizer.text(TEXTS[2])
    stream = engine.submit(request("on and", live=True, guard=False))
    given = len(speech.tokenizer.text("on and"))
    with pytest.raises(InvalidRequest, match="rows of 48"):
        stream.append_rows(np.zeros((1, 7), np.float32))
    stream.append_rows(text_rows(speech, ids[given:], last=True), last=True)
    whole = solo_samples(speech, request(TEXTS[2], layout="streaming", guard=False))
    np.testing.assert_allclose(read_all(stream), whole, atol=1e-6)


def test_text_that_cannot_be_appended_is_rejected(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="live"):
        engine.submit(request()).append("more")
    stream = engine.submit(request(live=True))
    stream.finish_text()
    stream.finish_text()
    with pytest.raises(InvalidRequest, match="not finished"):
        stream.append("more")
    read_all(stream)
    empty = engine.submit(request("", live=True))
    with pytest.raises(InvalidRequest, match="at least one word"):
        empty.finish_text()
    with pytest.raises(StreamFailed, match="at least one word"):
        read_all(empty)
    with pytest.raises(InvalidRequest, match="layout"):
        engine.submit(request(live=True, layout="whole"))


def test_a_full_engine_accepts_a_request_right_after_a_cancel(speech: Qwen3TTSModel) -> None:
    """The engine's thread does not run between the two, so the cancelled stream still has its slot."""
    config = EngineConfig(max_streams=1, max_queue=0)
    engine = SteppedEngine(speech, config, buffer_frames=20, prefill_rows=512)
    try:
        first = engine.submit(request(live=True, frames=200))
        engine.advance()
        with pytest.raises(Overloaded, match="all streams are taken"):
            engine.submit(request(seed=6))
        first.cancel()
        assert first.status in HOLDS_SLOT
        following = engine.submit(request(seed=6, frames=10))
        engine.advance()
        expected = solo_samples(speech, request(seed=6, frames=10))
        np.testing.assert_allclose(read_all(following), expected, atol=1e-6)
    finally:
        engine.close()


def test_a_full_engine_queues_then_rejects(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    config = EngineConfig(max_streams=1, max_queue=1, max_queue_seconds=5.0, text_timeout=100.0)
    engine = LocalEngine(speech, config, clock=lambda: now[0])
    try:
        with engine.lock:
            first = engine.submit(request("hello the", live=True, guard=False))
            assert first._ready.wait_for(lambda: first.buffered or first.text_deadline < inf, TIMEOUT)
        next_up = engine.submit(request(seed=5))
        with pytest.raises(Overloaded, match="full"):
            engine.submit(request(seed=6))
        with engine.lock:
            now[0] = QUEUE_GRACE_SECONDS + 6.0
            engine.wake()
        with pytest.raises(Overloaded, match="no slot was free") as expired:
            read_all(next_up)
        assert expired.value.reason == "no_slot_in_time"
        first.cancel()
        wait_for_end(first)
        assert len(read_all(engine.submit(request(seed=6))))
    finally:
        engine.close()


def test_runaway_speech_is_ended(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        greedy = Sampling(temperature=0, predictor_temperature=0, repetition_penalty=1.0)
        reasons = set()
        for seed, text in enumerate(TEXTS):
            stream = engine.submit(Request(text, "serena", seed=seed, sampling=greedy))
            read_all(stream)
            assert stream.result is not None
            reasons.add(stream.result.finish_reason)
            if "runaway" in reasons:
                break
        assert reasons <= {"stop", "runaway", "length"}
        assert "runaway" in reasons
    finally:
        engine.close()


def test_leading_silence_can_be_trimmed(loaded: Loaded) -> None:
    speech = loaded("embedded", "float32").model
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        wanted = Request("Good morning.", "heart", seed=1)
        whole = read_all(engine.submit(wanted))
        trimmed = read_all(engine.submit(Request("Good morning.", "heart", seed=1, trim_silence=True)))
        cut = len(whole) - len(trimmed)
        assert 0 < cut < speech.vocoder.sample_rate
        np.testing.assert_allclose(trimmed, whole[cut:], atol=1e-5)
        assert np.abs(whole[: max(cut - 480, 0)]).max(initial=0) < 0.02
    finally:
        engine.close()


def test_a_failed_step_ends_only_its_own_streams(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    rows = engine._runner.vocoder.state
    try:
        with (
            mock.patch.object(rows, "decode", side_effect=RuntimeError("injected")),
            pytest.raises(StreamFailed, match="injected"),
        ):
            read_all(engine.submit(request()))
        np.testing.assert_allclose(read_all(engine.submit(request())), solo_samples(speech, request()), atol=1e-6)
        assert_idle(engine)
    finally:
        engine.close()


def test_close_under_load_ends_every_stream(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=3, max_queue_seconds=100.0))
    streams = [engine.submit(request(seed=i, frames=255)) for i in range(6)]
    engine.close()
    engine.close()
    assert not engine._thread.is_alive()
    for stream in streams:
        assert stream.result is not None
    with pytest.raises(EngineDown):
        engine.submit(request())
    assert_idle(engine)


def resident() -> float:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096.0


def test_a_thousand_cancelled_streams_do_not_grow_the_memory(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=3, max_queue=2000, max_queue_seconds=1000.0))
    before = 0.0
    try:
        for turn in range(10):
            before = resident() if turn == 2 else before
            streams = [engine.submit(request(seed=i)) for i in range(100)]
            for stream in streams:
                stream.cancel()
            for stream in streams:
                wait_for_end(stream)
        assert_idle(engine)
        assert not engine.streams
        assert not engine.streams[StreamStatus.RELEASING]
        assert not engine._pipeline.in_flight
        stats = engine.stats()
        assert sum(count for name, count in stats.items() if name.startswith("finished_")) == 1000
        assert resident() - before < 20e6
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"max_streams": -1}, "at least 0"),
        ({"context": 16}, "256"),
        ({"buffer_seconds": 0.1}, "at least 2"),
        ({"min_streams_to_pipeline": -1}, "non-negative"),
        ({"max_queue": -1}, "non-negative"),
        ({"memory_gb": "4"}, "'memory_gb': must be a number"),
        ({"memory_gb": nan}, "'memory_gb': must be at least 0"),
        ({"memory_gb": -1}, "'memory_gb': must be at least 0"),
        ({"deterministic": "no"}, "'deterministic': must be True or False"),
        ({"deterministic": None}, "'deterministic': must be True or False"),
        ({"cuda_graphs": 1}, "'cuda_graphs': must be True or False"),
    ],
)
def test_an_invalid_configuration_names_the_requirement(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        EngineConfig(**change).check()


@pytest.mark.parametrize(
    ("num_frames", "num_live", "expected"),
    [(127, 127, False), (128, 128, True), (31, 128, False), (32, 128, True), (31, 0, False), (32, 0, True)],
)
def test_steps_are_pipelined_with_many_live_streams_or_with_files_only(
    num_frames: int, num_live: int, expected: bool
) -> None:
    runner = SimpleNamespace(min_streams_to_pipeline=MIN_STREAMS_TO_PIPELINE, min_live_to_pipeline=MIN_LIVE_TO_PIPELINE)
    pipeline = cast(StepPipeline, SimpleNamespace(_runner=runner))
    plan: StepPlan[LocalStream] = StepPlan(frame=np.arange(num_frames), num_live=num_live)
    assert StepPipeline._is_pipelined(pipeline, plan) is expected


def test_the_memory_of_streams_can_be_limited(speech: Qwen3TTSModel) -> None:
    with pytest.raises(InvalidRequest, match=r"'memory_gb': must be at least 0\.\d\d for this model: .* \(got 1e-05\)"):
        LocalEngine(speech, EngineConfig(max_streams=8, memory_gb=1e-5))


def test_too_many_streams_for_the_memory_are_rejected_with_the_number_that_fits(speech: Qwen3TTSModel) -> None:
    expected = r"at most \d+ with a context of 256 \(got 100000000\).* GB are available"
    with pytest.raises(InvalidRequest, match=expected):
        LocalEngine(speech, EngineConfig(max_streams=100_000_000))


def test_prompts_longer_than_a_step_are_read_in_parts(speech: Qwen3TTSModel) -> None:
    """Four prompts at once, each longer than the limit of a step."""
    engine = LocalEngine(speech, EngineConfig(max_streams=4, context=2048))
    try:
        wanted = [request("the other assistant " * 28, seed=i, frames=5) for i in range(4)]
        with engine.lock:
            object.__setattr__(engine.load.limits, "max_prefill_rows", 37)
            streams = [engine.submit(one) for one in wanted]
        for stream, one in zip(streams, wanted, strict=True):
            np.testing.assert_allclose(read_all(stream), solo_samples(speech, one), atol=1e-6)
    finally:
        engine.close()


def test_a_cloned_voice_is_prepared_once(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    speech = loaded("base", "float64").model
    codes = np.random.default_rng(1).integers(0, 64, (9, 6))
    voice = ClonedVoice(np.zeros(speech.generator.hidden_size, np.float32), codes, "hello")
    calls: list[int] = []
    forward = speech.model.codec.forward

    def counted(codes: torch.Tensor, state: Any) -> Any:
        calls.append(codes.shape[1])
        return forward(codes, state)

    monkeypatch.setattr(speech.model.codec, "forward", counted)
    for _ in range(3):
        speech.prepare(Request("hello", voice, seed=1))
    assert calls == [9]


def test_streams_longer_than_expected_get_pages_while_they_run(engine: LocalEngine, speech: Qwen3TTSModel) -> None:
    requests = [request(text, seed=seed, frames=40, whole_file=True) for seed, text in enumerate(TEXTS)]
    with mock.patch.multiple(page_reservation, INITIAL_FRAMES=1, INITIAL_FRAMES_PER_BYTE=0):
        streams = [engine.submit(one) for one in requests]
        for one, stream in zip(requests, streams, strict=True):
            np.testing.assert_allclose(read_all(stream), solo_samples(speech, one), atol=1e-6)
    assert_idle(engine)


def test_a_stream_without_a_free_page_ends_with_an_error_and_frees_its_pages(engine: LocalEngine) -> None:
    allocate, hidden = SlotLedger.allocate, []

    def allocate_last(ledger: SlotLedger, num_pages: int) -> SlotAllocation:
        """No page is free afterwards, which admission does not allow."""
        allocation = allocate(ledger, num_pages)
        hidden.extend(ledger.free_pages)
        ledger.free_pages.clear()
        return allocation

    before = engine.stats()["streams_out_of_pages"]
    with (
        mock.patch.multiple(page_reservation, INITIAL_FRAMES=1, INITIAL_FRAMES_PER_BYTE=0),
        mock.patch.object(SlotLedger, "allocate", allocate_last),
    ):
        stream = engine.submit(request(frames=100, guard=False))
        with pytest.raises(StreamFailed, match="no KV page is free"):
            read_all(stream)
    assert stream.result is not None
    assert 0 < stream.result.frames < 100
    with engine.lock:
        engine.ledger.free_pages += hidden
    assert_idle(engine)
    assert engine.stats()["streams_out_of_pages"] == before + 1
    read_all(engine.submit(request()))


def test_a_trace_has_steps_streams_and_status_spans(speech: Qwen3TTSModel, tmp_path: Any) -> None:
    import json

    path = tmp_path / "trace.json"
    engine = LocalEngine(speech, EngineConfig(max_streams=2, trace=str(path)))
    read_all(engine.submit(request()))
    assert_idle(engine)
    stats = engine.stats()
    assert stats["steps"] >= 20
    assert all(stats[f"status_{status}"] == 0 for status in StreamStatus if status is not StreamStatus.FINISHED)
    assert {"step_batch", "step_prefill_rows", "step_codec_frames", "step_seconds"} <= stats.keys()
    engine.close()
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event["name"] == "step"]
    assert sum(event["args"]["batch"] for event in steps) >= 20
    assert {"prefill_rows", "codec_frames", "queued"} <= steps[0]["args"].keys()
    (stream,) = [event for event in events if event["name"].startswith("stream")]
    assert stream["args"]["finish_reason"] in ("stop", "length")
    spans = [event for event in events if event["tid"] == stream["tid"] and event is not stream]
    assert [span["name"] for span in spans] == ["queued", "prefill", "running", "draining", "releasing"]
