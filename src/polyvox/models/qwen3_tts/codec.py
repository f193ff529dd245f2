# SPDX-License-Identifier: Apache-2.0
"""The codec's decoder: frames of codes to samples, with the same result in any chunking.

Every layer is causal, so a stream is decoded by successive calls, each with the state that the previous one returned.
The state is a dict of tensors with one row per stream; zeros are the state before the first frame. A convolution stores
its last input columns, [channels, columns]; attention stores a ring of keys and values, column p at p % (window - 1).
One-shot decoding is the same call with all frames as one chunk.

Signals are [B, channels, columns]. With kernels, signals and states are channels-last in memory, and each Snake is
fused into the layer before it. Layers may compute in float16 or bfloat16 (`narrow`); codebook entries and samples stay
float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.conv import (
    PackedConv,
    causal_conv,
    causal_conv_reference,
    causal_upsample_reference,
    last_columns,
    pack_conv,
    pack_upsample,
)
from polyvox.kernels.depthwise import depthwise_norm, depthwise_norm_reference
from polyvox.kernels.ring_attention import RingAttention
from polyvox.kernels.snake import snake_coefficients, snake_reference
from polyvox.models.layers.rotary import NoRotation, RotaryEmbedding, at_least_float32
from polyvox.models.layers.transformer import Transformer
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.config import CodecConfig

CodecState = dict[str, Tensor]
T = TypeVar("T")

USAGE_EPS = 1e-5
NORM_EPS = 1e-6
RESIDUAL_DILATIONS = (1, 3, 9)
CONVNEXT_WIDTH = 4


class DecoderPass:
    """One call of the decoder: the states before and after it.

    With slots [B] they are the same: stream i is row slots[i], updated in place. Without, stream i is row i, and the
    state after the call is new.
    """

    def __init__(self, before: CodecState, slots: Tensor | None) -> None:
        self.before, self.slots = before, slots
        self.after: CodecState = {} if slots is None else before

    def read(self, key: str) -> Tensor:
        return self.before[key] if self.slots is None else self.before[key][self.slots]

    def write(self, key: str, rows: Tensor) -> None:
        if self.slots is None:
            self.after[key] = rows
        else:
            self.after[key][self.slots] = rows


class WeightCache(Generic[T]):
    """A value computed from a weight, and computed again if the weight changes."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._value: T | None = None

    def get(self, compute: Callable[[], T], weight: Tensor) -> T:
        version = None if weight.is_inference() else weight._version
        key = (weight.data_ptr(), version, weight.dtype, weight.device)
        if self._value is None or self._key != key:
            self._value, self._key = compute(), key
        return self._value


class SnakeBeta(nn.Module):
    """x + sin²(e^alpha · x) / e^beta per channel; a checkpoint stores the logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))
        self._coefficients: WeightCache[tuple[Tensor, Tensor]] = WeightCache()

    def forward(self, x: Tensor) -> Tensor:
        return snake_reference(x, self.alpha, self.beta)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """As the kernel reads them."""
        return self._coefficients.get(lambda: snake_coefficients(self.alpha, self.beta), self.alpha)


class Stateful(nn.Module, ABC):
    """A layer that stores the last columns of its input in the state, under its name in the decoder."""

    key = ""
    state_shape: tuple[int, int] = (0, 0)  # channels, columns

    def __init__(self) -> None:
        super().__init__()
        self._packed_weights: WeightCache[PackedConv] = WeightCache()

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
            snake = then.coefficients() if then else None
            state = step.before[self.key] if history else None
            return causal_conv(x, self.packed_weights(), state, step.slots, add, snake, keep, dtype)
        past = step.read(self.key) if history else None
        y = self.plain(x, past)
        if past is not None:
            step.write(self.key, last_columns(past, x))
        if add is not None:
            y = add + y
        y = y.to(dtype or y.dtype)
        return y, y if then is None else then(y)

    def forward(self, x: Tensor, step: DecoderPass) -> Tensor:
        return self.run(x, step)[0]

    @abstractmethod
    def plain(self, x: Tensor, past: Tensor | None) -> Tensor:
        """The layer over its past and x: the reference implementation."""

    @abstractmethod
    def packed_weights(self) -> PackedConv:
        """The weights as the kernel reads them."""


class CausalConv(Stateful):
    """A causal convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.dilation = dilation
        self.state_shape = (inputs, (kernel - 1) * dilation)

    def plain(self, x: Tensor, past: Tensor | None) -> Tensor:
        return causal_conv_reference(x, past, self.conv.weight, cast(Tensor, self.conv.bias), self.dilation)

    def packed_weights(self) -> PackedConv:
        weight, bias = self.conv.weight, cast(Tensor, self.conv.bias)
        return self._packed_weights.get(lambda: pack_conv(weight, bias, self.dilation), weight)


class CausalUpsample(Stateful):
    """A causal transposed convolution. With a kernel of two strides, a column also affects the next outputs."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        assert kernel in (stride, 2 * stride)
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        self.stride = stride
        self.state_shape = (inputs, kernel // stride - 1)

    def plain(self, x: Tensor, past: Tensor | None) -> Tensor:
        return causal_upsample_reference(x, past, self.conv.weight, cast(Tensor, self.conv.bias), self.stride)

    def packed_weights(self) -> PackedConv:
        weight, bias = self.conv.weight, cast(Tensor, self.conv.bias)
        return self._packed_weights.get(lambda: pack_upsample(weight, bias, self.stride), weight)


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
            return depthwise_norm(x, step.before[key], step.slots, *parts)
        past = step.read(key)
        step.write(key, last_columns(past, x))
        return depthwise_norm_reference(x, past, *parts)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(
        self, x: Tensor, active: Tensor, step: DecoderPass, then: SnakeBeta, keep: bool
    ) -> tuple[Tensor, Tensor]:
        """active is act1(x); returns the sum and then(sum)."""
        _, inner = self.conv1.run(active, step, then=self.act2, keep=False)
        return self.conv2.run(inner, step, add=x, then=then, keep=keep)


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
        upsample, *rest = self.block[1:]
        units = [cast(ResidualUnit, unit) for unit in rest]
        x, active = cast(CausalUpsample, upsample).run(active, step, then=units[0].act1)
        for unit, following in pairwise(units):
            x, active = unit(x, active, step, following.act1, keep=True)
        return units[-1](x, active, step, then, keep=False)[1]


class Codebook(nn.Module):
    """Entries as running sums and counts of training; an entry is their quotient."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embedding_sum = nn.Parameter(torch.empty(size, dim))
        self.cluster_usage = nn.Parameter(torch.empty(size))

    def forward(self, codes: Tensor) -> Tensor:
        usage = self.cluster_usage[codes].clamp(min=USAGE_EPS)
        return F.embedding(codes, self.embedding_sum) / usage[..., None]

    def entries(self) -> Tensor:
        return self.embedding_sum / self.cluster_usage.clamp(min=USAGE_EPS)[:, None]


class VectorQuantizer(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, dim)

    def forward(self, codes: Tensor) -> Tensor:
        return self._codebook(codes)


class QuantizerLayers(nn.Module):
    def __init__(self, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VectorQuantizer(size, dim) for _ in range(count))


class ResidualQuantizer(nn.Module):
    """Codebooks whose entries are added, and input and output projections; only the output projection is used here."""

    def __init__(self, config: CodecConfig, count: int) -> None:
        super().__init__()
        dim = config.codebook_dim // 2
        self.vq = QuantizerLayers(count, config.codebook_size, dim)
        self.input_proj = nn.Conv1d(config.codebook_dim, dim, 1, bias=False)
        self.output_proj = nn.Conv1d(dim, config.codebook_dim, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """[B,T,count] -> [B,codebook_dim,T]"""
        entries = [layer(codes[..., i]) for i, layer in enumerate(self.vq.layers)]
        return self.output_proj(torch.stack(entries).sum(0).transpose(1, 2))

    def projected(self) -> Tensor:
        """The contribution of each code of each codebook: [count, codebook_size, codebook_dim]"""
        books = [cast(VectorQuantizer, layer)._codebook.entries() for layer in self.vq.layers]
        return torch.stack(books) @ self.output_proj.weight[:, :, 0].T


class SplitQuantizer(nn.Module):
    """The first code has its own quantizer; the others share one."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(config, 1)
        self.rvq_rest = ResidualQuantizer(config, config.quantizers - 1)
        self._table: WeightCache[Tensor] = WeightCache()

    def forward(self, codes: Tensor) -> Tensor:
        """[B,T,quantizers] -> [B,codebook_dim,T]"""
        weight = self.rvq_rest.output_proj.weight
        if kernels.active(weight):
            # One look-up instead of sixteen look-ups and two projections: 64 MB at the published size.
            table = self._table.get(lambda: torch.cat([self.rvq_first.projected(), self.rvq_rest.projected()]), weight)
            books, size, _ = table.shape
            codes = codes + torch.arange(0, books * size, size, device=codes.device)
            return F.embedding(codes, table.flatten(0, 1)).sum(2).transpose(1, 2)
        return self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])


class PreTransformer(Transformer):
    """Attention over the last `window` frames; keys and values of earlier frames are in the state."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config.transformer, qk_norm=False, layer_scale=True)
        self.config = config.transformer
        self.past = config.window - 1
        self.input_proj = nn.Linear(config.latent_dim, config.transformer.hidden_size)
        self.output_proj = nn.Linear(config.transformer.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, step: DecoderPass) -> Tensor:
        """[B,T,latent] -> [B,T,latent]"""
        columns = torch.arange(x.shape[1], device=x.device)
        positions = step.read("position")[:, None] + columns
        step.write("position", positions[:, -1] + 1)
        return self.output_proj(self.run(self.input_proj(x), NoRotation(), self._attend(positions, step, x.dtype)))

    def _attend(self, positions: Tensor, step: DecoderPass, dtype: torch.dtype) -> Attend:
        angles = RotaryEmbedding(positions, self.config, at_least_float32(dtype))
        slots = step.slots
        if slots is None:
            slots = torch.arange(len(positions), device=positions.device)
            step.after |= {name: step.before[name].clone() for name in ("keys", "values")}
        # [S, layers, heads, window - 1, head_dim]
        return RingAttention(step.after["keys"], step.after["values"], slots, positions, angles.cos, angles.sin)


class CodecDecoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        latent, channels = config.latent_dim, config.decoder_dim
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, latent, 3)
        self.pre_transformer = PreTransformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsample(latent, latent, ratio, ratio), ConvNeXt(latent)])
            for ratio in config.upsampling_ratios
        )
        self.decoder = nn.ModuleList([CausalConv(latent, channels, 7)])
        for rate in config.upsample_rates:
            self.decoder.append(UpsampleBlock(channels, rate))
            channels //= 2
        self.decoder.extend([SnakeBeta(channels), CausalConv(channels, 1, 7)])
        for name, module in self.named_modules():
            if isinstance(module, Stateful):
                module.key = name

    @property
    def _like(self) -> Tensor:
        return self.pre_conv.conv.weight

    @property
    def device(self) -> torch.device:
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the layers; the codebooks may have a wider one."""
        return self._like.dtype

    def narrow(self, dtype: torch.dtype) -> None:
        """Converts all weights but those of codebooks and Snakes to this type."""
        for name, module in self.named_modules():
            if not name.startswith("quantizer") and not isinstance(module, SnakeBeta):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    def initial_state(self, batch: int) -> CodecState:
        """The state before the first frame of each stream."""
        like, shape = self._like, self.config.transformer
        state: CodecState = {}
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

    def forward(self, codes: Tensor, state: CodecState, slots: Tensor | None = None) -> tuple[Tensor, CodecState]:
        """The next frames [B,T,quantizers] of each stream to samples [B, T · samples_per_frame] in [-1, 1].

        Without slots, stream i is row i of the state, and the returned state is new. With slots [B], stream i is row
        slots[i], and the state is updated in place.
        """
        return self.sound(self.quantizer(codes), state, slots)

    def sound(self, x: Tensor, state: CodecState, slots: Tensor | None = None) -> tuple[Tensor, CodecState]:
        """The same from the sums of codebook entries, [B,codebook_dim,T]; used in training."""
        x = x.to(self.dtype)
        if slots is None and kernels.active(x):
            before, state = state, self.initial_state(len(x))
            for name, rows in state.items():
                rows.copy_(before[name])
            slots = torch.arange(len(x), device=x.device)
        step = DecoderPass(state, slots)
        x = self.pre_conv(x, step)
        x = self.pre_transformer(x.transpose(1, 2), step).transpose(1, 2)
        for stage in self.upsample:
            for layer in cast(nn.ModuleList, stage):
                x = layer(x, step)
        first, *rest, snake, last = self.decoder
        blocks = [cast(UpsampleBlock, block) for block in rest]
        snakes = [*(block.snake for block in blocks), cast(SnakeBeta, snake)]
        _, x = cast(CausalConv, first).run(x, step, then=snakes[0], keep=False)
        for block, following in zip(blocks, snakes[1:], strict=True):
            x = block(x, step, following)
        x, _ = cast(CausalConv, last).run(x, step, dtype=at_least_float32(x.dtype))
        return x.squeeze(1).clamp(-1, 1), step.after
