# SPDX-License-Identifier: Apache-2.0
"""The initial decoder carries the phase of the harmonic source to every sample."""

from typing import cast

import pytest
import torch
from torch import Tensor

from polyvox.models.layers.conv_layers import CausalUpsample, UpsampleBlock
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from training.layout import CODE_DIM, SAMPLING, initialise, voice_files
from training.oscillator import ACCURACY, basis, code_phasors, initialise_oscillator
from training.source import CLASSES, LOWEST, source_codes
from training.units import FRAME

ADVANCE = torch.tensor([50, 53, 47])


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    torch.manual_seed(0)
    made = CodecDecoder(parse_config(voice_files(SAMPLING)).codec)
    initialise(made)
    initialise_oscillator(made)
    return made


def phase(advance: Tensor) -> Tensor:
    start = advance.cumsum(0) - advance
    return 2 * torch.pi * ((start[:, None] + advance[:, None] * torch.arange(FRAME) / FRAME) / CLASSES).flatten()


@pytest.mark.parametrize("samples", [FRAME, 240, 12])
def test_a_basis_approximates_the_phasor_of_any_pitch(samples: int) -> None:
    functions = basis(samples)
    angle = 2 * torch.pi * (LOWEST[0] + 7.5) * torch.arange(samples).double() / (CLASSES * FRAME)
    phasor = torch.polar(torch.ones_like(angle), angle)
    error = (phasor - functions @ (functions.mH @ phasor)).norm() / phasor.norm()
    assert error < 3 * ACCURACY
    assert functions.shape[1] < samples / 4 + 2


def test_the_last_stage_has_cosine_and_sine_of_the_phase_at_each_sample(
    decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    phasors = code_phasors()
    rest, first = 0.3 * torch.randn(1, len(ADVANCE), CODE_DIM), 0.3 * torch.randn(1, len(ADVANCE), CODE_DIM)
    rest[0, :, : phasors.shape[1]] = phasors[source_codes(ADVANCE, 0)]
    quantizer = decoder.quantizer
    latent = quantizer.rvq_first.output_proj(first.mT) + quantizer.rvq_rest.output_proj(rest.mT)
    block = next(b for b in reversed(decoder.decoder) if isinstance(b, UpsampleBlock))
    upsample = cast(CausalUpsample, block.block[1])
    found: list[Tensor] = []
    plain = upsample.plain

    def record(x: Tensor, past: Tensor | None) -> Tensor:
        found.append(plain(x, past))
        return found[-1]

    monkeypatch.setattr(upsample, "plain", record)
    decoder.sound(latent, decoder.initial_state(1))
    angle = phase(ADVANCE)
    ratio = torch.complex(found[0][0, 0], found[0][0, 1]) * torch.polar(torch.ones_like(angle), -angle)
    for frame in ratio.unflatten(0, (-1, FRAME)):
        mean = frame.mean()
        assert mean.abs() == pytest.approx(0.85, abs=0.1)  # the other channels take part in the norm
        assert mean.angle().abs() < 0.02
        assert (frame - mean).abs().mean() < 0.04
