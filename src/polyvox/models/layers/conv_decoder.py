# SPDX-License-Identifier: Apache-2.0
"""The convolutional decoder that codecs share: frames of features to samples, with the same result in any chunking.

Every layer is causal, so a stream is decoded by successive calls, each with the state that the previous one returned.
The state is a dict of tensors with one row per stream; zeros are the state before the first frame. A convolution stores
its last input columns, [channels, columns]; attention stores a ring of keys and values, column p at p % (window - 1).
One-shot decoding is the same call with all frames as one chunk.

Signals are [B, channels, columns]. With kernels, signals and states are channels-last in memory, and each Snake is
fused into the layer before it. Layers may compute in float16 or bfloat16 (`narrow`); samples stay float32.

A decoder with `drops_first_block` has no output for the first input column of each upsampling block with a kernel of
two strides. Later layers must read zeros there, as before the start of the stream: `DecoderPass.absent`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels import history, sample_conv, wgmma_conv
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
from polyvox.kernels.lazy_triton import interceptor
from polyvox.kernels.ring_attention import RingAttention
from polyvox.kernels.snake import snake_coefficients, snake_columns, snake_reference
from polyvox.kernels.wgmma_conv import PackedStages
from polyvox.kernels.window_positions import next_positions
from polyvox.models.layers.decoder_config import ConvDecoderConfig
from polyvox.models.layers.decoder_pass import DecoderPass, DecoderState
from polyvox.models.layers.rotary import NoRotation, RotaryEmbedding, at_least_float32
from polyvox.models.layers.transformer import Transformer
from polyvox.models.layers.transformer_config import TransformerConfig
from polyvox.models.protocol import Attend

T = TypeVar("T")

NORM_EPS = 1e-6
RESIDUAL_DILATIONS = (1, 3, 9)
CONVNEXT_WIDTH = 4
# On a CPU, convolutions of torch are slower than a matrix product up to this many columns.
MAX_PRODUCT_COLUMNS = 64


class WeightCache(Generic[T]):
    """A value computed from weights, and computed again if one of them changes.

    While launches are recorded (kernels/launches.py), the value's tensors have no memory: that value is kept apart.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._value: T | None = None
        self._recorded: tuple[tuple[object, ...], T] | None = None

    def get(self, compute: Callable[[], T], *weights: Tensor) -> T:
        key = tuple(
            (weight.data_ptr(), None if weight.is_inference() else weight._version, weight.dtype, weight.device)
            for weight in weights
        )
        if self._value is not None and self._key == key:
            return self._value
        if interceptor() is None:
            self._key, self._value = key, compute()
            return self._value
        if self._recorded is None or self._recorded[0] != key:
            self._recorded = key, compute()
        return self._recorded[1]


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


def rotary_frequencies(config: TransformerConfig, like: Tensor) -> Tensor:
    """The angle of one position for each pair of dimensions, float32."""
    exponents = torch.arange(0, config.head_dim, 2, device=like.device).float() / config.head_dim
    return 1.0 / config.rope_theta**exponents


class WindowTransformer(Transformer):
    """Attention over the last `window` frames; keys and values of earlier frames are in the state."""

    def __init__(self, config: ConvDecoderConfig) -> None:
        super().__init__(config.transformer, qk_norm=False, layer_scale=True)
        self.config = config.transformer
        self._frequencies: WeightCache[Tensor] = WeightCache()

    def forward(self, x: Tensor, step: DecoderPass) -> Tensor:
        """[B,T,hidden] -> [B,T,hidden]"""
        if kernels.active(x):
            return self.run(x, NoRotation(), self._attend_in_slots(x.shape[1], step))
        columns = torch.arange(x.shape[1], device=x.device)
        positions = step.read("position")[:, None] + columns
        step.write("position", positions[:, -1] + 1)
        return self.run(x, NoRotation(), self._attend(positions, step, x.dtype))

    def _attend_in_slots(self, columns: int, step: DecoderPass) -> RingAttention:
        """Attention with kernels; advances the positions."""
        assert step.slots is not None
        frequencies = self._frequencies.get(lambda: rotary_frequencies(self.config, self.norm.weight), self.norm.weight)
        angles = next_positions(step.before["position"], step.slots, columns, frequencies)
        return RingAttention(step.before["keys"], step.before["values"], step.slots, *angles)

    def _attend(self, positions: Tensor, step: DecoderPass, dtype: torch.dtype) -> Attend:
        angles = RotaryEmbedding(positions, self.config, at_least_float32(dtype))
        slots = step.slots
        if slots is None:
            slots = torch.arange(len(positions), device=positions.device)
            step.after |= {name: step.before[name].clone() for name in ("keys", "values")}
        # [S, layers, heads, window - 1, head_dim]
        return RingAttention(step.after["keys"], step.after["values"], slots, positions, angles.cos, angles.sin)


class ConvDecoder(nn.Module, ABC):
    """Transformer, upsampling and convolutions of a codec; a subclass turns codes into features."""

    drops_first_block = False
    wide_part = ""  # the part that turns codes into features, whose weights stay float32

    def __init__(self, config: ConvDecoderConfig, transformer: WindowTransformer) -> None:
        super().__init__()
        self.config = config
        latent, channels = config.latent_dim, config.decoder_dim
        self.pre_transformer = transformer
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsample(latent, latent, ratio, ratio), ConvNeXt(latent)])
            for ratio in config.upsampling_ratios
        )
        self.decoder = nn.ModuleList([CausalConv(latent, channels, 7)])
        for rate in config.upsample_rates:
            self.decoder.append(UpsampleBlock(channels, rate))
            channels //= 2
        self.decoder.extend([SnakeBeta(channels), SampleConv(channels, 1, 7)])

    def name_states(self) -> None:
        """Names the state of each layer; called once all layers exist."""
        for name, module in self.named_modules():
            if isinstance(module, Stateful):
                module.key = name

    @property
    def _like(self) -> Tensor:
        return cast(CausalConv, self.decoder[0]).conv.weight

    @property
    def device(self) -> torch.device:
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the layers; the codebooks may have a wider one."""
        return self._like.dtype

    @property
    def delay_samples(self) -> int:
        """Samples at the start of a stream that do not exist."""
        absent = 0
        for rate in self.config.upsample_rates if self.drops_first_block else ():
            absent = (absent + 1) * rate
        return absent

    def narrow(self, dtype: torch.dtype) -> None:
        """Converts all weights but those of `wide_part` and of Snakes to this type."""
        for name, module in self.named_modules():
            if not name.startswith(self.wide_part) and not isinstance(module, SnakeBeta):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    def initial_state(self, batch: int) -> DecoderState:
        """The state before the first frame of each stream."""
        like, shape = self._like, self.config.transformer
        state: DecoderState = {}
        for module in self.modules():
            if isinstance(module, Stateful) and module.state_shape[1]:
                channels, columns = module.state_shape
                if like.is_cuda or kernels.active(like):
                    state[module.key] = like.new_zeros(batch, columns, channels).transpose(1, 2)
                else:
                    state[module.key] = like.new_zeros(batch, channels, columns)
        past = (batch, shape.layers, shape.kv_heads, self.config.window - 1, shape.head_dim)
        state["keys"], state["values"] = like.new_zeros(past), like.new_zeros(past)
        state["position"] = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return state

    @abstractmethod
    def forward(self, codes: Tensor, state: DecoderState, slots: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        """The next frames [B,T,quantizers] of each stream to samples [B, T · samples_per_frame] in [-1, 1].

        Without slots, stream i is row i of the state, and the returned state is new. With slots [B], stream i is row
        slots[i], and the state is updated in place. The first delay_samples of a stream are zero.
        """

    def start(self, x: Tensor, state: DecoderState, slots: Tensor | None) -> DecoderPass:
        """A call for features x [B,C,T]. Kernels need slots: without them the state is copied."""
        if slots is None and kernels.active(x):
            before, state = state, self.initial_state(len(x))
            for name, rows in state.items():
                rows.copy_(before[name])
            slots = torch.arange(len(x), device=x.device)
        step = DecoderPass(state, slots)
        if kernels.active(x) and history.supports(x):
            step.collect_updates()
        if self.drops_first_block:
            step.mark_start()
        return step

    def samples(self, x: Tensor, step: DecoderPass) -> Tensor:
        """Features after the transformer [B,latent,T] to samples [B, T · samples_per_frame] in [-1, 1]."""
        for stage in self.upsample:
            for layer in cast(nn.ModuleList, stage):
                x = layer(x, step)
        first, *rest, snake, last = self.decoder
        blocks = [cast(UpsampleBlock, block) for block in rest]
        snakes = [*(block.snake for block in blocks), cast(SnakeBeta, snake)]
        _, x = cast(CausalConv, first).run(x, step, then=snakes[0], keep=False)
        for block, following in zip(blocks, snakes[1:], strict=True):
            x = block(x, step, following)
        samples = cast(SampleConv, last).samples(x, step)
        step.finish()
        return samples
