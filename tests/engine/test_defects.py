"""Ends that must be told and bounds that must hold, each found by a reader of the code before it was met."""

import gc
import threading
import weakref
from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from conftest import Loaded
from engine.speaking import PATIENCE, request, solo, spoken, wait_for_end
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.pending import PendingAudio
from polyvox.engine.stream import LocalStream
from polyvox.errors import EngineDown, InvalidRequest, Overloaded
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request
from polyvox.tts import TTS

pytestmark = pytest.mark.slow


@pytest.fixture
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").speech


def test_a_dead_device_still_tells_every_reader(speech: Qwen3TTSModel) -> None:
    """A step fails, and then the slots cannot be freed either."""
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    told: set[LocalStream] = set()
    dead = RuntimeError("the device is gone")
    with (
        mock.patch.object(engine._runner.generator.state, "frame", side_effect=dead),
        mock.patch.object(engine._runner, "clear", side_effect=dead),
    ):
        with engine.lock:
            streams = [engine.submit(request(seed=seed), told.add) for seed in range(3)]
        engine._thread.join(PATIENCE)
    assert engine.broken
    assert engine.stats()["broken"] == 1
    assert told == set(streams)
    assert all(stream.result is not None for stream in streams)
    engine.close()


def test_a_callback_that_exits_ends_its_own_stream_only(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    try:
        bad = engine.submit(request(), mock.Mock(side_effect=SystemExit))
        wait_for_end(bad)
        np.testing.assert_allclose(spoken(engine.submit(request())), solo(speech, request()), atol=1e-6)
    finally:
        engine.close()


def test_a_stream_without_a_word_is_not_taken_by_an_engine_that_closes(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    make = speech.streaming_tokenizer

    def slowly(asked: Request) -> Any:
        engine.close()
        return make(asked)

    with mock.patch.object(speech, "streaming_tokenizer", slowly), pytest.raises(EngineDown):
        engine.submit(Request("", "serena", live=True))


def test_a_start_that_is_refused_is_told_whatever_else_is_wrong(speech: Qwen3TTSModel) -> None:
    with pytest.raises(InvalidRequest, match="trace"):
        LocalEngine(speech, EngineConfig(trace="/nowhere/at/all.json"))
    with (
        pytest.raises(InvalidRequest, match="max_streams"),
        mock.patch("polyvox.engine.trace.TraceWriter.write", side_effect=OSError),
    ):
        LocalEngine(speech, EngineConfig(max_streams=100_000_000, trace="trace.json"))


def test_a_trace_that_cannot_be_written_hangs_nobody(speech: Qwen3TTSModel, tmp_path: Path) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, trace=str(tmp_path / "trace.json")))
    with mock.patch("polyvox.engine.trace.TraceWriter.write", side_effect=OSError("full")):
        engine.close()
    assert not engine._thread.is_alive()


def test_live_text_is_bounded_and_what_is_refused_changes_nothing(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        stream = engine.submit(request("hello ", live=True, guard=False))
        with pytest.raises(InvalidRequest, match="10,000"):
            stream.append("x" * 10_000)
        with pytest.raises(InvalidRequest, match="surrogate"):
            stream.append("\ud800")
        with pytest.raises(InvalidRequest, match="rows may be pending"):
            stream.append_rows(np.zeros((100_000, speech.generator.hidden_size), np.float32))
        stream.append("there")
        stream.finish_text()
        whole = solo(speech, request("hello there", layout="streaming", guard=False))
        np.testing.assert_allclose(spoken(stream), whole, atol=1e-6)
    finally:
        engine.close()


def test_rows_come_after_the_text_that_was_held_back(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        ids = speech.tokenizer.text("hello there on and on")
        before = len(speech.tokenizer.text("hello there"))
        stream = engine.submit(request("hello there", live=True, guard=False))
        stream.append_rows(speech.text_rows(ids[before:], last=True).numpy(), last=True)
        whole = solo(speech, request("hello there on and on", layout="streaming", guard=False))
        np.testing.assert_allclose(spoken(stream), whole, atol=1e-6)
    finally:
        engine.close()


def test_an_engine_that_broke_lets_go_of_its_memory(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.engine.log.disabled", True)  # what is logged is kept by the test itself
    with TTS(speech) as tts:
        broken = weakref.ref(tts.engine)
        with mock.patch.object(tts.engine._runner.generator.state, "frame", side_effect=RuntimeError("injected")):
            while not tts._engine.broken:  # type: ignore[union-attr]
                with pytest.raises(Exception, match=r"injected|stopped"):
                    tts.say("hello", "serena", max_frames=3)
        assert tts.say("hello", "serena", max_frames=3).seconds > 0
        gc.collect()
        assert broken() is None


def test_a_prompt_that_can_never_fit_is_refused_for_good(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, context=256))
    try:
        with pytest.raises(InvalidRequest, match="raise the engine's context"):
            engine.submit(Request("hello there " * 63, "serena", max_frames=10, layout="whole"))
    finally:
        engine.close()


def test_whoever_must_be_refused_is_refused_before_any_work(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        held = engine.submit(request("hello ", live=True))
        with engine.lock:
            assert held._ready.wait_for(lambda: held.buffered or held.text_deadline < inf, PATIENCE)
        with mock.patch.object(speech, "prepare") as prepare, pytest.raises(Overloaded, match="full"):
            engine.submit(request())
        prepare.assert_not_called()
        held.cancel()
    finally:
        engine.close()


def test_a_first_word_that_finds_no_place_says_when_to_come_back(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        waiting = engine.submit(request("", live=True))
        held = engine.submit(request("hello ", live=True))
        with engine.lock:
            assert held._ready.wait_for(lambda: held.buffered or held.text_deadline < inf, PATIENCE)
        with pytest.raises(Overloaded):
            waiting.append("hello there ")
        with pytest.raises(Overloaded):
            spoken(waiting)
        held.cancel()
    finally:
        engine.close()


def test_a_step_that_hangs_does_not_hang_who_closes(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.engine.CLOSE_TIMEOUT", 0.1)
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> torch.Tensor:
        hangs.set()
        goes_on.wait(PATIENCE)
        raise RuntimeError("too late")

    with mock.patch.object(engine._runner.generator.state, "frame", hang):
        engine.submit(request())
        assert hangs.wait(PATIENCE)
        engine.close()
        goes_on.set()
        engine._thread.join(PATIENCE)
    assert not engine._thread.is_alive()


def test_a_closed_tts_says_so(speech: Qwen3TTSModel) -> None:
    tts = TTS(speech)
    tts.close()
    with pytest.raises(EngineDown, match="load it again"):
        tts.say("hello")


def test_what_is_trimmed_does_not_depend_on_the_chunks(loaded: Loaded) -> None:
    speech = loaded("embedded", "float32").speech
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    decode = engine._runner.decode

    def quiet_at_first(work: Any) -> PendingAudio:
        """Silence for a frame and three windows."""
        made = decode(work)
        for group in made.groups:
            for i, samples in zip(group.indices, group.samples.get(), strict=True):
                _, first, frames = work[i]
                at = np.arange(first * 1920, (first + frames) * 1920)
                samples[:] = np.where(at < 1920 + 3 * 480, 0, 0.3)
        return made

    try:
        lengths = set()
        with mock.patch.object(engine._runner, "decode", quiet_at_first):
            for first in (1, 2, 4, 8):
                asked = Request("Good morning.", "heart", seed=1, trim_silence=True, first_chunk=first, max_frames=16)
                lengths.add(len(spoken(engine.submit(asked))))
        assert len(lengths) == 1
    finally:
        engine.close()


def test_pages_that_a_finished_text_cannot_need_are_given_back(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, context=2048, poison_freed=True))
    try:
        stream = engine.submit(Request("hello", "serena", seed=1, live=True))
        stream.finish_text()
        spoken(stream)
        with engine.lock:
            assert engine._work.wait_for(lambda: not engine.streams, PATIENCE)
        assert engine.stats()["pages_free"] == engine.config.pages
        assert sorted(engine.ledger.free_pages) == list(range(1, engine.config.pages + 1))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_streams", "4"), ("max_streams", 2.5), ("max_streams", True), ("max_queue_seconds", np.nan)],
)
def test_a_configuration_of_the_wrong_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field):
        EngineConfig(**{field: value}).check()  # type: ignore[arg-type]


def test_threads_are_left_as_they_were(speech: Qwen3TTSModel) -> None:
    before = torch.get_num_threads()
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    seen: list[int] = []
    try:
        spoken(engine.submit(request(), lambda _: seen.append(torch.get_num_threads())))
        assert set(seen) == {before}
    finally:
        engine.close()
