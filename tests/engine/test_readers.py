# SPDX-License-Identifier: Apache-2.0
"""Readers of streams: slow, stopped, in an event loop, by callback."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from conftest import Loaded
from engine.synthesis import TIMEOUT, assert_idle, read_all, request, solo_samples, wait_for_end
from polyvox.engine.admission import QUEUE_GRACE_SECONDS
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import Chunk, Stream
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_manager import MAX_READER_DELAY
from polyvox.errors import InvalidRequest, StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Sampling

pytestmark = pytest.mark.slow

TEXTS = ("hello there", "the other assistant", "on and on it goes, the line", "a")


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


def small_buffer(engine: LocalEngine, frames: int) -> None:
    """Smaller than the configuration allows: a frame of the tiny codec has 2 ms."""
    object.__setattr__(engine.config, "buffer_seconds", frames * engine.frame_seconds)


def test_a_slow_reader_pauses_only_its_own_stream_and_loses_nothing(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    small_buffer(engine, 20)
    try:
        wanted = request(seed=2, frames=150, sampling=Sampling(min_frames=150))
        slow = engine.submit(wanted)
        with engine.lock:
            assert slow._ready.wait_for(lambda: slow.buffered >= 16 * speech.vocoder.samples_per_frame, TIMEOUT)
        for seed in (0, 1, 4):
            quick = request(seed=seed, frames=20)
            np.testing.assert_allclose(read_all(engine.submit(quick)), solo_samples(speech, quick), atol=1e-6)
        assert slow.result is None
        assert slow.buffered <= 20 * speech.vocoder.samples_per_frame
        np.testing.assert_allclose(read_all(slow), solo_samples(speech, wanted), atol=1e-6)
        assert_idle(engine)
    finally:
        engine.close()


def test_a_stopped_reader_times_out(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(
        speech, EngineConfig(max_streams=1, buffer_seconds=2.0, reader_timeout=5.0), clock=lambda: now[0]
    )
    try:
        small_buffer(engine, 10)
        stream = engine.submit(request(frames=255, sampling=Sampling(min_frames=255)))
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.reader_deadline < inf or stream.result, TIMEOUT)
            assert stream.reader_deadline < inf
            now[0] = 6.0
            engine.wake()
            assert stream._ready.wait_for(lambda: stream.result is not None, TIMEOUT)
        assert stream.result is not None
        assert "nothing was read" in (stream.result.error or "")
        with pytest.raises(StreamFailed):
            read_all(stream)
        other = engine.submit(request())
        assert len(read_all(other))
    finally:
        engine.close()


def test_a_cancelled_stream_drops_the_audio_that_was_not_read(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    small_buffer(engine, 10)
    try:
        stream = engine.submit(request(frames=255, sampling=Sampling(min_frames=255)))
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.buffered > 0, TIMEOUT)
        stream.cancel()
        wait_for_end(stream)
        (last,) = stream.take(100)
        assert (last.index, last.size, last.final) == (0, 0, True)
    finally:
        engine.close()


def test_a_stream_that_is_not_read_gives_its_slot_to_the_next_request(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1), clock=lambda: now[0])
    small_buffer(engine, 10)
    try:
        wanted = request(frames=255, sampling=Sampling(min_frames=255))
        unread = engine.submit(wanted)
        with engine.lock:
            assert unread._ready.wait_for(lambda: unread.reader_deadline < inf, TIMEOUT)
        queued = engine.submit(request())  # the reader of the first one is not behind yet
        not_behind = unread.result
        queued.cancel()
        now[0] = MAX_READER_DELAY + 1.0
        other = engine.submit(request())
        np.testing.assert_allclose(read_all(other), solo_samples(speech, request()), atol=1e-6)
        assert not_behind is None
        assert unread.result is not None
        assert "behind real time, and another request needs the slot" in (unread.result.error or "")
        with pytest.raises(StreamFailed):
            read_all(unread)
        assert_idle(engine)
    finally:
        engine.close()


def is_unread(stream: LocalStream) -> bool:
    return stream.reader_deadline < inf


def test_only_a_request_that_can_use_the_slot_ends_a_stream_that_is_not_read(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=2), clock=lambda: now[0])
    small_buffer(engine, 10)
    try:
        long = request(frames=255, sampling=Sampling(min_frames=255))
        unread = [engine.submit(replace(long, whole_file=whole_file)) for whole_file in (False, True)]
        with engine.lock:
            for stream in unread:
                assert stream._ready.wait_for(partial(is_unread, stream), TIMEOUT)
        now[0] = MAX_READER_DELAY + 1.0
        with pytest.raises(InvalidRequest):
            engine.submit(request(voice="nobody"))
        without_text = engine.submit(request("", live=True))
        second_file = engine.submit(request(whole_file=True))  # files have their share of the slots
        assert not engine._manager.stop_requests
        assert [stream.result for stream in unread] == [None, None]
        without_text.append("hello there, the other assistant, ")  # now it needs a slot
        without_text.finish_text()
        assert len(read_all(without_text))
        assert [stream.result is None for stream in unread] == [False, True]
        second_file.cancel()
    finally:
        engine.close()


def test_a_stream_that_is_read_in_real_time_keeps_its_slot(speech: Qwen3TTSModel) -> None:
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1), clock=lambda: now[0])
    small_buffer(engine, 10)
    try:
        wanted = request(seed=2, frames=60, sampling=Sampling(min_frames=60))
        stream = engine.submit(wanted)
        with engine.lock:
            assert stream._ready.wait_for(lambda: stream.reader_deadline < inf, TIMEOUT)
        now[0] = MAX_READER_DELAY / 2
        queued = engine.submit(request())
        np.testing.assert_allclose(read_all(stream), solo_samples(speech, wanted), atol=1e-6)
        assert len(read_all(queued))
    finally:
        engine.close()


def test_a_reader_that_leaves_the_iteration_frees_its_slot(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        for chunk in engine.submit(request(frames=255, seed=3)).chunks(TIMEOUT):
            assert isinstance(chunk, Chunk)
            break
        assert len(read_all(engine.submit(request())))
        assert_idle(engine)
    finally:
        engine.close()


def test_a_callback_that_raises_cancels_only_its_own_stream(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    called = threading.Event()

    def fail(_: Sequence[Stream]) -> None:
        called.set()
        raise RuntimeError("reader")

    try:
        bad = engine.submit(request(frames=255, seed=3), on_ready=fail)
        np.testing.assert_allclose(read_all(engine.submit(request())), solo_samples(speech, request()), atol=1e-6)
        assert called.wait(TIMEOUT)
        wait_for_end(bad)
        assert bad.result is not None
        assert bad.result.finish_reason == "cancelled"
    finally:
        engine.close()


def test_a_stream_can_be_read_in_an_event_loop(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))

    async def read(stream: LocalStream) -> list[Chunk]:
        return [chunk async for chunk in stream]

    async def batch() -> list[list[Chunk]]:
        return await asyncio.gather(*(read(engine.submit(request(seed=seed))) for seed in range(4)))

    async def stop_early() -> LocalStream:
        stream = engine.submit(request(frames=255))
        async for _ in stream:
            break
        return stream

    try:
        for seed, chunks in enumerate(asyncio.run(batch())):
            assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
            samples = np.concatenate([chunk.samples for chunk in chunks])
            np.testing.assert_allclose(samples, solo_samples(speech, request(seed=seed)), atol=1e-6)
        left = asyncio.run(stop_early())
        wait_for_end(left)
        assert left.result is not None
        assert left.result.finish_reason == "cancelled"
        assert_idle(engine)
    finally:
        engine.close()


def test_on_ready_is_called_for_every_result(speech: Qwen3TTSModel) -> None:
    """Also on an idle engine: cancelled, timed out in the queue, without text, closed."""
    now = [0.0]
    engine = LocalEngine(
        speech, EngineConfig(max_streams=1, max_queue_seconds=5, text_timeout=100), clock=lambda: now[0]
    )
    notified: dict[int, threading.Event] = {seed: threading.Event() for seed in range(4)}

    def submit(seed: int, **more: Any) -> LocalStream:
        def on_ready(streams: Sequence[Stream]) -> None:
            (stream,) = streams
            if stream.result is not None:
                notified[seed].set()

        return engine.submit(request("the other assist", seed=seed, guard=False, **more), on_ready=on_ready)

    try:
        cancelled = submit(0, live=True)
        with engine.lock:
            assert cancelled._ready.wait_for(lambda: cancelled.text_deadline < inf, TIMEOUT)
        expired = submit(1)
        with engine.lock:
            now[0] = QUEUE_GRACE_SECONDS + 6.0
            engine.wake()
        assert notified[1].wait(TIMEOUT)
        assert expired.result is not None
        cancelled.cancel()
        assert notified[0].wait(TIMEOUT)
        without_text = submit(2, live=True)
        with engine.lock:
            assert without_text._ready.wait_for(lambda: without_text.text_deadline < inf, TIMEOUT)
            now[0] = 200.0
            engine.wake()
        assert notified[2].wait(TIMEOUT)
        submit(3, live=True)
    finally:
        engine.close()
    assert notified[3].wait(TIMEOUT)


def test_a_second_reader_finds_the_end(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(request(frames=3))
        read_all(stream)
        assert list(stream.chunks(TIMEOUT)) == []
    finally:
        engine.close()
