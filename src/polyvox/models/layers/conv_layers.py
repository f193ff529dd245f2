# SPDX-License-Identifier: Apache-2.0
"""The causal layers of the convolutional decoder (conv_decoder.py): convolutions, upsampling and Snakes.

Signals and states are as the decoder says. With kernels, each Snake is fused into the layer before it.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels import sample_conv, wgmma_conv
from polyvox.kernels.conv import (
    PackedConv,
    causal_conv,
    causal_conv_reference,
    causal_product,
    causal_upsample_reference,
    last_columns,
    pack_conv,
    pack_upsample,
)
from polyvox.kernels.depthwise import depthwise_norm, depthwise_norm_reference
from polyvox.kernels.snake import snake_coefficients, snake_columns, snake_reference
from polyvox.kernels.wgmma_conv import PackedStages
from polyvox.models.layers.decoder_pass import DecoderPass
from polyvox.models.layers.rotary import at_least_float32
from polyvox.models.layers.weight_cache import WeightCache

NORM_EPS = 1e-6
RESIDUAL_DILATIONS = (1, 3, 9)
CONVNEXT_WIDTH = 4
# On a CPU, convolutions of torch are slower than a matrix product up to this many columns.
MAX_PRODUCT_COLUMNS = 64


class SnakeBeta(nn.Module):
    """x + sin²(e^alpha · x) / e^beta per channel; a checkpoint stores the logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))
        self._coefficients: WeightCache[tuple[Tensor, Tensor]] = WeightCache()
        self._columns: WeightCache[tuple[Tensor, Tensor]] = WeightCache()

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or torch.is_grad_enabled():
            return snake_reference(x, self.alpha, self.beta)
        rate, height = self._columns.get(lambda: snake_columns(self.alpha, self.beta), self.alpha, self.beta)
        return torch.sin(x * rate).square_().mul_(height).add_(x).to(x.dtype)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """As the kernel reads them."""
        return self._coefficients.get(lambda: snake_coefficients(self.alpha, self.beta), self.alpha, self.beta)


class Stateful(nn.Module, ABC):
    """A layer that stores the last columns of its input in the state, under its name in the decoder."""

    key = ""
    state_shape: tuple[int, int] = (0, 0)  # channels, columns

    def __init__(self) -> None:
        super().__init__()
        self._packed_weights: WeightCache[PackedConv] = WeightCache()
        self._stages: WeightCache[PackedStages] = WeightCache()

    def run(
        self,
        x: Tensor,
        step: DecoderPass,
        add: Tensor | None = None,
        then: SnakeBeta | None = None,
        keep: bool = True,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The layer's output plus add, and the same after the next Snake.

        keep: whether the first result is used; if not, it may be the second one. dtype: of the first result.
        """
        history = self.state_shape[1]
        if kernels.active(x):
            assert step.slots is not None
            packed, snake = self.packed_weights(), then.coefficients() if then else None
            state = step.before[self.key] if history else None
            if snake is not None and dtype is None:
                sources = (*self.parameters(), *cast(SnakeBeta, then).parameters())
                if wgmma_conv.supports_conv(x, packed):
                    stages = self._stages.get(lambda: wgmma_conv.pack_convolution(packed, snake), *sources)
                    return wgmma_conv.convolution(
                        x, packed, stages, state, step.slots, add, keep, step.absent, step.update
                    )
                if state is not None and add is None and wgmma_conv.supports_upsample(x, packed):
                    stages = self._stages.get(lambda: wgmma_conv.pack_upsampling(packed, snake), *sources)
                    return wgmma_conv.upsample(x, packed, stages, state, step.slots, keep, step.absent, step.update)
            return causal_conv(x, packed, state, step.slots, add, snake, keep, dtype, step.absent, step.update)
        past = step.read(self.key) if history else None
        y = self.plain(x, past)
        if past is not None:
            step.write(self.key, last_columns(past, x))
        if add is not None:
            y = add + y
        y = step.clear_absent(y).to(dtype or y.dtype)
        return y, y if then is None else then(y)

    def forward(self, x: Tensor, step: DecoderPass) -> Tensor:
        return self.run(x, step)[0]

    @abstractmethod
    def plain(self, x: Tensor, past: Tensor | None) -> Tensor:
        """The layer over its past and x: the reference implementation."""

    @abstractmethod
    def packed_weights(self) -> PackedConv:
        """The weights as the kernel reads them."""


def _is_product(x: Tensor) -> bool:
    """Whether a convolution of x is computed as a matrix product: in inference on a CPU, for few columns."""
    is_inference = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()
    return is_inference and x.shape[-1] <= MAX_PRODUCT_COLUMNS


class CausalConv(Stateful):
    """A causal convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.dilation = dilation
        self.state_shape = (inputs, (kernel - 1) * dilation)

    def plain(self, x: Tensor, past: Tensor | None) -> Tensor:
        if _is_product(x) and self.conv.groups == 1:
            return causal_product(x, past, self.packed_weights())
        return causal_conv_reference(x, past, self.conv.weight, cast(Tensor, self.conv.bias), self.dilation)

    def packed_weights(self) -> PackedConv:
        weight, bias = self.conv.weight, cast(Tensor, self.conv.bias)
        return self._packed_weights.get(lambda: pack_conv(weight, bias, self.dilation), weight, bias)


class SampleConv(CausalConv):
    """The last layer: a causal convolution to samples."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel)
        self._operand: WeightCache[Tensor] = WeightCache()

    def samples(self, x: Tensor, step: DecoderPass) -> Tensor:
        """[B,C,T] -> [B,T], at least float32, in [-1, 1]"""
        if kernels.active(x) and sample_conv.supports(x, packed := self.packed_weights()):
            assert step.slots is not None
            operand = self._operand.get(lambda: sample_conv.pack_samples(packed), self.conv.weight)
            return sample_conv.sample_conv(x, operand, packed.bias, step.before[self.key], step.slots, step.absent)
        y, _ = self.run(x, step, dtype=at_least_float32(x.dtype))
        return y.squeeze(1).clamp(-1, 1)


class CausalUpsample(Stateful):
    """A causal transposed convolution. With a kernel of two strides, a column also affects the next outputs."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        assert kernel in (stride, 2 * stride)
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        self.stride = stride
        self.state_shape = (inputs, kernel // stride - 1)

    def plain(self, x: Tensor, past: Tensor | None) -> Tensor:
        if _is_product(x):
            return causal_product(x, past, self.packed_weights())
        return causal_upsample_reference(x, past, self.conv.weight, cast(Tensor, self.conv.bias), self.stride)

    def packed_weights(self) -> PackedConv:
        weight, bias = self.conv.weight, cast(Tensor, self.conv.bias)
        return self._packed_weights.get(lambda: pack_upsample(weight, bias, self.stride), weight, bias)


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(channels, CONVNEXT_WIDTH * channels)
        self.pwconv2 = nn.Linear(CONVNEXT_WIDTH * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, step: DecoderPass) -> Tensor:
        y = self.pwconv2(F.gelu(self.pwconv1(self._depthwise_norm(x, step))))
        return torch.addcmul(x, self.gamma[:, None], y.transpose(1, 2))

    def _depthwise_norm(self, x: Tensor, step: DecoderPass) -> Tensor:
        """Depthwise convolution and norm: [B,C,T] -> [B,T,C]"""
        key, conv, norm = self.dwconv.key, self.dwconv.conv, self.norm
        parts = (conv.weight, cast(Tensor, conv.bias), norm.weight, norm.bias, norm.eps)
        if kernels.active(x):
            assert step.slots is not None
            return depthwise_norm(x, step.before[key], step.slots, *parts, step.update)
        past = step.read(key)
        y = depthwise_norm_reference(x, past, *parts)
        step.write(key, last_columns(past, x))
        return y


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)
        self._stages: WeightCache[PackedStages] = WeightCache()

    def forward(
        self, x: Tensor, active: Tensor, step: DecoderPass, then: SnakeBeta, keep: bool
    ) -> tuple[Tensor, Tensor]:
        """active is act1(x); returns the sum and then(sum)."""
        conv1, dilation = self.conv1, self.conv1.dilation
        if kernels.active(active) and wgmma_conv.supports_unit(active, dilation):
            assert step.slots is not None
            stages = self._stages.get(lambda: self._pack(then), *self.parameters(), *then.parameters())
            return wgmma_conv.residual_unit(
                x, active, stages, dilation, step.before[conv1.key], step.slots, keep, step.absent, step.update
            )
        _, inner = self.conv1.run(active, step, then=self.act2, keep=False)
        return self.conv2.run(inner, step, add=x, then=then, keep=keep)

    def _pack(self, then: SnakeBeta) -> PackedStages:
        convs = self.conv1.packed_weights(), self.conv2.packed_weights()
        return wgmma_conv.pack_unit(*convs, self.act2.coefficients(), then.coefficients())


class UpsampleBlock(nn.Module):
    """Halves the channels, multiplies the columns by `rate`, and applies three residual units."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        self.block = nn.ModuleList([SnakeBeta(channels), CausalUpsample(channels, half, 2 * rate, rate)])
        self.block.extend(ResidualUnit(half, dilation) for dilation in RESIDUAL_DILATIONS)

    @property
    def snake(self) -> SnakeBeta:
        return cast(SnakeBeta, self.block[0])

    def forward(self, active: Tensor, step: DecoderPass, then: SnakeBeta) -> Tensor:
        """From the output of self.snake to the output of then."""
        upsample, units = cast(CausalUpsample, self.block[1]), [cast(ResidualUnit, unit) for unit in self.block[2:]]
        step.drop_block(upsample.stride)
        x, active = upsample.run(active, step, then=units[0].act1)
        for unit, following in pairwise(units):
            x, active = unit(x, active, step, following.act1, keep=True)
        return units[-1](x, active, step, then, keep=False)[1]
