"""What the crowd of test_stateful.py came upon once, each in its smallest form."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from conftest import Loaded
from engine.speaking import request
from engine.stepped import SteppedEngine
from polyvox.engine.config import EngineConfig
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
    engine = started(EngineConfig(slots=1, reader_seconds=10))
    stream = engine.submit(request(frames=36, sampling=Sampling(min_frames=36)))
    engine.go_on()
    assert stream.full_since is not None
    engine.pass_time(9)
    assert stream.take(100)
    engine.pass_time(2)
    engine.go_on()
    assert stream.result is None or stream.result.finish_reason == "length"


def test_text_that_came_in_time_is_said(started: Started) -> None:
    engine = started(EngineConfig(slots=1, text_seconds=10))
    stream = engine.submit(request("the other assist", live=True, guard=False))
    engine.go_on()
    assert stream.waiting_since is not None
    engine.pass_time(9)
    stream.append("ant, the other user, ")
    stream.finish_text()
    engine.pass_time(2)
    engine.go_on()
    assert stream.result is None or stream.result.finish_reason != "error"


def test_a_stream_whose_first_word_was_refused_can_be_finished(started: Started) -> None:
    engine = started(EngineConfig(slots=1, queue=0))
    waiting = engine.submit(request("hello", live=True))
    engine.submit(request("the other assist", live=True, guard=False))
    engine.go_on()
    with pytest.raises(Overloaded):
        waiting.finish_text()
    waiting.finish_text()  # any number of times


def test_a_step_that_has_landed_holds_no_slot(started: Started) -> None:
    """Also while readers are told of the sound of the next one, which lands in the same turn."""
    engine = started(EngineConfig(slots=1, ahead=1))
    stream = engine.submit(request(frames=5, sampling=Sampling(min_frames=5)))
    while stream.result is None:
        engine.go_on(1)
        assert (stream.flight > engine._crowd.over) == any(stream in flight.streams for flight in engine._flights)


def test_a_first_sound_is_given_when_text_runs_out(started: Started) -> None:
    """However many frames a first chunk shall have: what can be said is said, silence before it trimmed or not."""
    engine = started(EngineConfig(slots=1))
    stream = engine.submit(request("the other assist", live=True, guard=False, trim_silence=True, first_chunk=16))
    engine.go_on()
    assert stream.waiting_since is not None
    assert not stream.silent
    assert stream.buffered > 0
    assert stream.held == 0


@pytest.mark.parametrize("cancelled", [False, True], ids=["a file that rests", "a stream that was cancelled"])
def test_held_sound_does_not_keep_that_of_all_others_for_long(
    started: Started, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvox.engine.scheduler.CROWD", 0)
    engine = started(EngineConfig(slots=1))
    stream = engine.submit(request(whole_file=not cancelled, first_chunk=16))
    step = np.full((256, engine.model.samples_per_frame), 0.5, np.float32)
    with engine.lock:
        assert stream.track is not None
        engine._crowd.give(stream, stream.track, step[7], 1, engine.now)
        assert stream.held == len(step[7])
    if cancelled:
        stream.cancel()
        engine.go_on()
    assert not any(np.shares_memory(held, step) for held in stream._held)
