"""Failures that other engines met in the field, each as a test that the mistake would not pass.

The hand-off to other processes has its own (test_process.py): a dead, stopped or throwing consumer, a list instead
of an array, a connector left open. Silent broadcasting of the embedding sum is in tests/models/test_model.py.
"""

import threading
from math import inf
from typing import Any

import numpy as np
import pytest

from conftest import Loaded
from engine.speaking import PATIENCE, assert_all_free, request, solo, spoken
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.slots import SlotAllocation
from polyvox.errors import StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request

pytestmark = pytest.mark.slow

SMALL_RING = 24  # text rows


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").speech


def test_a_small_batch_after_a_large_one_reads_nothing_of_it(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=4, poison_freed=True))
    try:
        for stream in [engine.submit(request(voice="vivian", seed=i, frames=9)) for i in range(4)]:
            spoken(stream)
        for _ in range(2):
            np.testing.assert_allclose(spoken(engine.submit(request())), solo(speech, request()), atol=1e-6)
    finally:
        engine.close()


def test_poison_is_found_out_where_something_is_read_before_it_is_written(speech: Qwen3TTSModel) -> None:
    """The switch itself works: a seat that forgets to clear the codec's past is heard."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1, poison_freed=True))
    state: Any = engine._runner.vocoder.state
    assign = state.assign

    def forgetful(slot: int, context: object) -> None:
        before = {name: rows[slot].clone() for name, rows in state.layers.items()}
        assign(slot, context)
        for name, rows in state.layers.items():
            rows[slot] = before[name]

    try:
        state.assign = forgetful
        assert np.isnan(spoken(engine.submit(request()))).any()
    finally:
        engine.close()


def test_a_wake_up_between_append_and_wait_is_not_lost(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    words = ["the", "other", "assistant,", "the", "other", "user,", "on", "and", "on", "it", "goes", ""]
    asked = request(" ".join(words), layout="streaming", guard=False, frames=30)

    def feed(stream: object) -> None:
        for word in words[1:]:
            stream.append(" " + word)  # type: ignore[attr-defined]
        stream.finish_text()  # type: ignore[attr-defined]

    try:
        for _ in range(5):
            stream = engine.submit(request(words[0], live=True, guard=False, frames=30))
            feeder = threading.Thread(target=feed, args=(stream,))
            feeder.start()
            np.testing.assert_allclose(spoken(stream), solo(speech, asked), atol=1e-6)
            feeder.join(PATIENCE)
            assert not feeder.is_alive()
    finally:
        engine.close()


def test_text_that_was_read_is_not_kept_alive(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait for room are a tensor of their own, not a window on all of the text."""
    monkeypatch.setattr("polyvox.engine.generator_runner.TEXT_ROWS", SMALL_RING)
    engine = LocalEngine(speech, EngineConfig(max_streams=1, context=4096))
    try:
        long = "a b " * 50
        with engine.lock:
            stream = engine.submit(request(long, layout="streaming", guard=False, frames=250))
            assert stream._ready.wait_for(lambda: stream.buffered, PATIENCE)
            rows = stream.text
            assert 0 < len(rows) <= len(speech.tokenizer.text(long)) - SMALL_RING
            assert rows.untyped_storage().nbytes() == rows.numel() * rows.element_size()
        stream.cancel()
        assert_all_free(engine)
        assert stream.text.numel() == 0
        assert stream.prepared is None
    finally:
        engine.close()


def test_a_text_longer_than_a_slots_memory_is_read_to_its_end(
    speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than the ring holds: they follow the frames, and the ring's old rows are not read again."""
    long = request("a b " * 50, layout="streaming", guard=False, frames=255, seed=2)
    whole = solo(speech, long)
    monkeypatch.setattr("polyvox.engine.generator_runner.TEXT_ROWS", SMALL_RING)
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        assert len(whole) > 2 * SMALL_RING * speech.vocoder.samples_per_frame
        np.testing.assert_allclose(spoken(engine.submit(long)), whole, atol=1e-6)
    finally:
        engine.close()


def test_the_end_is_told_where_no_sample_is_left(speech: Qwen3TTSModel) -> None:
    """Every length of speech, also those that end with a chunk, has one final chunk and all of its samples."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        for frames in range(1, 20):
            asked = request(frames=frames, seed=2)
            samples = spoken(engine.submit(asked))
            assert len(samples) <= frames * speech.vocoder.samples_per_frame
            assert len(samples) % speech.vocoder.samples_per_frame == 0
    finally:
        engine.close()


def test_a_long_prompt_does_not_keep_others_waiting_for_ever(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=4, context=2048))
    try:
        with engine.lock:
            object.__setattr__(engine.load.limits, "max_prefill_rows", 16)
            asked = [request("the other assistant " * 30, seed=i, frames=4) for i in range(3)] + [request()]
            streams = [engine.submit(one) for one in asked]
        for stream, one in zip(streams, asked, strict=True):
            np.testing.assert_allclose(spoken(stream), solo(speech, one), atol=1e-6)
    finally:
        engine.close()


def test_rows_are_refused_where_text_is_not_open(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(Request("hello", "serena", seed=1, max_frames=3))
        with pytest.raises(Exception, match="live"):
            stream.append_rows(np.zeros((1, speech.generator.hidden_size), np.float32))
        spoken(stream)
    finally:
        engine.close()


def test_text_that_fails_frees_its_slot_from_the_engines_thread_alone(
    speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that another thread frees may be in the step that runs: the next stream would share it."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1, poison_freed=True))
    freed: list[str] = []
    clear = engine._runner.clear

    def noted(seat: SlotAllocation) -> None:
        freed.append(threading.current_thread().name)
        clear(seat)

    monkeypatch.setattr(engine._runner, "clear", noted)
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False))
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.text_deadline < inf, PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(speech, "text_rows", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                stream.append("ant, the user")
        with pytest.raises(StreamFailed, match="division"):
            spoken(stream)
        assert_all_free(engine)
        assert freed == ["polyvox-engine"]
        np.testing.assert_allclose(spoken(engine.submit(request())), solo(speech, request()), atol=1e-6)
    finally:
        engine.close()
