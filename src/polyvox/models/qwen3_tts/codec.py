"""The codec's decoder: frames of codes to samples, exact in any chunking.

Every layer is causal, so a stream is a chain of calls, each of which takes the state that the last one gave.
The state is a plain dict of tensors with one row a stream; zeros are the state before the first frame.
Decoding in one go is the same call with all frames as one chunk.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.config import CodecConfig
from polyvox.models.qwen3_tts.transformer import Rotation, Transformer

CodecState = dict[str, Tensor]

SNAKE_EPS = 1e-9
USAGE_EPS = 1e-5
NORM_EPS = 1e-6
RESIDUAL_DILATIONS = (1, 3, 9)
CONVNEXT_WIDTH = 4


class Pass:
    """One call of the decoder: the state it was given and, entry by entry, the state it leaves behind."""

    def __init__(self, before: CodecState) -> None:
        self.before = before
        self.after: CodecState = {}


class Stateful(nn.Module):
    """A layer that remembers columns of the past under the name it has in the decoder."""

    key = ""
    state_shape: tuple[int, int] = (0, 0)  # channels, columns


class CausalConv(Stateful):
    """A convolution over the past; remembers its last input columns."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.state_shape = (inputs, (kernel - 1) * dilation)

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        history = self.state_shape[1]
        if history:
            x = torch.cat([step.before[self.key], x], dim=-1)
            step.after[self.key] = x[..., -history:].clone()
        return self.conv(x)


class CausalUpsample(Stateful):
    """A transposed convolution; remembers what its last columns add to the next ones."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        self.stride = stride
        self.state_shape = (outputs, kernel - stride)

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        overlap = self.state_shape[1]
        if not overlap:
            return self.conv(x)
        y = F.conv_transpose1d(x, self.conv.weight, None, self.stride)
        y[..., :overlap] += step.before[self.key]
        step.after[self.key] = y[..., -overlap:].clone()
        assert self.conv.bias is not None
        return y[..., :-overlap] + self.conv.bias[:, None]


class SnakeBeta(nn.Module):
    """x + sin²(e^alpha · x) / e^beta, a channel at a time; the file holds the logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 / (self.beta.exp() + SNAKE_EPS)
        return x + scale[:, None] * torch.sin(x * self.alpha.exp()[:, None]).square()


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(channels, CONVNEXT_WIDTH * channels)
        self.pwconv2 = nn.Linear(CONVNEXT_WIDTH * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        y = self.norm(self.dwconv(x, step).transpose(1, 2))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x), step)), step)


class UpsampleBlock(nn.Module):
    """Half the channels, `rate` times the columns, and three residual units."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        self.block = nn.ModuleList([SnakeBeta(channels), CausalUpsample(channels, half, 2 * rate, rate)])
        self.block.extend(ResidualUnit(half, dilation) for dilation in RESIDUAL_DILATIONS)

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        snake, *rest = self.block
        x = snake(x)
        for layer in rest:
            x = layer(x, step)
        return x


class Codebook(nn.Module):
    """Entries as the sums and counts that training kept; an entry is their quotient."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embedding_sum = nn.Parameter(torch.empty(size, dim))
        self.cluster_usage = nn.Parameter(torch.empty(size))

    def forward(self, codes: Tensor) -> Tensor:
        usage = self.cluster_usage[codes].clamp(min=USAGE_EPS)
        return F.embedding(codes, self.embedding_sum) / usage[..., None]


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
    """Codebooks whose entries add up, and the projections in and out; only the second is used here."""

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


class SplitQuantizer(nn.Module):
    """Code 0 has a quantizer of its own; the others share one."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(config, 1)
        self.rvq_rest = ResidualQuantizer(config, config.quantizers - 1)

    def forward(self, codes: Tensor) -> Tensor:
        return self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])


class PreTransformer(Transformer):
    """Attention over the last `window` frames, with the keys and values of the past in the state."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config.transformer, qk_norm=False, layer_scale=True)
        self.config = config.transformer
        self.past = config.window - 1
        self.input_proj = nn.Linear(config.latent_dim, config.transformer.hidden_size)
        self.output_proj = nn.Linear(config.transformer.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        """[B,T,latent] -> [B,T,latent]"""
        columns = torch.arange(x.shape[1], device=x.device)
        positions = step.before["position"][:, None] + columns
        step.after["position"] = positions[:, -1] + 1
        rotate = Rotation(positions, self.config, x.dtype)
        return self.output_proj(self.run(self.input_proj(x), rotate, self._attend(positions, step)))

    def _attend(self, positions: Tensor, step: Pass) -> Attend:
        first = positions[:, :1] - self.past
        keys_at = first + torch.arange(self.past + positions.shape[1], device=positions.device)
        age = positions[:, :, None] - keys_at[:, None, :]
        seen = ((age >= 0) & (age <= self.past) & (keys_at >= 0)[:, None, :])[:, None]
        # [B, layers, heads, past, head_dim], the oldest column first
        step.after["keys"] = torch.empty_like(step.before["keys"])
        step.after["values"] = torch.empty_like(step.before["values"])

        def remember(name: str, layer: int, new: Tensor) -> Tensor:
            full = torch.cat([step.before[name][:, layer], new.transpose(1, 2)], dim=2)
            step.after[name][:, layer] = full[:, :, full.shape[2] - self.past :]
            return full

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = remember("keys", layer, k), remember("values", layer, v)
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=seen, enable_gqa=True
            ).transpose(1, 2)

        return attend


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

    def initial_state(self, batch: int) -> CodecState:
        """The state of streams that have not begun."""
        like = self.pre_conv.conv.weight
        state = {
            module.key: like.new_zeros(batch, *module.state_shape)
            for module in self.modules()
            if isinstance(module, Stateful) and module.state_shape[1]
        }
        shape = self.config.transformer
        past = (batch, shape.layers, shape.kv_heads, self.config.window - 1, shape.head_dim)
        state["keys"], state["values"] = like.new_zeros(past), like.new_zeros(past)
        state["position"] = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return state

    def forward(self, codes: Tensor, state: CodecState) -> tuple[Tensor, CodecState]:
        """The next frames [B,T,quantizers] of each stream to samples [B, T · samples_per_frame] in [-1, 1]."""
        return self.sound(self.quantizer(codes), state)

    def sound(self, x: Tensor, state: CodecState) -> tuple[Tensor, CodecState]:
        """The same from what the codes stand for, [B,codebook_dim,T]; training goes through here."""
        step = Pass(state)
        x = self.pre_conv(x, step)
        x = self.pre_transformer(x.transpose(1, 2), step).transpose(1, 2)
        for stage in self.upsample:
            for layer in cast(nn.ModuleList, stage):
                x = layer(x, step)
        first, *blocks, snake, last = self.decoder
        x = first(x, step)
        for block in blocks:
            x = block(x, step)
        x = last(snake(x), step)
        return x.squeeze(1).clamp(-1, 1), step.after
