# SPDX-License-Identifier: Apache-2.0
"""Known failures of other engines, each as a regression test.

tests/ipc has those of the connection to other processes, tests/models/test_model.py the silent broadcasting of the
embedding sum.
"""

import threading
from dataclasses import replace
from math import inf
from typing import Any
from unittest import mock

import numpy as np
import pytest

from conftest import Loaded
from engine.stepped_engine import LOW_COST
from engine.synthesis import TIMEOUT, assert_idle, read_all, request, solo_samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.slots import SlotAllocation
from polyvox.errors import StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request

pytestmark = pytest.mark.slow

SMALL_RING = 24  # text ids


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


def test_a_small_batch_after_a_large_one_reads_none_of_its_state(speech: Qwen3TTSModel) -> None:
    # The calibration of a loaded machine can have a capacity of one stream, and admission then rejects the others.
    with mock.patch("polyvox.engine.engine.calibrate", side_effect=lambda *_: replace(LOW_COST)):
        engine = LocalEngine(speech, EngineConfig(max_streams=4, poison_freed=True))
    try:
        for stream in [engine.submit(request(voice="vivian", seed=i, frames=9)) for i in range(4)]:
            read_all(stream)
        for _ in range(2):
            np.testing.assert_allclose(read_all(engine.submit(request())), solo_samples(speech, request()), atol=1e-6)
    finally:
        engine.close()


def test_poisoned_memory_that_is_read_before_it_is_written_is_audible(speech: Qwen3TTSModel) -> None:
    """The switch works: an assignment that keeps the old codec state gives NaN."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1, poison_freed=True))
    state: Any = engine._runner.vocoder.state
    upload = state.upload

    def keep_state() -> None:
        before = {name: rows.clone() for name, rows in state.layers.items()}
        upload()
        for name, rows in state.layers.items():
            rows.copy_(before[name])

    try:
        state.upload = keep_state
        assert np.isnan(read_all(engine.submit(request()))).any()
    finally:
        engine.close()


def test_a_wake_up_between_append_and_wait_is_not_lost(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    words = ["the", "other", "assistant,", "the", "other", "user,", "on", "and", "on", "it", "goes", ""]
    wanted = request(" ".join(words), layout="streaming", guard=False, frames=30)

    def append_words(stream: object) -> None:
        for word in words[1:]:
            stream.append(" " + word)  # type: ignore[attr-defined]
        stream.finish_text()  # type: ignore[attr-defined]

    try:
        for _ in range(5):
            stream = engine.submit(request(words[0], live=True, guard=False, frames=30))
            writer = threading.Thread(target=append_words, args=(stream,))
            writer.start()
            np.testing.assert_allclose(read_all(stream), solo_samples(speech, wanted), atol=1e-6)
            writer.join(TIMEOUT)
            assert not writer.is_alive()
    finally:
        engine.close()


def test_text_that_was_read_is_freed(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.generator_runner.TEXT_IDS", SMALL_RING)
    engine = LocalEngine(speech, EngineConfig(max_streams=1, context=4096))
    try:
        long = "a b " * 50
        with engine.lock:
            stream = engine.submit(request(long, layout="streaming", guard=False, frames=250))
            assert stream._ready.wait_for(lambda: stream.buffered, TIMEOUT)
            assert 0 < len(stream.text) <= len(speech.tokenizer.text(long)) - SMALL_RING
        stream.cancel()
        assert_idle(engine)
        assert not len(stream.text)
        assert stream.prepared is None
    finally:
        engine.close()


def test_a_text_longer_than_the_text_ring_is_read_to_its_end(
    speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beyond the ring follow the frames, and the ring's old rows are not read again."""
    long = request("a b " * 50, layout="streaming", guard=False, frames=255, seed=2)
    whole = solo_samples(speech, long)
    monkeypatch.setattr("polyvox.engine.generator_runner.TEXT_IDS", SMALL_RING)
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        assert len(whole) > 2 * SMALL_RING * speech.vocoder.samples_per_frame
        np.testing.assert_allclose(read_all(engine.submit(long)), whole, atol=1e-6)
    finally:
        engine.close()


def test_every_stream_has_one_final_chunk(speech: Qwen3TTSModel) -> None:
    """For every length, also if the last frame completes a chunk."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        for frames in range(1, 20):
            wanted = request(frames=frames, seed=2)
            samples = read_all(engine.submit(wanted))
            assert len(samples) <= frames * speech.vocoder.samples_per_frame
            assert len(samples) % speech.vocoder.samples_per_frame == 0
    finally:
        engine.close()


def test_long_prompts_do_not_block_other_streams(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=4, context=2048))
    try:
        with engine.lock:
            object.__setattr__(engine.load.limits, "max_prefill_rows", 16)
            wanted = [request("the other assistant " * 30, seed=i, frames=4) for i in range(3)] + [request()]
            streams = [engine.submit(one) for one in wanted]
        for stream, one in zip(streams, wanted, strict=True):
            np.testing.assert_allclose(read_all(stream), solo_samples(speech, one), atol=1e-6)
    finally:
        engine.close()


def test_rows_are_rejected_if_the_text_is_not_open(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(Request("hello", "serena", seed=1, max_frames=3))
        with pytest.raises(Exception, match="live"):
            stream.append_rows(np.zeros((1, speech.generator.hidden_size), np.float32))
        read_all(stream)
    finally:
        engine.close()


def test_a_failed_append_releases_the_slot_from_the_engines_thread(
    speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread could release a slot that the current step uses: two streams would share it."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1, poison_freed=True))
    freed: list[str] = []
    clear = engine._runner.clear

    def recorded(allocation: SlotAllocation) -> None:
        freed.append(threading.current_thread().name)
        clear(allocation)

    monkeypatch.setattr(engine._runner, "clear", recorded)
    try:
        stream = engine.submit(request("the other assist", live=True, guard=False))
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.text_deadline < inf, TIMEOUT)
        with monkeypatch.context() as patch:
            patch.setattr(speech, "text_ids", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                stream.append("ant, the user")
        with pytest.raises(StreamFailed, match="division"):
            read_all(stream)
        assert_idle(engine)
        assert freed == ["polyvox-engine"]
        np.testing.assert_allclose(read_all(engine.submit(request())), solo_samples(speech, request()), atol=1e-6)
    finally:
        engine.close()
