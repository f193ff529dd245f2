# SPDX-License-Identifier: Apache-2.0
"""Results on error paths, and bounds: each was found by review before it occurred."""

import gc
import logging
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
from engine.held_lock import holding
from engine.synthesis import TIMEOUT, read_all, request, solo_samples, text_rows, wait_for_end
from polyvox.engine import engine as engine_module
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import Result, Stream
from polyvox.engine.pending import PendingAudio
from polyvox.engine.stream_arrays import Ints
from polyvox.errors import EngineDown, InvalidRequest, Overloaded
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request
from polyvox.tts import TTS

pytestmark = pytest.mark.slow


@pytest.fixture
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


def test_after_a_device_failure_every_stream_has_a_result(speech: Qwen3TTSModel) -> None:
    """A step fails, and then the slots cannot be released either."""
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    notified: set[Stream] = set()
    failure = RuntimeError("device failure")
    with (
        mock.patch.object(engine._runner.generator.state, "frame", side_effect=failure),
        mock.patch.object(engine._runner, "clear", side_effect=failure),
    ):
        with engine.lock:
            streams = [engine.submit(request(seed=seed), notified.update) for seed in range(3)]
        engine._thread.join(TIMEOUT)
    assert engine.broken
    assert engine.stats()["broken"] == 1
    assert notified == set(streams)
    assert all(stream.result is not None for stream in streams)
    engine.close()


def test_a_callback_that_raises_system_exit_ends_its_own_stream_only(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=2))
    try:
        bad = engine.submit(request(), mock.Mock(side_effect=SystemExit))
        wait_for_end(bad)
        np.testing.assert_allclose(read_all(engine.submit(request())), solo_samples(speech, request()), atol=1e-6)
    finally:
        engine.close()


def test_a_closing_engine_rejects_a_live_stream_without_text(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    make = speech.streaming_tokenizer

    def close_first(wanted: Request) -> Any:
        engine.close()
        return make(wanted)

    with mock.patch.object(speech, "streaming_tokenizer", close_first), pytest.raises(EngineDown):
        engine.submit(Request("", "serena", live=True))


def test_an_invalid_configuration_is_reported_even_if_the_trace_cannot_be_written(speech: Qwen3TTSModel) -> None:
    with pytest.raises(InvalidRequest, match="trace"):
        LocalEngine(speech, EngineConfig(trace="/nowhere/at/all.json"))
    with (
        pytest.raises(InvalidRequest, match="max_streams"),
        mock.patch("polyvox.engine.trace.TraceWriter.write", side_effect=OSError),
    ):
        LocalEngine(speech, EngineConfig(max_streams=100_000_000, trace="trace.json"))


def test_an_invalid_configuration_is_logged_without_a_traceback(
    speech: Qwen3TTSModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(InvalidRequest, match="'memory_gb': must be at least"):
        LocalEngine(speech, EngineConfig(memory_gb=0.00001))
    assert [record.exc_info for record in caplog.records if record.message == "engine stopped"] == [None]


def test_a_trace_that_cannot_be_written_does_not_block_close(speech: Qwen3TTSModel, tmp_path: Path) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, trace=str(tmp_path / "trace.json")))
    with mock.patch("polyvox.engine.trace.TraceWriter.write", side_effect=OSError("full")):
        engine.close()
    assert not engine._thread.is_alive()


def test_live_text_is_bounded_and_rejected_text_changes_nothing(speech: Qwen3TTSModel) -> None:
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
        whole = solo_samples(speech, request("hello there", layout="streaming", guard=False))
        np.testing.assert_allclose(read_all(stream), whole, atol=1e-6)
    finally:
        engine.close()


def test_rows_follow_the_text_that_the_tokenizer_kept_back(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        ids = speech.tokenizer.text("hello there on and on")
        before = len(speech.tokenizer.text("hello there"))
        stream = engine.submit(request("hello there", live=True, guard=False))
        stream.append_rows(text_rows(speech, ids[before:], last=True), last=True)
        whole = solo_samples(speech, request("hello there on and on", layout="streaming", guard=False))
        np.testing.assert_allclose(read_all(stream), whole, atol=1e-6)
    finally:
        engine.close()


def test_a_broken_engine_frees_its_memory(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.engine.log.disabled", True)  # pytest keeps logged exceptions alive
    with TTS(speech) as tts:
        broken = weakref.ref(tts.engine)
        with mock.patch.object(tts.engine._runner.generator.state, "frame", side_effect=RuntimeError("injected")):
            while not tts._engine.broken:  # type: ignore[union-attr]
                with pytest.raises(Exception, match=r"injected|stopped"):
                    tts.say("hello", "serena", max_frames=3)
        assert tts.say("hello", "serena", max_frames=3).seconds > 0
        gc.collect()
        assert broken() is None


def test_a_prompt_that_can_never_fit_is_invalid(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, context=256))
    try:
        with pytest.raises(InvalidRequest, match="raise the engine's context"):
            engine.submit(Request("hello there " * 63, "serena", max_frames=10, layout="whole"))
    finally:
        engine.close()


def test_a_request_is_rejected_before_it_is_prepared(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        active = engine.submit(request("hello ", live=True))
        with engine.lock:
            assert active._ready.wait_for(lambda: active.buffered or active.text_deadline < inf, TIMEOUT)
        with mock.patch.object(speech, "prepare") as prepare, pytest.raises(Overloaded, match="full"):
            engine.submit(request())
        prepare.assert_not_called()
        active.cancel()
    finally:
        engine.close()


def test_a_rejected_first_text_raises_overloaded(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        waiting = engine.submit(request("", live=True))
        active = engine.submit(request("hello ", live=True))
        with engine.lock:
            assert active._ready.wait_for(lambda: active.buffered or active.text_deadline < inf, TIMEOUT)
        with pytest.raises(Overloaded):
            waiting.append("hello there ")
        with pytest.raises(Overloaded):
            read_all(waiting)
        active.cancel()
    finally:
        engine.close()


def test_close_returns_while_a_step_hangs(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.engine.CLOSE_TIMEOUT", 0.1)
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    started, resume = threading.Event(), threading.Event()

    def hang(*_: object) -> torch.Tensor:
        started.set()
        resume.wait(TIMEOUT)
        raise RuntimeError("too late")

    with mock.patch.object(engine._runner.generator.state, "frame", hang):
        engine.submit(request())
        assert started.wait(TIMEOUT)
        engine.close()
        resume.set()
        engine._thread.join(TIMEOUT)
    assert not engine._thread.is_alive()


def test_an_interrupted_start_leaves_no_engine(speech: Qwen3TTSModel) -> None:
    threads: list[threading.Thread] = []

    class InterruptedEngine(LocalEngine):
        def __setattr__(self, name: str, value: object) -> None:
            if isinstance(value, threading.Event):  # as Ctrl-C while the caller waits for the start
                value.wait = interrupt  # type: ignore[method-assign]
            if isinstance(value, threading.Thread):
                threads.append(value)
            super().__setattr__(name, value)

    def interrupt(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt(timeout)

    with pytest.raises(KeyboardInterrupt):
        InterruptedEngine(speech, EngineConfig(max_streams=1))
    (thread,) = threads
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_failed_start_leaves_no_thread(speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "calibrate", mock.Mock(side_effect=RuntimeError("no device")))
    before = set(threading.enumerate())
    with pytest.raises(EngineDown, match="no device"):
        LocalEngine(speech, EngineConfig(max_streams=1))
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), thread.name


def test_an_engine_whose_thread_is_in_another_process_raises_engine_down(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        not_alive = threading.Thread()  # as in the child of a fork
        with mock.patch.object(engine, "_thread", not_alive), pytest.raises(EngineDown, match="in another process"):
            engine.submit(request())
        assert len(read_all(engine.submit(request())))
    finally:
        engine.close()


def test_a_closed_tts_raises_engine_down(speech: Qwen3TTSModel) -> None:
    tts = TTS(speech)
    tts.close()
    with pytest.raises(EngineDown, match="Load the model again"):
        tts.say("hello")


def test_a_request_to_an_engine_that_hangs_fails_after_a_timeout(
    speech: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "SUBMIT_TIMEOUT", 0.01)
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        with holding(engine.lock), pytest.raises(EngineDown, match=r"has not responded within 0\.01 s"):
            engine.submit(Request("hello", "serena", seed=1))
    finally:
        engine.close()


def test_trimming_does_not_depend_on_the_chunks(loaded: Loaded) -> None:
    speech = loaded("embedded", "float32").model
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    decode = engine._runner.decode

    def silent_at_first(slots: Ints, firsts: Ints, counts: Ints, **options: Any) -> PendingAudio:
        """Replaces the audio by silence for a frame and three windows, then a tone."""
        made = decode(slots, firsts, counts, **options)
        for group in made.groups:
            for i, samples in zip(group.indices, group.samples.get(), strict=True):
                at = np.arange(firsts[i] * 1920, (firsts[i] + counts[i]) * 1920)
                samples[:] = np.where(at < 1920 + 3 * 480, 0, 0.3)
        return made

    try:
        lengths = set()
        with mock.patch.object(engine._runner, "decode", silent_at_first):
            for first in (1, 2, 4, 8):
                wanted = Request("Good morning.", "heart", seed=1, trim_silence=True, first_chunk=first, max_frames=16)
                lengths.add(len(read_all(engine.submit(wanted))))
        assert len(lengths) == 1
    finally:
        engine.close()


def test_pages_that_a_finished_text_cannot_need_are_freed(speech: Qwen3TTSModel) -> None:
    engine = LocalEngine(speech, EngineConfig(max_streams=1, context=2048, poison_freed=True))
    try:
        stream = engine.submit(Request("hello", "serena", seed=1, live=True))
        stream.finish_text()
        read_all(stream)
        with engine.lock:
            assert engine._work.wait_for(lambda: not engine.streams, TIMEOUT)
        assert engine.stats()["pages_free"] == engine.config.pages
        assert sorted(engine.ledger.free_pages) == list(range(1, engine.config.pages + 1))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_streams", "4"),
        ("max_streams", 2.5),
        ("max_streams", True),
        ("max_queue", True),
        ("max_queue_seconds", np.nan),
    ],
)
def test_a_configuration_of_the_wrong_type_is_invalid(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field):
        EngineConfig(**{field: value}).check()  # type: ignore[arg-type]


def test_the_number_of_torch_threads_is_restored(speech: Qwen3TTSModel) -> None:
    before = torch.get_num_threads()
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    counts: list[int] = []
    try:
        read_all(engine.submit(request(), lambda _: counts.append(torch.get_num_threads())))
        assert set(counts) == {before}
    finally:
        engine.close()


@pytest.mark.parametrize(
    "error", [EngineDown("the engine is closing", retry_after=1), Overloaded("all are taken", 2.0, "queue_full")]
)
def test_a_rejection_in_the_preparation_keeps_its_code_and_its_reason(error: Overloaded) -> None:
    with pytest.raises(Overloaded) as raised:
        Result.of_error(error, seed=1).check()
    found = raised.value
    assert (found.code, found.reason, found.retry_after) == (error.code, error.reason, error.retry_after)
