# SPDX-License-Identifier: Apache-2.0
"""Initial weights with which the decoder has a harmonic oscillator, made of its ordinary layers.

Code 1 gives pitch and phase of a frame (source.py). In each stage, a few phasor channels have the phasor of the
fundamental over one column of that stage, as coefficients in a basis of all pitches. Upsampling from one stage to the
next is linear, so its weights follow from the bases, and the last stage has cosine and sine of the phase at each
sample. The stage before the last makes pulses of the phase, with Snake activations that receive the phasor with a high
frequency, as in frequency modulation. These layers are fixed in the training of the vocoder: noise in the phasor would
be multiplied with the number of the harmonic.
"""

import math
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from polyvox.models.layers.conv_decoder import CausalConv, CausalUpsample, ConvNeXt, ResidualUnit, UpsampleBlock
from polyvox.models.qwen3_tts.codec import CodecDecoder, PreTransformer
from training.source import CLASSES, LOWEST, RANGE, SOURCE_CODES
from training.units import FRAME

ACCURACY = 0.01  # relative error of a basis
FRAME_NORM, NORM = 16.0, 4.0  # of the phasor channels at the frame rate, where a norm follows, and after it
LINEAR = -4.0  # logarithm of the frequency of a Snake that hardly changes its input
HARMONICS = 12  # of a pulse
PERIOD = 1.2  # of the functions of the cosine of a phase; larger than 1, its maximum
RIDGE = 1e-3  # of least squares


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
        width = widths[index + 1]
        for unit in _units(block):
            unit.act1.alpha[:width] = LINEAR
            unit.conv2.conv.weight[:width] = 0
            unit.conv2.conv.bias[:width] = 0  # type: ignore[index]
    _excite(blocks[-2], blocks[-1], bases[-2], widths[-2:])


def fix_oscillator(decoder: CodecDecoder) -> None:
    """Weights of the convolutional layers that initialise_oscillator sets get no gradient."""
    copies = [deepcopy(decoder).cpu() for _ in range(2)]
    for copy in copies:
        for parameter in copy.parameters():
            nn.init.uniform_(parameter, 1, 2)
        initialise_oscillator(copy)
    parameters = (one.decoder.parameters() for one in (decoder, *copies))
    for parameter, first, second in zip(*parameters, strict=True):
        free = (first != second).to(parameter)
        if not free.all():
            parameter.register_hook(lambda gradient, free=free: gradient * free)


def _excite(block: UpsampleBlock, last: UpsampleBlock, functions: Tensor, widths: list[int]) -> None:
    """The block before the last makes pulses of the phasor, which reach the last one at its sample rate."""
    width, samples = widths[0], len(functions)
    pulses = slice(width, width + samples)
    before, after = (cast(CausalUpsample, one.block[1]).conv for one in (block, last))
    assert before.bias is not None
    assert after.bias is not None
    before.weight[:, pulses] = 0
    before.bias[pulses] = 0
    first, *others = _units(block)
    _pulses(first, functions, width)
    for unit in others:
        unit.act1.alpha[pulses] = LINEAR
        unit.conv2.conv.weight[pulses] = 0
        unit.conv2.conv.bias[pulses] = 0  # type: ignore[index]
    last.snake.alpha[pulses] = LINEAR
    channel = widths[1]
    after.weight[:, channel] = 0
    after.weight[range(width, width + samples), channel, range(samples)] = 1.0
    after.bias[channel] = 0
    for unit in _units(last):
        unit.act1.alpha[channel] = LINEAR
        unit.conv2.conv.weight[channel] = 0
        unit.conv2.conv.bias[channel] = 0  # type: ignore[index]


def _units(block: UpsampleBlock) -> list[ResidualUnit]:
    return [unit for unit in block.block if isinstance(unit, ResidualUnit)]


class PulseFunctions:
    """Snakes of the cosine of a phase, whose sum is a pulse: harmonics with almost equal amplitudes.

    Sines and cosines of multiples of the cosine approximate every even function of the phase; the weights follow from
    least squares. A pulse has a mean square of about 1.
    """

    def __init__(self, count: int) -> None:
        numbers = torch.arange(count, dtype=torch.float64)
        self.index = torch.pi / 2 / PERIOD * (numbers // 2 + 1)  # of modulation
        self.offset = numbers % 2 * torch.pi / 4 / self.index
        cycles = torch.linspace(0, 0.5, 1000, dtype=torch.float64)
        harmonics = torch.cos(2 * torch.pi * cycles[:, None] * torch.arange(1, HARMONICS + 1))
        values = self._values(cycles)
        ridge = RIDGE * len(cycles) * torch.eye(count + 1, dtype=torch.float64)
        wanted = harmonics.sum(1) / math.sqrt(HARMONICS / 2)
        self.weights = torch.linalg.solve(values.mT @ values + ridge, values.mT @ wanted)  # the last one is added

    def __call__(self, cycles: Tensor) -> Tensor:
        """The pulse at these phases."""
        return self._values(cycles) @ self.weights

    def _values(self, cycles: Tensor) -> Tensor:
        inputs = torch.cos(2 * torch.pi * cycles)[..., None] + self.offset
        snakes = inputs + torch.sin(self.index * inputs).square()
        return torch.cat([snakes, torch.ones_like(snakes[..., :1])], -1)


def _pulses(unit: ResidualUnit, functions: Tensor, width: int) -> None:
    """The channels after the phasor are the pulses at the samples of a column; all inner channels make them."""
    conv, output, samples = unit.conv1.conv, unit.conv2.conv, len(functions)
    assert conv.bias is not None
    assert output.bias is not None
    count = conv.out_channels // samples
    made = PulseFunctions(count)
    output.weight[width : width + samples] = 0
    for sample, phasor in enumerate(functions * math.sqrt(samples) / NORM):
        rows = slice(sample * count, (sample + 1) * count)
        conv.weight[rows] = 0
        conv.weight[rows, : 2 * len(phasor), -1] = torch.cat([phasor.real, -phasor.imag]).float()
        conv.bias[rows] = made.offset.float()
        unit.act2.alpha[rows], unit.act2.beta[rows] = made.index.log().float(), 0
        output.weight[width + sample, rows, 0] = made.weights[:-1].float()
        output.bias[width + sample] = float(made.weights[-1])


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
