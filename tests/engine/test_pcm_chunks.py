# SPDX-License-Identifier: Apache-2.0
"""An engine for servers: its chunks are the PCM of the float samples, and samples that are not finite end a stream."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Loaded
from engine.synthesis import TIMEOUT, assert_idle, request, solo_samples
from polyvox.audio.pcm import SCALE, Pcm
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.stream import LocalStream
from polyvox.errors import StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


@pytest.fixture(scope="module")
def engine(speech: Qwen3TTSModel) -> Iterator[LocalEngine]:
    with closing(LocalEngine(speech, EngineConfig(max_streams=3, pcm=True))) as running:
        yield running


def pcm(stream: LocalStream) -> Pcm:
    chunks = list(stream.chunks(TIMEOUT))
    assert {chunk.audio.dtype for chunk in chunks} == {np.dtype(np.int16)}
    return np.concatenate([chunk.pcm for chunk in chunks])


def test_the_chunks_are_the_pcm_of_the_float_samples(engine: LocalEngine, speech: Qwen3TTSModel) -> None:
    asked = [request(seed=seed, frames=8) for seed in (1, 2)]
    for found, one in zip([pcm(stream) for stream in [engine.submit(one) for one in asked]], asked, strict=True):
        samples = solo_samples(speech, one)
        assert len(found) == len(samples)
        assert np.abs(found - samples * SCALE).max() <= 0.51  # rounded to the nearest
    assert_idle(engine)


def test_samples_that_are_not_finite_end_their_stream_only(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = engine._runner.vocoder.state
    decode = state.decode

    def fail_first(slots: Tensor, codes: Tensor) -> Tensor:
        samples = decode(slots, codes).clone()
        if failing.allocation is not None:
            samples[slots == failing.allocation.slot, 7] = torch.nan
        return samples

    with engine.lock:  # no step runs, so all are admitted together
        failing, other = (engine.submit(request(seed=seed, frames=8)) for seed in (1, 2))
        monkeypatch.setattr(state, "decode", fail_first)
    assert len(pcm(other))
    with pytest.raises(StreamFailed, match="not finite numbers"):
        pcm(failing)
    assert_idle(engine)
