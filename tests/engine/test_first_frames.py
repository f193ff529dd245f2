# SPDX-License-Identifier: Apache-2.0
"""A new stream's first frame is decoded in the step that generates it."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from torch import Tensor

from conftest import Loaded
from engine.schedulers import build, new_stream, playing
from engine.synthesis import read_all, request, solo_samples
from ipc.engine_processes import eventually
from polyvox.engine import generator_runner
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.pending import Pending
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.kernels.flags import FRAME_ENDED
from polyvox.models.request import Sampling


@pytest.mark.parametrize(
    ("fields", "decoded"),
    [({"first_chunk": 1}, True), ({"first_chunk": 2}, False), ({"first_chunk": 1, "live": False}, False)],
    ids=["a first chunk of one frame", "a first chunk of two frames", "a whole file"],
)
def test_only_first_chunks_of_one_frame_are_decoded_in_the_same_step(fields: dict[str, Any], decoded: bool) -> None:
    fixture = build(decodes_first_frames=True)
    other, new = playing(1.0), new_stream(10.0, prompt_rows=30, **fields)
    other.allocation = fixture.ledger.allocate(1)
    fixture.streams.add(other)
    fixture.admit_all(new, now=10.0)
    plan = fixture.scheduler.plan(10.0)
    assert {new.row, other.row} == set(plan.frame.tolist())
    assert plan.first_codec.tolist() == ([new.row] if decoded else [])
    frames, _, codec_frames, codec_calls, _ = plan.sizes()
    assert (frames, codec_frames, codec_calls) == (2, int(decoded), int(decoded))
    fixture.scheduler.start(plan, 10.0)
    assert new.decoding == decoded
    assert not len(fixture.scheduler.plan(10.0).first_codec)  # it has started


def test_a_vocoder_that_cannot_follow_decodes_first_frames_in_the_next_step() -> None:
    fixture = build()
    fixture.admit_all(new_stream(10.0, prompt_rows=30, first_chunk=1), now=10.0)
    assert not len(fixture.scheduler.plan(10.0).first_codec)


@pytest.mark.parametrize("first_chunk", [1, 2])
def test_the_vocoder_is_reset_before_the_flags_and_first_frames_are_decoded_after_them(
    loaded: Loaded, first_chunk: int
) -> None:
    """The host may launch a decode as soon as it has the flags, on a CUDA stream that does not wait for the reset."""
    engine = LocalEngine(loaded("custom_voice", "float64").model, EngineConfig(max_streams=1))
    vocoder: VocoderRunner = engine._runner.vocoder
    state: Any = vocoder.state
    calls: list[str] = []

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any) -> Any:
            if name != "reset" or state._to_reset:
                calls.append(name)
            return call(*args)

        return record

    try:
        with (
            mock.patch.object(
                engine._runner.generator, "prefill", recorded("prefill", engine._runner.generator.prefill)
            ),
            mock.patch.object(state, "upload", recorded("reset", state.upload)),
            mock.patch.object(generator_runner, "Pending", recorded("flags", Pending)),
            mock.patch.object(vocoder, "_wait_for_frames", recorded("wait", vocoder._wait_for_frames)),
            mock.patch.object(vocoder, "_decode", recorded("decode", vocoder._decode)),
        ):
            read_all(engine.submit(request(frames=4, sampling=Sampling(min_frames=4), first_chunk=first_chunk)))
    finally:
        engine.close()
    at_once = ["wait", "decode"] if first_chunk == 1 else []
    assert calls[: 4 + len(at_once)] == ["prefill", "reset", "flags", *at_once, "flags"]


@pytest.mark.parametrize("copies", [False, True], ids=["on the same GPU", "on another device"])
def test_the_stream_that_reads_the_codes_waits_for_the_frame_calls(copies: bool) -> None:
    runner, vocoder_stream, gather_stream = object.__new__(VocoderRunner), mock.Mock(), mock.Mock()
    runner._ring, runner.stream = mock.Mock(is_cuda=True), vocoder_stream
    runner._gather_stream = gather_stream if copies else None
    with mock.patch("torch.cuda.current_stream") as current_stream:
        runner._wait_for_frames()
    reads, other = (gather_stream, vocoder_stream) if copies else (vocoder_stream, gather_stream)
    reads.wait_stream.assert_called_once_with(current_stream(runner._ring.device))
    assert not other.wait_stream.called  # on another device it waits for the copy


@pytest.mark.parametrize("pipelined", [False, True])
def test_the_first_audio_is_delivered_before_a_second_frame_is_generated(loaded: Loaded, pipelined: bool) -> None:
    speech = loaded("custom_voice", "float64").model
    asked = request(frames=4, sampling=Sampling(min_frames=4), first_chunk=1)
    engine = LocalEngine(speech, EngineConfig(max_streams=2, min_streams_to_pipeline=1 if pipelined else None))
    frames_at_audio: list[int] = []
    deliver_audio = engine._pipeline._deliver_audio

    def recorded(step: Any) -> None:
        if step.audio is not None:
            frames_at_audio.append(int(engine.streams.arrays.started[step.plan.codec].max()))
        deliver_audio(step)

    try:
        with mock.patch.object(engine._pipeline, "_deliver_audio", recorded):
            samples = read_all(engine.submit(asked))
    finally:
        engine.close()
    np.testing.assert_allclose(samples, solo_samples(speech, asked), atol=1e-6)
    assert frames_at_audio[0] == 1 + pipelined  # the next step is launched before this one completes


@pytest.mark.parametrize("pipelined", [False, True])
def test_the_audio_of_a_stream_that_ends_with_its_first_frame_is_dropped(loaded: Loaded, pipelined: bool) -> None:
    speech = loaded("custom_voice", "float64").model
    engine = LocalEngine(speech, EngineConfig(max_streams=1, min_streams_to_pipeline=1 if pipelined else None))
    state: Any = engine._runner.generator.state
    frame: Callable[..., Tensor] = state.frame
    try:
        with mock.patch.object(state, "frame", lambda *args: frame(*args).fill_(FRAME_ENDED)):
            stream = engine.submit(request(frames=4, first_chunk=1))
            assert not len(read_all(stream))
        assert stream.result is not None
        assert (stream.result.finish_reason, stream.result.frames, stream.result.seconds) == ("stop", 0, 0.0)
        assert stream.generated == 0  # estimates of later requests learn from it
        asked = request(frames=4, sampling=Sampling(min_frames=4), first_chunk=1)  # in the same slot
        np.testing.assert_allclose(read_all(engine.submit(asked)), solo_samples(speech, asked), atol=1e-6)
        eventually(lambda: not engine._pipeline.in_flight)
    finally:
        engine.close()


def test_a_stream_cancelled_while_its_first_frame_is_decoded_frees_its_slot(loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float64").model
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    decode, decoded = engine._runner.decode, []

    def cancel_and_decode(*args: Any, **options: Any) -> Any:
        decoded.append(options)
        stream.cancel()
        return decode(*args, **options)

    try:
        with mock.patch.object(engine._runner, "decode", cancel_and_decode):
            with engine.lock:  # so that the stream is known when its first frame is decoded
                stream = engine.submit(request(frames=200, sampling=Sampling(min_frames=200), first_chunk=1))
            assert not len(read_all(stream))
        assert decoded == [{"after_frames": True}]
        asked = request(frames=4, sampling=Sampling(min_frames=4))
        np.testing.assert_allclose(read_all(engine.submit(asked)), solo_samples(speech, asked), atol=1e-6)
    finally:
        engine.close()
