# SPDX-License-Identifier: Apache-2.0
"""The shape of a codec's convolutional decoder; without torch, so that config files can be read without it."""

from dataclasses import dataclass
from math import prod

from polyvox.models.layers.transformer_config import TransformerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvDecoderConfig:
    """A decoder from frames of features to samples."""

    transformer: TransformerConfig
    latent_dim: int
    decoder_dim: int
    window: int
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    sample_rate: int
    codebook_size: int
    quantizers: int

    @property
    def samples_per_frame(self) -> int:
        return prod(self.upsampling_ratios) * prod(self.upsample_rates)
