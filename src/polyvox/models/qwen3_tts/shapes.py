"""The shape that every stack of transformer layers has."""

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
