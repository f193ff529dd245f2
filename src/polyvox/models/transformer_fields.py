# SPDX-License-Identifier: Apache-2.0
"""Reads the shape of a transformer from a section of a config file."""

from polyvox.models.config_fields import ConfigFields
from polyvox.models.layers.transformer_config import TransformerConfig


def parse_transformer(fields: ConfigFields) -> TransformerConfig:
    """The shape of a stack of layers; raises CheckpointError for an activation or a bias that is not supported."""
    fields.expect("hidden_act", "silu")
    fields.expect("attention_bias", False)
    heads, kv_heads = fields.size("num_attention_heads"), fields.size("num_key_value_heads")
    if heads % kv_heads:
        raise fields.unsupported("num_key_value_heads", kv_heads, f"a divisor of the {heads} attention heads")
    head_dim = fields.size("head_dim", default=fields.size("hidden_size") // heads)
    if head_dim % 2:
        raise fields.unsupported("head_dim", head_dim, "an even number")
    return TransformerConfig(
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
    )


def check_full_attention(fields: ConfigFields) -> None:
    """Raises unless attention is causal without a window, with default rotary positions."""
    if fields.flag("use_sliding_window", False):
        fields.expect("sliding_window", None)
    layers = fields.values.get("layer_types")
    if layers is not None and layers != ["full_attention"] * fields.size("num_hidden_layers"):
        raise fields.unsupported("layer_types", layers, '"full_attention" for every layer')
    for name in ("rope_scaling", "rope_parameters"):
        if fields.has(name):
            # Positions are equal on all three axes, so multi-axis RoPE is plain RoPE.
            fields.section(name).expect("rope_type", "default")


def _rope_theta(fields: ConfigFields) -> float:
    """Files of transformers 5 have it in rope_parameters."""
    if fields.has("rope_theta") or not fields.has("rope_parameters"):
        return fields.number("rope_theta")
    return fields.section("rope_parameters").number("rope_theta")
