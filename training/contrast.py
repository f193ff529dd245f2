# SPDX-License-Identifier: Apache-2.0
"""Contrast over frequency: the decoder's convolutional layers sharpen the log-mel features that they read.

Codes do not determine the sound, and the mean of all sounds that they may stand for has a flatter spectrum than each of
them: bands differ less from their neighbours. So the convolutional layers are to read features of codes as if these
had more contrast. Sharpening is linear, so the first convolution can contain it, and the checkpoint has no additional
layer: in training, the layers read flattened features of the teacher's audio.
"""

import torch
from torch import Tensor, nn

from training.features import MELS

GAIN = 1.4  # of the difference of a band to the mean of its neighbours
NEIGHBOURS = 3  # bands on each side


def sharpening() -> Tensor:
    """The matrix [MELS,MELS] that sharpens a column of log-mel values."""
    around = (torch.arange(MELS)[:, None] + torch.arange(-NEIGHBOURS, NEIGHBOURS + 1)).clamp(0, MELS - 1)
    mean = nn.functional.one_hot(around, MELS).double().mean(1)
    return GAIN * torch.eye(MELS, dtype=torch.float64) + (1 - GAIN) * mean


class Flattening(nn.Module):
    """Acoustic features [B,channels,columns], whose last channels are log-mel values, with less contrast.

    Layers that sharpen what they read then read the features that are given here.
    """

    matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.linalg.inv(sharpening()).float(), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features[:, :-MELS], self.matrix @ features[:, -MELS:]], 1)
