# SPDX-License-Identifier: Apache-2.0
"""Shapes of transformer stacks; without torch, so that config files can be read without it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of one stack of transformer layers."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class CodePredictorConfig:
    """The code predictor: the codes of a frame after the first, one after the other."""

    transformer: TransformerConfig
    vocab_size: int
