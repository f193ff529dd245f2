# SPDX-License-Identifier: Apache-2.0
"""Guided attention: one head learns to attend to the text token that is spoken next.

The alignment of frames and text is known from the teacher's durations. Without a guide, the talker needs thousands of
steps until a head follows the text. The guide is a loss in training only; the model is unchanged.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from training.batches import IGNORED
from training.losses import causal

LAYER_SHARE = 0.5  # the guided layer: this share of all layers is before it


class GuidedAttention:
    """Causal attention that keeps the guide's loss of one pass."""

    def __init__(self, layers: int, spoken_row: Tensor) -> None:
        self._layer, self._spoken_row = int(LAYER_SHARE * layers), spoken_row
        self.loss = torch.zeros((), device=spoken_row.device)
        self.right = torch.zeros((), device=spoken_row.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == self._layer:
            self.loss, self.right = guide_loss(q, k, self._spoken_row)
        return causal(layer, q, k, v)


def guide_loss(q: Tensor, k: Tensor, spoken_row: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and accuracy of the attention of head 0; q and k [B,L,heads,dim].

    spoken_row [B,L] is the row that each row should attend to, IGNORED for rows without one.
    """
    scores = (q[:, :, 0] @ k[:, :, 0].transpose(1, 2)).float() * q.shape[-1] ** -0.5
    length = scores.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf).flatten(0, 1)
    target = spoken_row.flatten()
    right = (scores.argmax(-1) == target).sum() / (target != IGNORED).sum()
    return F.cross_entropy(scores, target, ignore_index=IGNORED), right
