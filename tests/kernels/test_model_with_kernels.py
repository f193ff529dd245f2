# SPDX-License-Identifier: Apache-2.0
"""A tiny model generates the same codes with kernels and with their reference implementations."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import Loaded, LoadedTTS
from parity import Batch
from polyvox import kernels
from polyvox.engine import kv_cache
from polyvox.kernels.pre_norm import PreNorm, pre_norm
from polyvox.models.layers.linear import Linear
from polyvox.models.protocol import NO_ID, PromptRows

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("checkpoint", "lengths", "num_frames"),
    [("custom_voice", (19, 4), 1), ("voice_design", (5,), 2), ("omni-plain", (11, 5), 1)],
)
def test_streams_with_kernels_sample_the_codes_of_the_reference(
    checkpoint: str, lengths: tuple[int, ...], num_frames: int, loaded: Loaded
) -> None:
    """Packed prompts, then frames; VoiceDesign has no projection before its predictor, Qwen3-Omni has experts."""
    compare_codes(loaded(checkpoint, "float32"), lengths, num_frames)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_the_same_over_the_kv_cache_of_a_gpu(
    kv_dtype: torch.dtype, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are stored by head."""
    tts = loaded("custom_voice", "float32")
    monkeypatch.setattr(kv_cache, "is_by_head", lambda _: True)
    monkeypatch.setattr(tts.model.generator, "kv_dtype", kv_dtype)
    compare_codes(tts, (19, 4), 2)


def compare_codes(tts: LoadedTTS, lengths: tuple[int, ...], num_frames: int) -> None:
    model = tts.model.model
    model.talker.precompute(len(lengths))
    generator = torch.Generator().manual_seed(1)
    hidden_size = tts.model.generator.hidden_size
    prompts = [
        PromptRows(np.full((2, n), NO_ID), torch.randn(n, hidden_size, generator=generator), np.arange(n))
        for n in lengths
    ]
    texts = [tts.model.generator.text_ids(torch.randint(0, 99, (2,), generator=generator).tolist()) for _ in prompts]
    default = tts.model.config.sampling
    sampling = [default, replace(default, temperature=0.0, top_k=5)][: len(lengths)]

    def speak() -> tuple[list[list[int]], torch.Tensor]:
        batch = Batch(tts.model.generator, prompts, texts, sampling, seeds=[3, 2**40 + 5], frames=4)
        frames = torch.cat([batch.frame()[0] for _ in range(num_frames)], dim=1)
        return frames.tolist(), batch.state.input.clone()

    by_kernels, rows = speak()
    with kernels.disabled():
        plain, plain_rows = speak()
    assert by_kernels == plain
    torch.testing.assert_close(rows, plain_rows, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("streams", [3, 8])
def test_a_small_batch_has_the_logits_of_the_reference_predictor(streams: int, loaded: Loaded) -> None:
    """In float16, where eight streams are 16 rows in the first pass; the codes are given, so no sample can differ."""
    compare_predictor_logits(loaded("custom_voice", "float32"), streams)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("streams", [1, 3, 8])
def test_products_that_include_the_talkers_last_norm_equal_those_after_it(streams: int, loaded: Loaded) -> None:
    talker = deepcopy(loaded("custom_voice", "float32").model.model.talker).half()
    talker.precompute(streams)
    predictor, width = talker.code_predictor, talker.codec_head.weight.shape[1]
    assert isinstance(predictor.small_to_mtp_projection, Linear)
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(streams, width, generator=generator).half()
    first = torch.randint(0, predictor.config.vocab_size, (streams,), generator=generator)
    before = pre_norm(rows, talker.model.norm.fused)
    inputs, logits = talker.predictor_inputs(before, first), talker.logits(before)
    with kernels.disabled():
        after = talker.model.norm(rows)
        plain_inputs, plain_logits = talker.predictor_inputs(after, first), talker.logits(after)
    assert isinstance(inputs, PreNorm)
    assert isinstance(plain_inputs, torch.Tensor)
    for found, plain in ((inputs.rows, plain_inputs), (logits, plain_logits)):
        assert (found - plain).abs().max() < 0.01 * plain.abs().max()


def compare_predictor_logits(tts: LoadedTTS, streams: int) -> None:
    talker = deepcopy(tts.model.model.talker).half()
    talker.precompute(streams)
    predictor, width = talker.code_predictor, talker.codec_head.weight.shape[1]
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(streams, width, generator=generator).half()
    first = torch.randint(0, predictor.config.vocab_size, (streams,), generator=generator)
    codes = torch.randint(0, predictor.config.vocab_size, (streams, predictor.num_codebooks), generator=generator)

    def logits() -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def draw(book: int, scores: torch.Tensor) -> torch.Tensor:
            seen.append(scores)
            return codes[:, book]

        predictor(talker.predictor_inputs(hidden, first), draw)
        return torch.stack(seen)

    by_kernels = logits()
    with kernels.disabled():
        plain = logits()
    largest = plain.abs().max()
    assert (by_kernels - plain).abs().max() < 0.01 * largest
