# SPDX-License-Identifier: Apache-2.0
"""The codec's encoder (Mimi): the samples of a recording to frames of codes, in one call.

Strided convolutions, a causal transformer, a convolution that halves the frame rate, and two residual quantizers of the
same latent: one for the first code, one for the others. Every layer is causal, so appended samples never change an
earlier frame.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.layers.norm import LayerScale
from polyvox.models.layers.rotary import RotaryEmbedding, at_least_float32
from polyvox.models.layers.transformer import Attention
from polyvox.models.layers.transformer_config import TransformerConfig
from polyvox.models.qwen3_tts.codec import USAGE_EPS
from polyvox.models.qwen3_tts.encoder_config import LAST_STRIDE, CodecEncoderConfig


class PaddedConv(nn.Module):
    """A causal convolution with ⌈columns / stride⌉ outputs, padded with zeros or, with `edges`, with the first and last
    column."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        edges: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation, bias=bias)
        self.stride, self.edges = stride, edges
        self.before = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: Tensor) -> Tensor:
        after = -x.shape[-1] % self.stride
        return self.conv(F.pad(x, (self.before, after), "replicate" if self.edges else "constant"))


class ResidualBlock(nn.Module):
    def __init__(self, config: CodecEncoderConfig, channels: int, dilation: int) -> None:
        super().__init__()
        inner = channels // config.compress
        self.block = nn.ModuleList(
            [
                nn.ELU(),
                PaddedConv(channels, inner, config.residual_kernel, dilation=dilation),
                nn.ELU(),
                PaddedConv(inner, channels, 1),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.block:
            y = layer(y)
        return x + y


class Convolutions(nn.Module):
    """Samples [B,1,n] to columns [B,hidden,T]; T is twice the number of frames."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        channels = config.filters
        self.layers = nn.ModuleList([PaddedConv(1, channels, config.kernel)])
        for stride in config.strides:
            for i in range(config.residual_layers):
                self.layers.append(ResidualBlock(config, channels, config.dilation_growth**i))
            self.layers.extend([nn.ELU(), PaddedConv(channels, 2 * channels, 2 * stride, stride)])
            channels *= 2
        self.layers.extend([nn.ELU(), PaddedConv(channels, config.transformer.hidden_size, config.last_kernel)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class EncoderMLP(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class EncoderLayer(nn.Module):
    """The decoder's layer with LayerNorm and without a gate."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(config, qk_norm=False)
        self.mlp = EncoderMLP(config)
        self.input_layernorm = nn.LayerNorm(size, config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(size, config.norm_eps)
        self.self_attn_layer_scale = LayerScale(size)
        self.mlp_layer_scale = LayerScale(size)

    def forward(self, x: Tensor, layer: int, rotate: RotaryEmbedding) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), layer, rotate, _causal))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


def _causal(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention without a window: the reference implementation does not apply the one of its config."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


class EncoderTransformer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))

    def forward(self, x: Tensor) -> Tensor:
        """[B,T,hidden] -> [B,T,hidden], without a final norm."""
        rotate = RotaryEmbedding(torch.arange(x.shape[1], device=x.device)[None], self.config, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, index, rotate)
        return x


class EncoderCodebook(nn.Module):
    """Entries as running sums and counts of training; `initialized` is used by training only."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed_sum = nn.Parameter(torch.empty(size, dim))
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.initialized = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest entry of each row [N,dim]: its index [N] and the entry [N,dim]."""
        entries = self.embed_sum / self.cluster_usage.clamp(min=USAGE_EPS)[:, None]
        wide = at_least_float32(x.dtype)
        # The same call as the reference implementation: near a tie, other distance computations round differently.
        codes = torch.cdist(x[None].to(wide), entries[None].to(wide))[0].argmin(-1)
        return codes, F.embedding(codes, entries)


class EncoderQuantizerLayer(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.codebook = EncoderCodebook(config.codebook_size, config.codebook_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.codebook(x)


class EncoderQuantizer(nn.Module):
    """Stages that quantize the residual of the stages before; only the input projection is used here."""

    def __init__(self, config: CodecEncoderConfig, stages: int) -> None:
        super().__init__()
        hidden, dim = config.transformer.hidden_size, config.codebook_dim
        self.layers = nn.ModuleList(EncoderQuantizerLayer(config) for _ in range(stages))
        self.input_proj = nn.Conv1d(hidden, dim, 1, bias=False)
        self.output_proj = nn.Conv1d(dim, hidden, 1, bias=False)

    def forward(self, latent: Tensor, stages: int) -> Tensor:
        """Latents [B,hidden,T] to codes [B,T,stages]."""
        residual = self.input_proj(latent).transpose(1, 2)
        shape = residual.shape
        residual, codes = residual.reshape(-1, shape[-1]), []
        for layer in self.layers[:stages]:
            code, entry = layer(residual)
            residual = residual - entry
            codes.append(code)
        return torch.stack(codes, -1).view(*shape[:2], stages)


class SplitEncoderQuantizer(nn.Module):
    """The first code (semantic) and the others (acoustic) are two quantizers of one latent."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.codes = config.codes
        self.semantic_residual_vector_quantizer = EncoderQuantizer(config, 1)
        self.acoustic_residual_vector_quantizer = EncoderQuantizer(config, config.quantizers - 1)

    def forward(self, latent: Tensor) -> Tensor:
        first = self.semantic_residual_vector_quantizer(latent, 1)
        return torch.cat([first, self.acoustic_residual_vector_quantizer(latent, self.codes - 1)], -1)


class CodecEncoder(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.transformer.hidden_size
        self.encoder = Convolutions(config)
        self.encoder_transformer = EncoderTransformer(config.transformer)
        self.downsample = PaddedConv(hidden, hidden, 2 * LAST_STRIDE, LAST_STRIDE, bias=False, edges=True)
        self.quantizer = SplitEncoderQuantizer(config)

    def latents(self, samples: Tensor) -> Tensor:
        """Samples [B,n] to the latents before quantization, [B,hidden,⌈n / samples_per_frame⌉]."""
        x = self.encoder(samples[:, None])
        return self.downsample(self.encoder_transformer(x.transpose(1, 2)).transpose(1, 2))

    def forward(self, samples: Tensor) -> Tensor:
        """Samples [B,n] to codes [B, ⌈n / samples_per_frame⌉, codes]."""
        return self.quantizer(self.latents(samples))
