# SPDX-License-Identifier: Apache-2.0
"""Shapes of transformer stacks; without torch, so that config files can be read without it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A sparse mixture of experts with a shared expert."""

    num_experts: int
    num_chosen: int  # experts per row
    intermediate_size: int  # of one expert
    shared_size: int  # of the shared expert
    normalize: bool  # the weights of the chosen experts add up to 1


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of one stack of transformer layers. With experts, intermediate_size is not used."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    experts: ExpertsConfig | None = None


@dataclass(frozen=True, slots=True)
class CodePredictorConfig:
    """The code predictor: the codes of a frame after the first, one after the other."""

    transformer: TransformerConfig
    vocab_size: int
