# SPDX-License-Identifier: Apache-2.0
"""The shape of a talker; without torch, so that config files can be read without it."""

from dataclasses import dataclass

from polyvox.models.layers.transformer_config import TransformerConfig

# The last 1,024 ids of a talker's vocabulary are control ids; of these only end of speech may be sampled.
CONTROL_IDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerShape:
    """A talker: text in, code 0 of each frame out."""

    transformer: TransformerConfig
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    projection_size: int  # inner width of the text projection
    code_groups: int
    max_positions: int
    eos_id: int
    # Rotary positions of images and video have three axes: the axis of each pair of dimensions of a head.
    rotary_axes: tuple[int, ...] | None = None
