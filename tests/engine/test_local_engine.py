"""The engine in a process: what it says, what it frees, what it survives."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Loaded
from engine.speaking import PATIENCE, assert_all_free, request, solo, spoken, wait_for_end
from engine.stepped_engine import CHEAP
from polyvox.engine.admission import QUEUE_GRACE_SECONDS
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import Chunk
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_status import StreamStatus
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, StreamFailed
from polyvox.models.protocol import PreparedRequest
from polyvox.models.qwen3_tts.generator import Qwen3TTSGeneratorState
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import ClonedVoice, Request, Sampling

pytestmark = pytest.mark.slow

TEXTS = ("hello there", "the other assistant", "on and on it goes, the line", "a")


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").speech


@pytest.fixture(
    scope="module", params=[(0, False), (1, False), (1, True)], ids=["at once", "one step late", "in fixed sizes"]
)
def engine(speech: Qwen3TTSModel, request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    ahead, graphs = request.param
    config = EngineConfig(
        max_streams=3,
        max_queue=64,
        max_queue_seconds=1000.0,
        poison_freed=True,
        min_streams_to_pipeline=ahead,
        cuda_graphs=graphs,
    )
    engine = LocalEngine(speech, config)
    engine.load.cost = replace(CHEAP)  # or this machine, by its measure, keeps one of these 2 ms frames fed
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
FATES = st.sampled_from(["read", "read late", "cancel at once", "cancel after a chunk", "fail"])


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(crowd=st.lists(st.tuples(REQUESTS, FATES), min_size=1, max_size=10))
def test_a_crowd_says_what_each_says_alone_and_leaves_nothing_behind(
    crowd: list[tuple[Request, str]], engine: LocalEngine, speech: Qwen3TTSModel
) -> None:
    failing: list[LocalStream] = []
    rows = engine._runner.generator.state
    assign = rows.assign

    def seat_or_fail(slot: int, prepared: PreparedRequest) -> None:
        if any(prepared is stream.prepared for stream in failing):
            raise RuntimeError("injected")
        assign(slot, prepared)

    with mock.patch.object(rows, "assign", seat_or_fail):
        with engine.lock:
            streams = [engine.submit(asked) for asked, _ in crowd]
            failing += [stream for stream, (_, fate) in zip(streams, crowd, strict=True) if fate == "fail"]
        late = []
        for stream, (asked, fate) in zip(streams, crowd, strict=True):
            if fate == "cancel at once":
                stream.cancel()
            elif fate == "cancel after a chunk":
                next(stream.chunks(PATIENCE))
            elif fate == "fail":
                with pytest.raises(StreamFailed, match="injected"):
                    spoken(stream)
            elif fate == "read late":
                late.append((stream, asked))
            else:
                np.testing.assert_allclose(spoken(stream), solo(speech, asked), atol=1e-6)
        for stream, asked in reversed(late):
            np.testing.assert_allclose(spoken(stream), solo(speech, asked), atol=1e-6)
    for stream, (_, fate) in zip(streams, crowd, strict=True):
        wait_for_end(stream)
        assert stream.result is not None
        expected = {"read": ("stop", "length"), "read late": ("stop", "length"), "fail": ("error",)}
        assert stream.result.finish_reason in expected.get(fate, ("cancelled", "stop", "length"))
    assert_all_free(engine)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.sampled_from(TEXTS[:3]), cuts=st.lists(st.integers(0, 27), max_size=6))
def test_text_in_any_pieces_is_said_as_the_whole(
    text: str, cuts: list[int], engine: LocalEngine, speech: Qwen3TTSModel
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    stream = engine.submit(request(pieces[0], live=True, guard=False))
    for piece in pieces[1:]:
        stream.append(piece)
    stream.finish_text()
    whole = solo(speech, request(text, layout="streaming", guard=False))
    np.testing.assert_allclose(spoken(stream), whole, atol=1e-6)
    assert_all_free(engine)


def has_said_all(stream: LocalStream) -> bool:
    """It waits for text, and all that could be said before has been given."""
    return stream.text_deadline < inf and stream.started == stream.decoded > 0


def test_waiting_for_text_is_not_an_underrun(speech: Qwen3TTSModel) -> None:
    """Speech stands still for ten seconds between two pieces of text, and nobody is to blame."""
    text = "the other assistant, the other user, on and on"
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1), clock=lambda: now[0])
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False, frames=30))
        with engine.lock:
            assert stream._ready.wait_for(lambda: has_said_all(stream), PATIENCE)
            now[0] = 10.0
        stream.append(text.removeprefix("the other assist"))
        stream.finish_text()
        whole = solo(speech, request(text, layout="streaming", guard=False, frames=30))
        np.testing.assert_allclose(spoken(stream), whole, atol=1e-6)
        assert stream.result is not None
        assert stream.result.text_waits >= 1
        assert stream.result.underruns == 0
    finally:
        engine.close()


def test_a_live_stream_that_gets_no_text_is_ended(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1, text_timeout=5.0), clock=lambda: now[0])
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False, frames=30))
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.text_deadline < inf and stream.buffered, PATIENCE)
            now[0] = 6.0
            engine.wake()
        with pytest.raises(StreamFailed, match="no text arrived"):
            spoken(stream)
        assert len(spoken(engine.submit(request())))
    finally:
        engine.close()


def test_text_may_come_as_rows_of_another_model(engine: LocalEngine, speech: Qwen3TTSModel) -> None:
    ids = speech.tokenizer.text(TEXTS[2])
    stream = engine.submit(request("on and", live=True, guard=False))
    given = len(speech.tokenizer.text("on and"))
    with pytest.raises(InvalidRequest, match="rows of 48"):
        stream.append_rows(np.zeros((1, 7), np.float32))
    stream.append_rows(speech.text_rows(ids[given:], last=True).numpy(), last=True)
    whole = solo(speech, request(TEXTS[2], layout="streaming", guard=False))
    np.testing.assert_allclose(spoken(stream), whole, atol=1e-6)


def test_text_is_refused_where_it_cannot_be_appended(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="live"):
        engine.submit(request()).append("more")
    stream = engine.submit(request(live=True))
    stream.finish_text()
    stream.finish_text()
    with pytest.raises(InvalidRequest, match="not finished"):
        stream.append("more")
    spoken(stream)
    empty = engine.submit(request("", live=True))
    with pytest.raises(InvalidRequest, match="visible"):
        empty.finish_text()
    with pytest.raises(StreamFailed, match="visible"):
        spoken(empty)
    with pytest.raises(InvalidRequest, match="layout"):
        engine.submit(request(live=True, layout="whole"))


def small_buffer(engine: LocalEngine, frames: int) -> None:
    """Frames of the tiny codec are 2 ms; no configuration allows so small a buffer."""
    object.__setattr__(engine.config, "buffer_seconds", frames * engine.frame_seconds)


def test_a_slow_reader_pauses_only_its_own_stream_and_loses_nothing(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    small_buffer(engine, 20)
    try:
        asked = request(seed=2, frames=150, sampling=Sampling(min_frames=150))
        slow = engine.submit(asked)
        with engine.lock:
            assert slow._ready.wait_for(lambda: slow.buffered >= 16 * speech.vocoder.samples_per_frame, PATIENCE)
        for seed in (0, 1, 4):
            quick = request(seed=seed, frames=20)
            np.testing.assert_allclose(spoken(engine.submit(quick)), solo(speech, quick), atol=1e-6)
        assert slow.result is None
        assert slow.buffered <= 20 * speech.vocoder.samples_per_frame
        np.testing.assert_allclose(spoken(slow), solo(speech, asked), atol=1e-6)
        assert_all_free(engine)
    finally:
        engine.close()


def test_a_reader_that_stops_is_ended_with_an_error(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(
        speech, EngineConfig(max_streams=1, buffer_seconds=2.0, reader_timeout=5.0), clock=lambda: now[0]
    )
    try:
        stream = engine.submit(request(frames=255, sampling=Sampling(min_frames=255)))
        small_buffer(engine, 10)
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.reader_deadline < inf or stream.result, PATIENCE)
            assert stream.reader_deadline < inf
            now[0] = 6.0
            engine.wake()
            assert stream._ready.wait_for(lambda: stream.result is not None, PATIENCE)
        assert stream.result is not None
        assert "nothing was read" in (stream.result.error or "")
        with pytest.raises(StreamFailed):
            spoken(stream)
        other = engine.submit(request())
        assert len(spoken(other))
    finally:
        engine.close()


def test_a_full_engine_queues_then_refuses(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    config = EngineConfig(max_streams=1, max_queue=1, max_queue_seconds=5.0, text_timeout=100.0)
    engine = LocalEngine(speech, config, clock=lambda: now[0])
    try:
        with engine.lock:
            first = engine.submit(request("hello the", live=True, guard=False))
            assert first._ready.wait_for(lambda: first.buffered or first.text_deadline < inf, PATIENCE)
        next_up = engine.submit(request(seed=5))
        with pytest.raises(Overloaded, match="full"):
            engine.submit(request(seed=6))
        with engine.lock:
            now[0] = QUEUE_GRACE_SECONDS + 6.0
            engine.wake()
        with pytest.raises(Overloaded, match="no slot was free"):
            spoken(next_up)
        first.cancel()
        wait_for_end(first)
        assert len(spoken(engine.submit(request(seed=6))))
    finally:
        engine.close()


def test_speech_that_runs_on_is_ended(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        greedy = Sampling(temperature=0, predictor_temperature=0, repetition_penalty=1.0)
        reasons = set()
        for seed, text in enumerate(TEXTS):
            stream = engine.submit(Request(text, "serena", seed=seed, sampling=greedy))
            spoken(stream)
            assert stream.result is not None
            reasons.add(stream.result.finish_reason)
        assert reasons <= {"stop", "runaway", "length"}
        assert "runaway" in reasons
    finally:
        engine.close()


def test_silence_before_the_first_sound_can_be_trimmed(loaded: Loaded) -> None:
    speech = loaded("embedded", "float32").speech
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        asked = Request("Good morning.", "heart", seed=1)
        whole = spoken(engine.submit(asked))
        trimmed = spoken(engine.submit(Request("Good morning.", "heart", seed=1, trim_silence=True)))
        cut = len(whole) - len(trimmed)
        assert 0 < cut < speech.vocoder.sample_rate
        np.testing.assert_allclose(trimmed, whole[cut:], atol=1e-5)
        assert np.abs(whole[: max(cut - 480, 0)]).max(initial=0) < 0.02
    finally:
        engine.close()


def test_a_step_that_fails_ends_its_streams_and_nobody_else(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    rows = engine._runner.vocoder.state
    try:
        with (
            mock.patch.object(rows, "decode", side_effect=RuntimeError("injected")),
            pytest.raises(StreamFailed, match="injected"),
        ):
            spoken(engine.submit(request()))
        np.testing.assert_allclose(spoken(engine.submit(request())), solo(speech, request()), atol=1e-6)
        assert_all_free(engine)
    finally:
        engine.close()


def test_closing_under_load_ends_everything(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=3, max_queue_seconds=100.0))
    streams = [engine.submit(request(seed=i, frames=255)) for i in range(6)]
    engine.close()
    engine.close()
    assert not engine._thread.is_alive()
    for stream in streams:
        assert stream.result is not None
    with pytest.raises(EngineDown):
        engine.submit(request())
    assert_all_free(engine)


def resident() -> float:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096.0


def test_a_thousand_cancelled_streams_leave_memory_flat(speech: Qwen3TTSModel) -> None:
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
        assert_all_free(engine)
        assert not engine.streams
        assert not engine.streams[StreamStatus.RELEASING]
        assert not engine._in_flight
        stats = engine.stats()
        assert sum(count for name, count in stats.items() if name.startswith("finished_")) == 1000
        assert resident() - before < 20e6
    finally:
        engine.close()


def test_an_abandoned_reader_frees_its_slot(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        for chunk in engine.submit(request(frames=255, seed=3)).chunks(PATIENCE):
            assert isinstance(chunk, Chunk)
            break
        assert len(spoken(engine.submit(request())))
        assert_all_free(engine)
    finally:
        engine.close()


def test_a_callback_that_throws_costs_only_its_own_stream(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    called = threading.Event()

    def throw(_: LocalStream) -> None:
        called.set()
        raise RuntimeError("reader")

    try:
        bad = engine.submit(request(frames=255, seed=3), on_ready=throw)
        np.testing.assert_allclose(spoken(engine.submit(request())), solo(speech, request()), atol=1e-6)
        assert called.wait(PATIENCE)
        wait_for_end(bad)
        assert bad.result is not None
        assert bad.result.finish_reason == "cancelled"
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_streams": -1}, "at least 0"),
        ({"context": 16}, "256"),
        ({"buffer_seconds": 0.1}, "at least 2"),
        ({"min_streams_to_pipeline": -1}, "non-negative"),
    ],
)
def test_an_impossible_configuration_is_refused_with_what_mends_it(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        EngineConfig(**change).check()


def test_the_memory_that_streams_may_take_can_be_limited(speech: Qwen3TTSModel) -> None:
    with pytest.raises(InvalidRequest, match=r"0\.0 GB are available"):
        LocalEngine(speech, EngineConfig(max_streams=8, memory_gb=1e-5))


def test_more_slots_than_memory_are_refused_with_how_many_fit(speech: Qwen3TTSModel) -> None:
    expected = r"at most \d+ with a context of 1024 \(got 100000000\).* GB are available"
    with pytest.raises(InvalidRequest, match=expected):
        LocalEngine(speech, EngineConfig(max_streams=100_000_000))


def test_live_text_has_the_budget_of_its_length_once_it_is_finished(speech: Qwen3TTSModel) -> None:
    """A live stream may be long while its text grows; after the end of the text it may not run on."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    endless = Sampling(min_frames=1_000_000)
    try:
        live = engine.submit(Request("a", "serena", seed=1, live=True, sampling=endless))
        live.append(" b")
        with engine.lock:
            live.finish_text()
            assert live.status is not StreamStatus.AWAITING_TEXT
        spoken(live)
        whole = engine.submit(Request("a b", "serena", seed=1, layout="streaming", sampling=endless))
        spoken(whole)
        assert live.result is not None
        assert whole.result is not None
        assert live.result.finish_reason == whole.result.finish_reason == "runaway"
        assert live.result.frames == whole.result.frames
        assert live.result.text_tokens == whole.result.text_tokens == len(speech.tokenizer.text("a b"))
        assert_all_free(engine)
    finally:
        engine.close()


def test_an_end_becomes_likelier_for_live_text_too(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(request("hello there", live=True, frames=3))
        stream.finish_text()
        spoken(stream)
        budget = int(cast(Qwen3TTSGeneratorState, engine._runner.generator.state).expected_frames[0])
        spoken(engine.submit(request("hello there", layout="streaming", frames=3)))
        assert budget == int(cast(Qwen3TTSGeneratorState, engine._runner.generator.state).expected_frames[0])
    finally:
        engine.close()


def test_a_stream_can_be_read_in_an_event_loop(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))

    async def read(stream: LocalStream) -> list[Chunk]:
        return [chunk async for chunk in stream]

    async def crowd() -> list[list[Chunk]]:
        return await asyncio.gather(*(read(engine.submit(request(seed=seed))) for seed in range(4)))

    async def leave() -> LocalStream:
        stream = engine.submit(request(frames=255))
        async for _ in stream:
            break
        return stream

    try:
        for seed, chunks in enumerate(asyncio.run(crowd())):
            assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
            samples = np.concatenate([chunk.samples for chunk in chunks])
            np.testing.assert_allclose(samples, solo(speech, request(seed=seed)), atol=1e-6)
        left = asyncio.run(leave())
        wait_for_end(left)
        assert left.result is not None
        assert left.result.finish_reason == "cancelled"
        assert_all_free(engine)
    finally:
        engine.close()


def test_a_prompt_larger_than_a_step_is_read_in_parts(speech: Qwen3TTSModel) -> None:
    """Four long prompts at once, each longer than what one step reads."""
    engine = LocalEngine(speech, EngineConfig(max_streams=4, context=2048))
    try:
        asked = [request("the other assistant " * 28, seed=i, frames=5) for i in range(4)]
        with engine.lock:
            object.__setattr__(engine.load.limits, "max_prefill_rows", 37)
            streams = [engine.submit(one) for one in asked]
        for stream, one in zip(streams, asked, strict=True):
            np.testing.assert_allclose(spoken(stream), solo(speech, one), atol=1e-6)
    finally:
        engine.close()


def test_a_cloned_voice_is_prepared_once(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    speech = loaded("base", "float64").speech
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


def test_a_run_can_be_seen_in_a_trace(speech: Qwen3TTSModel, tmp_path: Any) -> None:
    import json

    path = tmp_path / "trace.json"
    engine = LocalEngine(speech, EngineConfig(max_streams=2, trace=str(path)))
    spoken(engine.submit(request()))
    stats = engine.stats()
    assert stats["steps"] >= 20
    assert {"step_batch", "step_prefill_rows", "step_codec_frames", "step_seconds"} <= stats.keys()
    engine.close()
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event["name"] == "step"]
    assert sum(event["args"]["batch"] for event in steps) >= 20
    assert {"prefill_rows", "codec_frames", "queued"} <= steps[0]["args"].keys()
    (stream,) = [event for event in events if event["name"].startswith("stream")]
    assert stream["args"]["finish_reason"] in ("stop", "length")


def test_whoever_asked_to_be_told_is_told_of_every_end(speech: Qwen3TTSModel) -> None:
    """Also on an engine that has nothing else to do: cancelled, refused, out of text, closed."""
    now = [0.0]
    engine = LocalEngine(
        speech, EngineConfig(max_streams=1, max_queue_seconds=5, text_timeout=100), clock=lambda: now[0]
    )
    told: dict[int, threading.Event] = {seed: threading.Event() for seed in range(4)}

    def submit(seed: int, **more: Any) -> LocalStream:
        def tell(stream: LocalStream) -> None:
            if stream.result is not None:
                told[seed].set()

        return engine.submit(request("the other assist", seed=seed, guard=False, **more), on_ready=tell)

    try:
        cancelled = submit(0, live=True)
        with engine.lock:
            assert cancelled._ready.wait_for(lambda: cancelled.text_deadline < inf, PATIENCE)
        refused = submit(1)
        with engine.lock:
            now[0] = QUEUE_GRACE_SECONDS + 6.0
            engine.wake()
        assert told[1].wait(PATIENCE)
        assert refused.result is not None
        cancelled.cancel()
        assert told[0].wait(PATIENCE)
        hungry = submit(2, live=True)
        with engine.lock:
            assert hungry._ready.wait_for(lambda: hungry.text_deadline < inf, PATIENCE)
            now[0] = 200.0
            engine.wake()
        assert told[2].wait(PATIENCE)
        submit(3, live=True)
    finally:
        engine.close()
    assert told[3].wait(PATIENCE)


def test_a_live_stream_without_a_first_word_is_a_stream_like_any_other(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    config = EngineConfig(max_streams=1, max_queue=1, max_queue_seconds=5, text_timeout=20)
    engine = LocalEngine(speech, config, clock=lambda: now[0])
    try:
        first, second = (engine.submit(request("", live=True, guard=False)) for _ in range(2))
        with pytest.raises(Overloaded, match="first text"):
            engine.submit(request("", live=True))
        first.cancel()
        wait_for_end(first)
        now[0] = 11.0  # longer than anyone may queue, but this one does not queue yet
        second.append(TEXTS[0])
        second.finish_text()
        late = request(TEXTS[0], layout="streaming", guard=False)
        np.testing.assert_allclose(spoken(second), solo(speech, late), atol=1e-6)
        forgotten = engine.submit(request("", live=True))
        with engine.lock:
            now[0] = 40.0
            engine.wake()
        with pytest.raises(StreamFailed, match="no text arrived"):
            spoken(forgotten)
        left = engine.submit(request("", live=True))
    finally:
        engine.close()
    with pytest.raises(StreamFailed, match="closed"):
        spoken(left)


def test_a_refused_first_word_ends_its_stream(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        waiting = engine.submit(request("", live=True))
        holder = engine.submit(request("the other assist", live=True, guard=False))
        with engine.lock:
            assert holder._ready.wait_for(lambda: holder.text_deadline < inf, PATIENCE)
        with pytest.raises(Overloaded):
            waiting.append("hello there, user")
        with pytest.raises(Overloaded, match="queue is full"):
            spoken(waiting)
        holder.cancel()
        assert_all_free(engine)
    finally:
        engine.close()


def test_an_end_that_was_read_ends_a_second_reader_too(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(request(frames=3))
        spoken(stream)
        assert list(stream.chunks(PATIENCE)) == []
    finally:
        engine.close()
