# SPDX-License-Identifier: Apache-2.0
"""Failures that the random operations of engine_machine.py found, each in its smallest form."""

import threading
from collections.abc import Callable, Iterator, Sequence
from math import inf

import numpy as np
import pytest

from conftest import Loaded
from engine.stepped_engine import SteppedEngine
from engine.synthesis import request
from polyvox.audio.pcm import Audio
from polyvox.engine.chunk_assembler import BufferedChunk
from polyvox.engine.config import EngineConfig
from polyvox.engine.interface import Chunk, ChunkParts
from polyvox.engine.pending import PendingAudio
from polyvox.errors import Overloaded
from polyvox.models.request import Sampling

Started = Callable[[EngineConfig], SteppedEngine]


@pytest.fixture
def started(loaded: Loaded) -> Iterator[Started]:
    engines: list[SteppedEngine] = []

    def start(config: EngineConfig) -> SteppedEngine:
        speech = loaded("custom_voice", "float64").model
        engines.append(SteppedEngine(speech, config, buffer_frames=20, prefill_rows=512))
        engines[0].advance()
        return engines[0]

    yield start
    engines[0].close()


def test_a_reader_that_resumes_in_time_is_not_timed_out(started: Started) -> None:
    """It took all chunks, and the engine's next iteration begins after the timeout."""
    engine = started(EngineConfig(max_streams=1, reader_timeout=10))
    stream = engine.submit(request(frames=36, sampling=Sampling(min_frames=36)))
    engine.advance()
    assert stream.reader_deadline < inf
    engine.advance_clock(9)
    assert stream.take(100)
    engine.advance_clock(2)
    engine.advance()
    assert stream.result is not None
    assert stream.result.finish_reason == "length"


def test_text_that_arrives_in_time_is_used(started: Started) -> None:
    engine = started(EngineConfig(max_streams=1, text_timeout=10))
    stream = engine.submit(request("the other assist", live=True, guard=False))
    engine.advance()
    assert stream.text_deadline < inf
    engine.advance_clock(9)
    stream.append("ant, the other user, ")
    stream.finish_text()
    engine.advance_clock(2)
    engine.advance()
    assert stream.result is not None
    assert stream.result.finish_reason != "error"


def test_a_stream_whose_first_text_was_rejected_can_be_finished(started: Started) -> None:
    engine = started(EngineConfig(max_streams=1, max_queue=0))
    waiting = engine.submit(request("hello", live=True))
    engine.submit(request("the other assist", live=True, guard=False))
    engine.advance()
    with pytest.raises(Overloaded):
        waiting.finish_text()
    waiting.finish_text()  # idempotent


def test_a_completed_step_uses_no_slot(started: Started) -> None:
    """Also while readers are notified of the next step's audio in the same iteration."""
    engine = started(EngineConfig(max_streams=1, min_streams_to_pipeline=1))
    stream = engine.submit(request(frames=5, sampling=Sampling(min_frames=5)))
    while stream.result is None:
        engine.advance(1)
        assert (stream.last_step > engine._manager.completed_steps) == (stream in engine._pipeline.streams_in_flight())


def test_the_first_chunk_is_delivered_when_the_text_runs_out(started: Started) -> None:
    """Whatever the size of the first chunk, with leading silence trimmed or not."""
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request("the other assist", live=True, guard=False, trim_silence=True, first_chunk=16))
    engine.advance()
    assert stream.text_deadline < inf
    assert not stream.assembler.silent
    assert stream.buffered > 0
    assert stream.assembler.size == 0


@pytest.mark.parametrize("cancelled", [False, True], ids=["a paused file", "a cancelled stream"])
def test_withheld_audio_does_not_keep_the_memory_of_a_whole_step(
    started: Started, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvox.engine.scheduler.MIN_STREAMS_TO_WITHHOLD", 0)
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request(whole_file=not cancelled, first_chunk=16))
    step = np.full((256, engine.model.vocoder.samples_per_frame), 0.5, np.float32)
    while stream.allocation is None:
        engine.advance(1)
    with engine.lock:
        stream.undelivered = 1
        engine._manager.on_audio(np.array([stream.row]), np.array([1]), [step[7]], engine.now)
        assert stream.assembler.size == len(step[7])
    if cancelled:
        stream.cancel()
        engine.advance()
    assert not any(np.shares_memory(part, step) for part in stream.assembler.parts)


def test_a_stopped_reader_does_not_keep_the_memory_of_a_whole_step(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Audio] = []
    get = PendingAudio.get

    def seen(sound: PendingAudio) -> list[Audio | None]:
        found = get(sound)
        steps.extend(row for row in found if row is not None)
        return found

    monkeypatch.setattr(PendingAudio, "get", seen)
    engine = started(EngineConfig(max_streams=4))
    sampling = Sampling(min_frames=40)
    streams = [engine.submit(request(seed=i, frames=40, guard=False, sampling=sampling)) for i in range(4)]
    engine.advance()
    buffered = [chunk for stream in streams for chunk in stream._buffer]
    assert len(buffered) > len(streams)
    assert not any(np.shares_memory(part, step) for chunk in buffered for part in chunk.parts for step in steps)


def test_a_stream_without_text_does_not_keep_the_memory_of_a_whole_step(started: Started) -> None:
    """No chunk follows the last one until there is text."""
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request("the other assist", live=True, guard=False))
    step = np.full((256, engine.model.vocoder.samples_per_frame), 0.5, np.float32)
    with engine.lock:
        stream.assembler.add(step[7])
        stream.deliver(final=False)
        (chunk,) = stream._buffer
        assert np.shares_memory(chunk.parts[0], step)
        stream.wait_for_text(engine.now)
        assert not np.shares_memory(chunk.parts[0], step)
        np.testing.assert_array_equal(chunk.owned().samples, step[7])


def test_take_all_takes_from_many_streams_at_once(started: Started) -> None:
    engine = started(EngineConfig(max_streams=4))
    streams = [engine.submit(request(seed=i, frames=6, sampling=Sampling(min_frames=6))) for i in range(3)]
    engine.advance()
    expected = [np.concatenate([chunk.samples for chunk in stream.take(100)]) for stream in streams]
    again = [engine.submit(request(seed=i, frames=6, sampling=Sampling(min_frames=6))) for i in range(3)]
    empty = engine.submit(request("hello", live=True))
    assert all(stream.prepared is not None for stream in again)
    engine.advance()
    assert all(stream.prepared is None for stream in again), "an active stream keeps its prompt"
    first, second, none, nothing = engine.take_all([(again[0], 100), (again[1], 1), (again[2], 0), (empty, 5)])
    assert (len(second), none, nothing) == (1, [], [])
    taken: list[Sequence[ChunkParts]] = [first, [*second, *again[1].take(100)], again[2].take(100)]
    assert [chunk.index for chunk in taken[1]] == list(range(len(taken[1])))
    assert all(chunks[-1].final for chunks in taken)
    for chunks, whole in zip(taken, expected, strict=True):
        parts = [part for chunk in chunks for part in chunk.parts]
        assert sum(map(len, parts)) == sum(chunk.size for chunk in chunks)
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)
    assert all(stream.buffered == 0 for stream in again)


def test_chunks_are_joined_without_the_engines_lock(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request(frames=6, sampling=Sampling(min_frames=6)))
    engine.advance()
    owned, free = BufferedChunk.owned, list[bool]()

    def observed(chunk: BufferedChunk) -> Chunk:
        def try_lock() -> None:
            free.append(engine.lock.acquire(timeout=5))
            if free[-1]:
                engine.lock.release()

        other = threading.Thread(target=try_lock)
        other.start()
        other.join()
        return owned(chunk)

    monkeypatch.setattr(BufferedChunk, "owned", observed)
    assert stream.take(100)[-1].final
    assert free
    assert all(free)
