# SPDX-License-Identifier: Apache-2.0
"""The convolutional decoder that codecs share: frames of features to samples, with the same result in any chunking.

Every layer is causal, so a stream is decoded by successive calls, each with the state that the previous one returned.
The state is a dict of tensors with one row per stream; zeros are the state before the first frame. A convolution stores
its last input columns, [channels, columns]; attention stores a ring of keys and values, column p at p % (window - 1).
One-shot decoding is the same call with all frames as one chunk.

Signals are [B, channels, columns]. With kernels, signals and states are channels-last in memory. Layers may compute in
float16 or bfloat16 (`narrow`); samples stay float32.

A decoder with `drops_first_block` has no output for the first input column of each upsampling block with a kernel of
two strides. Later layers must read zeros there, as before the start of the stream: `DecoderPass.absent`.
"""

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.kernels import history
from polyvox.kernels.ring_attention import RingAttention
from polyvox.kernels.window_positions import next_positions
from polyvox.models.layers.conv_layers import (
    CausalConv,
    CausalUpsample,
    ConvNeXt,
    SampleConv,
    SnakeBeta,
    Stateful,
    UpsampleBlock,
)
from polyvox.models.layers.decoder_config import ConvDecoderConfig
from polyvox.models.layers.decoder_pass import DecoderPass, DecoderState
from polyvox.models.layers.rotary import NoRotation, RotaryEmbedding, at_least_float32
from polyvox.models.layers.transformer import Transformer
from polyvox.models.layers.transformer_config import TransformerConfig
from polyvox.models.layers.weight_cache import WeightCache
from polyvox.models.protocol import Attend


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
