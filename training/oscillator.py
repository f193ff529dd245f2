# SPDX-License-Identifier: Apache-2.0
"""Initial weights with which the decoder has a harmonic oscillator, made of its ordinary layers.

Code 1 gives pitch and phase of a frame (source.py). In each stage, a few phasor channels have the phasor of the
fundamental over one column of that stage, as coefficients in a basis of all pitches. Upsampling from one stage to the
next is linear, so its weights follow from the bases, and the last stage has cosine and sine of the phase at each
sample. Some Snake activations receive the phasor with a high frequency, which makes harmonics of it, as in frequency
modulation. Training changes all weights.
"""

import math
from functools import cache
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from polyvox.models.layers.conv_layers import CausalConv, CausalUpsample, ConvNeXt, ResidualUnit, UpsampleBlock
from polyvox.models.qwen3_tts.codec import CodecDecoder, PreTransformer
from training.source import CLASSES, LOWEST, RANGE, SOURCE_CODES
from training.units import FRAME

ACCURACY = 0.01  # relative error of a basis
FRAME_NORM, NORM = 16.0, 4.0  # of the phasor channels at the frame rate, where a norm follows, and after it
LINEAR = -4.0  # logarithm of the frequency of a Snake that hardly changes its input
HARMONIC_RATE = 2000  # lowest column rate at which harmonics are made
HARMONIC_SHARE = 4  # one channel in HARMONIC_SHARE
LOWEST_INDEX = 0.7  # of modulation


@cache
def basis(samples: int) -> Tensor:
    """Orthonormal complex functions of a column, [samples, K], that approximate the phasors of all pitches."""
    advance = torch.arange(min(LOWEST), max(LOWEST) + RANGE, dtype=torch.float64)
    angle = 2 * torch.pi * advance[:, None] * torch.arange(samples, dtype=torch.float64) / (CLASSES * FRAME)
    _, sizes, vectors = torch.linalg.svd(torch.polar(torch.ones_like(angle), angle), full_matrices=False)
    left = 1 - sizes.square().cumsum(0) / sizes.square().sum()
    return vectors[: int((left > ACCURACY**2).sum()) + 1].mT


def code_phasors() -> Tensor:
    """The phasor channels of each entry of codebook 1: [SOURCE_CODES, channels]."""
    return column_phasors(FRAME, FRAME_NORM)[:, 0]


def column_phasors(samples: int, norm: float = NORM) -> Tensor:
    """The phasor channels of each code in columns of this many samples: [SOURCE_CODES, columns, channels]."""
    code = torch.arange(SOURCE_CODES)
    voice = code // (RANGE * CLASSES)
    advance = (code // CLASSES % RANGE + torch.tensor(LOWEST)[voice]).double()
    cycles = (code[:, None] % CLASSES + advance[:, None] * torch.arange(FRAME) / FRAME) / CLASSES
    phasor = torch.polar(torch.ones_like(cycles), 2 * torch.pi * cycles).unflatten(1, (-1, samples))
    return norm * _real(phasor @ basis(samples).conj() / math.sqrt(samples))


@torch.no_grad()
def initialise_oscillator(decoder: CodecDecoder) -> None:
    """Set the weights of the phasor channels in all layers; entries of codebook 1 start with code_phasors()."""
    columns = [FRAME]
    stages = [cast(nn.ModuleList, stage) for stage in decoder.upsample]
    ups = [cast(CausalUpsample, stage[0]) for stage in stages]
    blocks = [block for block in decoder.decoder if isinstance(block, UpsampleBlock)]
    for up in [*ups, *(cast(CausalUpsample, block.block[1]) for block in blocks)]:
        columns.append(columns[-1] // up.stride)
    bases = [basis(count) for count in columns]
    norms = [FRAME_NORM, *(NORM for _ in bases[2:]), 1.0]
    maps = [
        _upsampling(low, high, after / before)
        for (low, high), (before, after) in zip(pairwise(bases), pairwise(norms), strict=True)
    ]
    widths = [2 * one.shape[1] for one in bases]

    quantizer = decoder.quantizer
    quantizer.rvq_first.output_proj.weight[: widths[0]] = 0
    _pass(quantizer.rvq_rest.output_proj.weight[..., 0], widths[0])
    _pass_conv(decoder.pre_conv.conv, widths[0])
    transformer = cast(PreTransformer, decoder.pre_transformer)
    for projection in (transformer.input_proj, transformer.output_proj):
        _pass(projection.weight, widths[0])
        projection.bias[: widths[0]] = 0
    for index, stage in enumerate(stages):
        _upsample(ups[index].conv, maps[index])
        cast(ConvNeXt, stage[1]).gamma[: widths[index + 1]] = 0
    _pass_conv(cast(CausalConv, decoder.decoder[0]).conv, widths[len(ups)])
    for index, block in enumerate(blocks, len(ups)):
        block.snake.alpha[: widths[index]] = LINEAR
        _upsample(cast(CausalUpsample, block.block[1]).conv, maps[index])
        width, rate = widths[index + 1], FRAME // columns[index + 1] * 12.5
        units = [unit for unit in block.block if isinstance(unit, ResidualUnit)]
        for unit in units:
            unit.act1.alpha[:width] = LINEAR
            unit.conv2.conv.weight[:width] = 0
            unit.conv2.conv.bias[:width] = 0  # type: ignore[index]
        if rate >= HARMONIC_RATE:
            _harmonics(units[0], bases[index + 1], rate)


def _harmonics(unit: ResidualUnit, functions: Tensor, rate: float) -> None:
    """Some channels are Snakes of the phasor at the start of a column, with growing numbers of harmonics."""
    conv, count = unit.conv1.conv, unit.conv1.conv.out_channels // HARMONIC_SHARE
    highest = rate / 2 / 100 / 4
    # The phasor at the start of a column, from the column's coefficients, with a length of 1.
    start = functions[0] * math.sqrt(len(functions)) / (NORM if len(functions) > 1 else 1.0)
    for number in range(count):
        row, share = conv.out_channels - 1 - number, number / max(1, count - 1)
        index = LOWEST_INDEX * (highest / LOWEST_INDEX) ** share
        turn = torch.polar(torch.ones(()).double(), torch.tensor(2.399963 * number).double())
        weights = start * turn
        conv.weight[row] *= 0.3
        conv.weight[row, : 2 * len(start), -1] += torch.cat([weights.real, -weights.imag]).float()
        conv.bias[row] = (number % 4) * torch.pi / 8 / index  # type: ignore[index]
        unit.act2.alpha[row] = math.log(index)


def _upsampling(low: Tensor, high: Tensor, factor: float) -> Tensor:
    """Coefficients of a column to those of its parts: [parts, channels after, channels before]."""
    parts = low.unflatten(0, (-1, len(high)))
    maps = high.mH @ parts * math.sqrt(len(low) / len(high)) * factor
    return torch.cat([torch.cat([maps.real, -maps.imag], 2), torch.cat([maps.imag, maps.real], 2)], 1).float()


def _upsample(conv: nn.ConvTranspose1d, maps: Tensor) -> None:
    """Weights are [inputs, outputs, kernel]; the second half of a longer kernel belongs to the previous column."""
    parts, after, before = maps.shape
    conv.weight[:, :after] = 0
    conv.weight[:before, :after, :parts] = maps.permute(2, 1, 0).to(conv.weight)
    assert conv.bias is not None
    conv.bias[:after] = 0


def _pass_conv(conv: nn.Conv1d, width: int) -> None:
    conv.weight[:width] = 0
    conv.weight[range(width), range(width), -1] = 1.0
    assert conv.bias is not None
    conv.bias[:width] = 0


def _pass(weight: Tensor, width: int) -> None:
    weight[:width] = 0
    weight[range(width), range(width)] = 1.0


def _real(values: Tensor) -> Tensor:
    return torch.cat([values.real, values.imag], -1).float()
