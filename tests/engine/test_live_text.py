# SPDX-License-Identifier: Apache-2.0
"""Streams whose text arrives in pieces."""

import asyncio
from collections.abc import Iterator
from math import inf
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from conftest import Loaded
from engine.held_lock import holding
from engine.stepped_engine import SteppedEngine
from engine.synthesis import TIMEOUT, assert_idle, read_all, request, solo_samples, wait_for_end
from polyvox.engine import slot_text
from polyvox.engine.chunk_assembler import BufferedChunk
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import Chunk
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_status import StreamStatus
from polyvox.errors import InvalidRequest, Overloaded, StreamFailed
from polyvox.kernels.flags import FRAME_ENDED
from polyvox.models.protocol import PreparedRequest
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request, Sampling
from polyvox.models.talker_generator import TalkerGeneratorState

pytestmark = pytest.mark.slow

TEXTS = ("hello there", "the other assistant", "on and on it goes, the line", "a")


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


def has_delivered_all(stream: LocalStream) -> bool:
    """The stream waits for text, and everything before is delivered."""
    return stream.text_deadline < inf and stream.started == stream.decoded > 0


def text_is_open(stream: LocalStream) -> bool:
    return stream.text_open  # other threads change it


@pytest.fixture
def stepped(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[SteppedEngine]:
    """An engine that starts a player with 12 tokens: the words of these tests have several."""
    monkeypatch.setattr(slot_text, "MIN_START_TOKENS", 12)
    engine = SteppedEngine(speech, EngineConfig(max_streams=1), buffer_frames=20, prefill_rows=512)
    engine.advance()
    yield engine
    engine.close()


def test_a_player_starts_with_several_tokens_and_then_gets_every_token_at_once(stepped: SteppedEngine) -> None:
    stream = stepped.submit(request("on and on ", live=True, guard=False, frames=40))
    stepped.advance()
    assert 0 < stream.text_end < 12
    assert (stream.prompt_left, stream.started) == (0, 0)  # the prompt is read meanwhile
    while stream.text_end < 12:
        assert stream.started == 0
        stream.append("and on ")
        stepped.advance()
    assert stream.started == stream.text_end
    assert stream.lead(stepped.now) > 0
    stream.append("and on ")
    stepped.advance()
    assert stream.started == stream.text_end
    stream.cancel()
    stepped.advance()


def test_a_player_does_not_wait_long_for_more_tokens(stepped: SteppedEngine) -> None:
    stream = stepped.submit(request("on and on ", live=True, guard=False, frames=40))
    stepped.advance()
    stepped.advance_clock(slot_text.MAX_START_DELAY - 0.001)
    stepped.advance()
    assert stream.started == 0
    stepped.advance_clock(0.002)
    stepped.advance()
    assert stream.started == stream.text_end > 0
    stepped.advance_clock(10.0)  # the player has played all of it
    stream.append("and ")
    stepped.advance()
    assert stream.started < stream.text_end < stream.started + 12
    stream.finish_text()
    stepped.advance()
    assert stream.text_frames == inf
    assert stream.started > stream.text_end
    stream.cancel()
    stepped.advance()


def test_neither_text_nor_its_end_nor_a_cancel_waits_for_the_engines_lock(stepped: SteppedEngine) -> None:
    stream, cancelled = (stepped.submit(request("on and on ", live=True, guard=False)) for _ in range(2))
    stepped.advance()
    text = len(stream.text) + stream.text_end
    with holding(stepped.lock) as holder, mock.patch.object(stepped.lock, "post", wraps=stepped.lock.post) as post:
        stream.append("and on ")
        stream.finish_text()
        stream.finish_text()
        with pytest.raises(InvalidRequest, match="whose text is not finished"):
            stream.append("and on ")
        for _ in range(3):
            cancelled.cancel()
        assert holder.is_alive()
        assert post.call_count == 3  # a text, its end, a cancel
        assert text_is_open(stream)
    assert not text_is_open(stream)
    assert len(stream.text) + stream.text_end > text
    stepped.advance()
    assert cancelled.result is not None
    assert cancelled.result.finish_reason == "cancelled"
    assert stream.text_frames == inf
    stream.cancel()
    stepped.advance()


def test_text_is_rejected_while_too_much_of_it_waits_for_the_engines_lock(
    stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvox.engine.stream.MAX_POSTED", 2)
    stream = stepped.submit(request("on and on ", live=True, guard=False))
    stepped.advance()
    with holding(stepped.lock):
        for _ in range(2):
            stream.append("and on ")
        with pytest.raises(Overloaded, match="too many texts wait"):
            stream.append("and on ")
    stepped.advance()
    assert stream.result is not None
    assert stream.result.overload_reason == "queue_full"


def test_empty_text_and_text_of_other_streams_do_not_count_as_waiting(
    stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvox.engine.stream.MAX_POSTED", 2)
    streams = [stepped.submit(request("on and on ", live=True, guard=False)) for _ in range(2)]
    stepped.advance()
    with holding(stepped.lock), mock.patch.object(stepped.lock, "post", wraps=stepped.lock.post) as post:
        for stream in streams:
            for text in ("", "and ", "", "on ", ""):
                stream.append(text)
        assert post.call_count == 4
    for stream in streams:
        stream.cancel()
    stepped.advance()


def test_rows_that_wait_for_the_engines_lock_count_as_pending(stepped: SteppedEngine) -> None:
    generator = stepped.model.generator
    rows = np.zeros((generator.max_positions // 2, generator.hidden_size), np.float32)
    stream = stepped.submit(request("on and on ", live=True, guard=False))
    stepped.advance()
    with holding(stepped.lock):
        stream.append_rows(rows)
        with pytest.raises(InvalidRequest, match="rows may be pending"):
            stream.append_rows(np.concatenate([rows, rows[:1]]))
    stream.cancel()
    stepped.advance()


def test_text_that_cannot_be_added_ends_its_stream(stepped: SteppedEngine, caplog: pytest.LogCaptureFixture) -> None:
    stream = stepped.submit(request("on and on ", live=True, guard=False))
    stepped.advance()
    with mock.patch.object(stream.text, "append", side_effect=MemoryError("no memory")):
        stream.append("and on ")
    stepped.advance()
    assert stream.result is not None
    assert (stream.result.finish_reason, stream.result.error) == ("error", "no memory")
    assert "append failed" in caplog.text


def test_a_reader_in_an_event_loop_copies_audio_without_the_engines_lock(
    stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []
    owned = BufferedChunk.owned

    def recorded(chunk: BufferedChunk) -> Chunk:
        locked.append(stepped.lock._is_owned())
        return owned(chunk)

    monkeypatch.setattr(BufferedChunk, "owned", recorded)

    async def main() -> None:
        stream = stepped.submit(request("on and on", guard=False, frames=8))
        await asyncio.to_thread(stepped.advance)
        await asyncio.wait_for(anext(aiter(stream)), TIMEOUT)
        stream.cancel()
        await asyncio.to_thread(stepped.advance)

    asyncio.run(main())
    assert locked == [False]


def test_a_reader_in_an_event_loop_does_not_wait_for_the_engines_lock(stepped: SteppedEngine) -> None:
    async def main() -> None:
        stream = stepped.submit(request("on and on", guard=False))
        await asyncio.to_thread(stepped.advance)
        with holding(stepped.lock) as holder:
            chunk = asyncio.ensure_future(anext(aiter(stream)))
            for _ in range(3):
                await asyncio.sleep(0.01)
            assert holder.is_alive()
            assert not chunk.done()
        assert (await asyncio.wait_for(chunk, TIMEOUT)).index == 0
        stream.cancel()
        await asyncio.to_thread(stepped.advance)

    asyncio.run(main())


def test_an_event_loop_submits_a_request_only_if_the_engines_lock_is_free_and_prepares_it_without_the_lock(
    stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holding(stepped.lock) as holder:
        assert stepped.submit_inline(request()) is None
        assert holder.is_alive()
    prepare, num_free = stepped.model.prepare, 0

    def prepare_without_lock(*given: Any) -> PreparedRequest:
        nonlocal num_free
        with holding(stepped.lock):  # another thread gets it
            num_free += 1
        return prepare(*given)

    monkeypatch.setattr(stepped.model, "prepare", prepare_without_lock)
    stream = stepped.submit_inline(request())
    assert stream is not None
    assert num_free == 1
    stepped.advance()
    stream.cancel()
    stepped.advance()


def test_waiting_for_text_is_not_an_underrun(speech: Qwen3TTSModel) -> None:
    """Ten seconds pass between two pieces of text."""
    text = "the other assistant, the other user, on and on"
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1), clock=lambda: now[0])
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False, frames=30))
        with engine.lock:
            assert stream._ready.wait_for(lambda: has_delivered_all(stream), TIMEOUT)
            now[0] = 10.0
        stream.append(text.removeprefix("the other assist"))
        stream.finish_text()
        whole = solo_samples(speech, request(text, layout="streaming", guard=False, frames=30))
        np.testing.assert_allclose(read_all(stream), whole, atol=1e-6)
        assert stream.result is not None
        assert stream.result.text_waits >= 1
        assert stream.result.underruns == 0
    finally:
        engine.close()


def test_a_draining_stream_does_not_wait_for_text(speech: Qwen3TTSModel) -> None:
    """Its speech ended while its text was open; a slow reader must not end it with a text timeout."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False, frames=30))
        with engine.lock:
            assert stream._ready.wait_for(lambda: has_delivered_all(stream), TIMEOUT)
            engine._manager.on_frame_results(np.array([stream.row]), np.array([FRAME_ENDED]), engine.clock())
            assert stream.status is StreamStatus.DRAINING
            assert stream.text_deadline == inf
    finally:
        engine.close()


def test_a_live_stream_without_text_times_out(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1, text_timeout=5.0), clock=lambda: now[0])
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False, frames=30))
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.text_deadline < inf and stream.buffered, TIMEOUT)
            now[0] = 6.0
            engine.wake()
        with pytest.raises(StreamFailed, match="no text arrived"):
            read_all(stream)
        assert len(read_all(engine.submit(request())))
    finally:
        engine.close()


def test_finished_live_text_has_the_frame_limit_of_its_length(speech: Qwen3TTSModel) -> None:
    """While text is open a live stream may be long; when it is complete, its length limits the frames."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    endless = Sampling(min_frames=1_000_000)
    try:
        live = engine.submit(Request("a", "serena", seed=1, live=True, sampling=endless))
        live.append(" b")
        with engine.lock:
            live.finish_text()
            assert live.status is not StreamStatus.AWAITING_TEXT
        read_all(live)
        whole = engine.submit(Request("a b", "serena", seed=1, layout="streaming", sampling=endless))
        read_all(whole)
        assert live.result is not None
        assert whole.result is not None
        assert live.result.finish_reason == whole.result.finish_reason == "runaway"
        assert live.result.frames == whole.result.frames
        assert live.result.text_tokens == whole.result.text_tokens == len(speech.tokenizer.text("a b"))
        assert_idle(engine)
    finally:
        engine.close()


def test_finished_live_text_frees_the_kv_pages_that_its_length_does_not_need(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    object.__setattr__(engine.config, "buffer_seconds", 20 * engine.frame_seconds)  # it cannot end unread
    try:
        live = engine.submit(
            Request("the other assist", "serena", seed=1, live=True, sampling=Sampling(min_frames=1000))
        )
        with engine.lock:
            assert live._ready.wait_for(lambda: has_delivered_all(live), TIMEOUT)
            assert live.allocation is not None
            num_pages, num_free = len(live.allocation.pages), len(engine.ledger.free_pages)
        live.finish_text()
        with engine.lock:
            assert live._ready.wait_for(lambda: live.reader_deadline < inf, TIMEOUT)
            num_freed = num_pages - len(live.allocation.pages)
            assert num_freed > 0
            assert len(engine.ledger.free_pages) == num_free + num_freed
    finally:
        engine.close()


def test_finished_live_text_has_the_expected_frames_of_whole_text(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(request("hello there", live=True, frames=3))
        stream.finish_text()
        read_all(stream)
        budget = int(cast(TalkerGeneratorState, engine._runner.generator.state).expected_frames[0])
        read_all(engine.submit(request("hello there", layout="streaming", frames=3)))
        assert budget == int(cast(TalkerGeneratorState, engine._runner.generator.state).expected_frames[0])
    finally:
        engine.close()


def test_a_live_stream_without_text_can_be_cancelled_time_out_and_start_late(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    config = EngineConfig(max_streams=1, max_queue=1, max_queue_seconds=5, text_timeout=20)
    engine = LocalEngine(speech, config, clock=lambda: now[0])
    try:
        first, second = (engine.submit(request("", live=True, guard=False)) for _ in range(2))
        with pytest.raises(Overloaded, match="first text"):
            engine.submit(request("", live=True))
        first.cancel()
        wait_for_end(first)
        now[0] = 11.0  # longer than the queue timeout, but this stream is not queued
        second.append(TEXTS[0])
        second.finish_text()
        late = request(TEXTS[0], layout="streaming", guard=False)
        np.testing.assert_allclose(read_all(second), solo_samples(speech, late), atol=1e-6)
        without_text = engine.submit(request("", live=True))
        with engine.lock:
            now[0] = 40.0
            engine.wake()
        with pytest.raises(StreamFailed, match="no text arrived"):
            read_all(without_text)
        left = engine.submit(request("", live=True))
    finally:
        engine.close()
    with pytest.raises(StreamFailed, match="closed"):
        read_all(left)


def test_a_rejected_first_text_ends_its_stream(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        waiting = engine.submit(request("", live=True))
        active = engine.submit(request("the other assist", live=True, guard=False))
        with engine.lock:
            assert active._ready.wait_for(lambda: active.text_deadline < inf, TIMEOUT)
        with pytest.raises(Overloaded):
            waiting.append("hello there, user")
        with pytest.raises(Overloaded, match="queue is full"):
            read_all(waiting)
        active.cancel()
        assert_idle(engine)
    finally:
        engine.close()
