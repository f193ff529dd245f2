"""What the crowd of test_stateful.py came upon once, each in its smallest form."""

import threading
from collections.abc import Callable, Iterator
from math import inf

import numpy as np
import pytest

from conftest import Loaded
from engine.speaking import request
from engine.stepped_engine import SteppedEngine
from polyvox.audio.clip import Samples
from polyvox.engine.chunk_assembler import BufferedChunk
from polyvox.engine.config import EngineConfig
from polyvox.engine.interface import Chunk
from polyvox.engine.pending import PendingAudio
from polyvox.errors import Overloaded
from polyvox.models.request import Sampling

Started = Callable[[EngineConfig], SteppedEngine]


@pytest.fixture
def started(loaded: Loaded) -> Iterator[Started]:
    engines: list[SteppedEngine] = []

    def start(config: EngineConfig) -> SteppedEngine:
        speech = loaded("custom_voice", "float64").speech
        engines.append(SteppedEngine(speech, config, buffer_frames=20, prefill_rows=512))
        engines[0].go_on()
        return engines[0]

    yield start
    engines[0].close()


def test_a_reader_that_came_back_in_time_is_not_ended(started: Started) -> None:
    """It has read all, and the engine's next turn begins after the limit."""
    engine = started(EngineConfig(max_streams=1, reader_timeout=10))
    stream = engine.submit(request(frames=36, sampling=Sampling(min_frames=36)))
    engine.go_on()
    assert stream.reader_deadline < inf
    engine.pass_time(9)
    assert stream.take(100)
    engine.pass_time(2)
    engine.go_on()
    assert stream.result is None or stream.result.finish_reason == "length"


def test_text_that_came_in_time_is_said(started: Started) -> None:
    engine = started(EngineConfig(max_streams=1, text_timeout=10))
    stream = engine.submit(request("the other assist", live=True, guard=False))
    engine.go_on()
    assert stream.text_deadline < inf
    engine.pass_time(9)
    stream.append("ant, the other user, ")
    stream.finish_text()
    engine.pass_time(2)
    engine.go_on()
    assert stream.result is None or stream.result.finish_reason != "error"


def test_a_stream_whose_first_word_was_refused_can_be_finished(started: Started) -> None:
    engine = started(EngineConfig(max_streams=1, max_queue=0))
    waiting = engine.submit(request("hello", live=True))
    engine.submit(request("the other assist", live=True, guard=False))
    engine.go_on()
    with pytest.raises(Overloaded):
        waiting.finish_text()
    waiting.finish_text()  # any number of times


def test_a_step_that_has_landed_holds_no_slot(started: Started) -> None:
    """Also while readers are told of the sound of the next one, which lands in the same turn."""
    engine = started(EngineConfig(max_streams=1, min_streams_to_pipeline=1))
    stream = engine.submit(request(frames=5, sampling=Sampling(min_frames=5)))
    while stream.result is None:
        engine.go_on(1)
        assert (stream.last_step > engine._manager.completed_steps) == (stream in engine._streams_in_flight())


def test_a_first_sound_is_given_when_text_runs_out(started: Started) -> None:
    """However many frames a first chunk shall have: what can be said is said, silence before it trimmed or not."""
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request("the other assist", live=True, guard=False, trim_silence=True, first_chunk=16))
    engine.go_on()
    assert stream.text_deadline < inf
    assert not stream.assembler.silent
    assert stream.buffered > 0
    assert stream.assembler.size == 0


@pytest.mark.parametrize("cancelled", [False, True], ids=["a file that rests", "a stream that was cancelled"])
def test_held_sound_does_not_keep_that_of_all_others_for_long(
    started: Started, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvox.engine.scheduler.MIN_STREAMS_TO_WITHHOLD", 0)
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request(whole_file=not cancelled, first_chunk=16))
    step = np.full((256, engine.model.vocoder.samples_per_frame), 0.5, np.float32)
    with engine.lock:
        engine._manager.on_audio(stream, step[7], 1, engine.now)
        assert stream.assembler.size == len(step[7])
    if cancelled:
        stream.cancel()
        engine.go_on()
    assert not any(np.shares_memory(part, step) for part in stream.assembler._parts)


def test_a_reader_that_takes_nothing_does_not_keep_the_sound_of_all_others(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Samples] = []
    get = PendingAudio.get

    def seen(sound: PendingAudio) -> list[Samples]:
        found = get(sound)
        steps.extend(found)
        return found

    monkeypatch.setattr(PendingAudio, "get", seen)
    engine = started(EngineConfig(max_streams=4))
    sampling = Sampling(min_frames=40)
    streams = [engine.submit(request(seed=i, frames=40, guard=False, sampling=sampling)) for i in range(4)]
    engine.go_on()
    left = [piece for stream in streams for piece in stream._buffer]
    assert len(left) > len(streams)
    assert not any(np.shares_memory(part, step) for piece in left for part in piece.parts for step in steps)


def test_nor_does_one_whose_text_has_run_out(started: Started) -> None:
    """No chunk will come behind the last one until there is text."""
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request("the other assist", live=True, guard=False))
    step = np.full((256, engine.model.vocoder.samples_per_frame), 0.5, np.float32)
    with engine.lock:
        stream.assembler.add(step[7])
        stream.deliver(final=False)
        (piece,) = stream._buffer
        assert np.shares_memory(piece.parts[0], step)
        stream.wait_for_text(engine.now)
        assert not np.shares_memory(piece.parts[0], step)
        np.testing.assert_array_equal(piece.joined().samples, step[7])


def test_many_streams_are_taken_from_in_one_look(started: Started) -> None:
    engine = started(EngineConfig(max_streams=4))
    streams = [engine.submit(request(seed=i, frames=6, sampling=Sampling(min_frames=6))) for i in range(3)]
    engine.go_on()
    spoken = [np.concatenate([chunk.samples for chunk in stream.take(100)]) for stream in streams]
    again = [engine.submit(request(seed=i, frames=6, sampling=Sampling(min_frames=6))) for i in range(3)]
    empty = engine.submit(request("hello", live=True))
    assert all(stream.prepared is not None for stream in again)
    engine.go_on()
    assert all(stream.prepared is None for stream in again), "a seated stream keeps its prompt"
    first, second, none, nothing = engine.take_all([(again[0], 100), (again[1], 1), (again[2], 0), (empty, 5)])
    assert (len(second), none, nothing) == (1, [], [])
    second += again[1].take(100)
    assert [chunk.index for chunk in second] == list(range(len(second)))
    assert first[-1].final
    assert second[-1].final
    for chunks, whole in ((first, spoken[0]), (second, spoken[1]), (again[2].take(100), spoken[2])):
        np.testing.assert_allclose(np.concatenate([chunk.samples for chunk in chunks]), whole, atol=1e-6)
    assert all(stream.buffered == 0 for stream in again)


def test_chunks_are_joined_without_the_engines_lock(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(EngineConfig(max_streams=1))
    stream = engine.submit(request(frames=6, sampling=Sampling(min_frames=6)))
    engine.go_on()
    joined, free = BufferedChunk.joined, list[bool]()

    def watched(piece: BufferedChunk) -> Chunk:
        def try_it() -> None:
            free.append(engine.lock.acquire(timeout=5))
            if free[-1]:
                engine.lock.release()

        other = threading.Thread(target=try_it)
        other.start()
        other.join()
        return joined(piece)

    monkeypatch.setattr(BufferedChunk, "joined", watched)
    assert engine.take_all([(stream, 100)])[0][-1].final
    assert free
    assert all(free)
