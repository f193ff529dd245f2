# SPDX-License-Identifier: Apache-2.0
"""The codec's decoder: the sum of codebook entries of each frame, then the convolutional decoder (conv_decoder.py).

Codebook entries stay float32 when the layers are narrower.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.code_sum import sum_codes
from polyvox.models.layers.conv_decoder import ConvDecoder, WindowTransformer
from polyvox.models.layers.conv_layers import CausalConv
from polyvox.models.layers.decoder_pass import DecoderPass, DecoderState
from polyvox.models.layers.weight_cache import WeightCache
from polyvox.models.qwen3_tts.config import CodecConfig

USAGE_EPS = 1e-5


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

    def forward(self, codes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """[B,T,quantizers] -> [B,codebook_dim,T], in this type where kernels run."""
        weight = self.rvq_rest.output_proj.weight
        if kernels.active(weight):
            # One look-up instead of sixteen look-ups and two projections: 64 MB at the published size.
            table = self._table.get(self._projected, *self.parameters())
            return sum_codes(table.flatten(0, 1), codes, dtype or table.dtype).transpose(1, 2)
        return self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])

    def _projected(self) -> Tensor:
        return torch.cat([self.rvq_first.projected(), self.rvq_rest.projected()])


class PreTransformer(WindowTransformer):
    """The transformer between projections from and to the width of the convolutions."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config)
        self.input_proj = nn.Linear(config.latent_dim, config.transformer.hidden_size)
        self.output_proj = nn.Linear(config.transformer.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, step: DecoderPass) -> Tensor:
        """[B,T,latent] -> [B,T,latent]"""
        return self.output_proj(super().forward(self.input_proj(x), step))


class CodecDecoder(ConvDecoder):
    wide_part = "quantizer"

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config, PreTransformer(config))
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, config.latent_dim, 3)
        self.name_states()

    def forward(self, codes: Tensor, state: DecoderState, slots: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        return self.sound(self.quantizer(codes, self.dtype), state, slots)

    def sound(self, x: Tensor, state: DecoderState, slots: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        """The same from the sums of codebook entries, [B,codebook_dim,T]; used in training."""
        x = x.to(self.dtype)
        step = self.start(x, state, slots)
        x = self.pre_conv(x, step)
        x = self.pre_transformer(x.transpose(1, 2), step).transpose(1, 2)
        return self.samples(x, step), step.after
