# SPDX-License-Identifier: Apache-2.0
"""The codec's decoder for training, in two parts: CodecDecoder.sound from an empty state, with a backward pass.

Signals of the upsampling blocks are channels last, [B,T,C]. Residual sums are float32, the rest is bfloat16 on a GPU.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.layers.conv_layers import (
    CausalConv,
    CausalUpsample,
    ResidualUnit,
    SnakeBeta,
    UpsampleBlock,
)
from polyvox.models.layers.decoder_pass import DecoderPass
from polyvox.models.qwen3_tts.codec import CodecDecoder
from training.snake import snake


def features(decoder: CodecDecoder, latent: Tensor) -> Tensor:
    """Sums of codebook entries [B,codebook_dim,T] to the input of the convolutional layers, [B,latent_dim,columns]."""
    step = DecoderPass(decoder.initial_state(len(latent)), None)
    x = decoder.pre_conv(latent, step)
    x = decoder.pre_transformer(x.transpose(1, 2), step).transpose(1, 2)
    for stage in decoder.upsample:
        for layer in cast(nn.ModuleList, stage):
            x = layer(x, step)
    return x


def waveform(decoder: CodecDecoder, x: Tensor) -> Tensor:
    """Features [B,latent_dim,columns] to samples [B,N]."""
    dtype = torch.bfloat16 if x.is_cuda else torch.float32
    first, *blocks, last_snake, last = decoder.decoder
    x = x.transpose(1, 2)
    history = cast(CausalConv, first).state_shape[1]
    x = convolve(F.pad(x, (0, 0, history, 0)).to(dtype), cast(CausalConv, first)).float()
    for block in blocks:
        x = _block(cast(UpsampleBlock, block), x, dtype)
    return _last(cast(SnakeBeta, last_snake), cast(CausalConv, last), x).clamp(-1, 1)


def _block(block: UpsampleBlock, x: Tensor, dtype: torch.dtype) -> Tensor:
    active = snake(x, block.snake.alpha, block.snake.beta, 0, dtype)
    x = upsample(active, cast(CausalUpsample, block.block[1])).float()
    for unit in list(block.block)[2:]:
        assert isinstance(unit, ResidualUnit)
        active = snake(x, unit.act1.alpha, unit.act1.beta, unit.conv1.state_shape[1], dtype)
        inner = snake(convolve(active, unit.conv1), unit.act2.alpha, unit.act2.beta, 0, dtype)
        conv = unit.conv2.conv
        x = x + F.linear(inner, conv.weight[..., 0].to(dtype), cast(Tensor, conv.bias).to(dtype)).float()
    return x


def convolve(x: Tensor, layer: CausalConv) -> Tensor:
    """A convolution of rows [B, history + T, C] to [B,T,outputs]."""
    weight, bias = layer.conv.weight.to(x.dtype), cast(Tensor, layer.conv.bias).to(x.dtype)
    columns = x.transpose(1, 2)[:, :, None]  # [B,C,1,T], channels last in memory
    taps = weight[:, :, None].contiguous(memory_format=torch.channels_last)
    made = F.conv2d(columns, taps, bias, dilation=(1, layer.dilation))
    return made[:, :, 0].transpose(1, 2)


def upsample(x: Tensor, layer: CausalUpsample) -> Tensor:
    """A transposed convolution with a kernel of two strides: [B,T,C] to [B, stride · T, outputs]."""
    inputs, outputs, kernel = layer.conv.weight.shape
    weight = layer.conv.weight.to(x.dtype).permute(2, 1, 0).reshape(kernel * outputs, inputs)
    made = F.linear(x, weight)
    half = made.shape[-1] // 2
    summed = made[..., :half] + F.pad(made[:, :-1, half:], (0, 0, 1, 0))
    return summed.reshape(len(x), -1, outputs) + cast(Tensor, layer.conv.bias).to(x.dtype)


def _last(activation: SnakeBeta, layer: CausalConv, x: Tensor) -> Tensor:
    length, history = x.shape[1], layer.state_shape[1]
    active = snake(x, activation.alpha, activation.beta, history, torch.float32)
    taps = F.linear(active, layer.conv.weight[0].t())  # [B, history + T, kernel]
    made = torch.stack([taps[:, k : k + length, k] for k in range(history + 1)]).sum(0)
    return made + cast(Tensor, layer.conv.bias)
