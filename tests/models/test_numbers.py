# SPDX-License-Identifier: Apache-2.0
"""Rounding: in a 16-bit model some parts are computed in float32, as in the reference implementation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import DEVICE, Loaded
from parity import Batch
from polyvox.kernels.sampler import apply_repetition_penalty, draw
from polyvox.models.layers.norm import RMSNorm
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.layers.sampling import talker_parameters
from polyvox.models.layers.transformer_config import TransformerConfig
from polyvox.models.protocol import NO_ID, PromptRows
from polyvox.models.qwen3_tts.codec import Codebook
from polyvox.models.request import Sampling

BF16 = torch.bfloat16


def test_a_norm_is_computed_in_float32_and_scaled_after_rounding() -> None:
    norm = RMSNorm(64, 1e-6).to(BF16)
    generator = torch.Generator().manual_seed(1)
    norm.weight.data = torch.rand(64, generator=generator).to(BF16)
    x = (torch.randn(50, 64, generator=generator) * 3).to(BF16)
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(norm(x), norm.weight * wide.to(BF16))
    coarse = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert not torch.equal(norm(x), norm.weight * coarse)


def test_angles_are_computed_in_float32_and_rounded_once() -> None:
    config = TransformerConfig(1, 1, 1, 1, 1, 8, 1e-6, 1e6)
    positions = torch.arange(4000, 4020)[None]
    rounded, exact = RotaryEmbedding(positions, config, BF16), RotaryEmbedding(positions, config, torch.float32)
    assert torch.equal(rounded.cos, exact.cos.to(BF16))
    assert torch.equal(rounded.sin, exact.sin.to(BF16))


def test_a_frame_is_summed_before_it_is_rounded(loaded: Loaded) -> None:
    talker = loaded("custom_voice", "bfloat16").model.model.talker
    groups = talker.code_predictor.num_codebooks + 1
    frames = torch.randint(0, 64, (200, groups), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    parts = torch.cat(
        [
            talker.model.codec_embedding(frames[:, :1]),
            talker.code_predictor.model.codec_embedding.lookup(frames[:, 1:]),
        ],
        dim=1,
    )
    assert torch.equal(talker.frame_rows(frames), parts.float().sum(1).to(BF16))


def test_codes_are_sampled_in_float32() -> None:
    """Two logits that a division in bfloat16 would make equal stay different."""
    logits = torch.tensor([[1.0, 1.0078125]], dtype=BF16)
    params = torch.tensor([talker_parameters(Sampling(temperature=0.9, top_k=0))])
    assert draw(logits, params, torch.tensor([[0.0, -0.004]])).item() == 1
    assert apply_repetition_penalty(logits, torch.tensor([[True, True]]), params).dtype == torch.float32


def test_an_unused_codebook_entry_is_finite() -> None:
    book = Codebook(2, 3)
    book.embedding_sum.data = torch.ones(2, 3)
    book.cluster_usage.data = torch.tensor([0.0, 2.0])
    assert book(torch.tensor([0, 1])).tolist() == [[pytest.approx(1e5)] * 3, [0.5] * 3]


@pytest.mark.parametrize("min_frames", [0, 2, 5])
def test_speech_cannot_end_before_min_frames(min_frames: int, loaded: Loaded) -> None:
    """If end of speech always wins, it is sampled as soon as it is allowed."""
    speech = loaded("custom_voice", "float64").model
    head, end = speech.model.talker.codec_head, speech.config.talker.eos_id

    def always(_module: object, _inputs: object, logits: torch.Tensor) -> torch.Tensor:
        logits[:, end] = 1e6
        return logits

    hook = head.register_forward_hook(always)
    try:
        greedy = Sampling(temperature=0, predictor_temperature=0, repetition_penalty=1.0)
        batch = Batch(
            speech.generator,
            [PromptRows(np.full((2, 3), NO_ID))] * 2,
            [speech.text_ids([], last=True)] * 2,
            [replace(greedy, min_frames=min_frames), replace(greedy, min_frames=7)],
        )
        over = np.array([batch.frame()[1].tolist() for _ in range(9)])
    finally:
        hook.remove()
    assert over[:, 0].argmax() == min_frames
    assert over[:, 1].argmax() == 7
