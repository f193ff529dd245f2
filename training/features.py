# SPDX-License-Identifier: Apache-2.0
"""Acoustic features: what the convolutional layers of the decoder read, in columns of 10 ms.

The first channels of the decoder's latents have a fixed meaning: the phasor of the harmonic source (oscillator.py), its
pitch and voice, and a log-mel spectrum. These layers are therefore a vocoder, which can be trained on the features of
the teacher's audio before there are codes, and the layers before them can be trained without audio. The other channels
are free, and these layers do not read them.
"""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.layers.conv_layers import CausalConv
from polyvox.models.qwen3_tts.codec import CodecDecoder
from training.layout import decoder_config
from training.oscillator import column_phasors
from training.source import source_table
from training.spectrum import mel_bank
from training.units import FRAME

COLUMNS = prod(decoder_config()["upsampling_ratios"])  # of a frame
COLUMN = FRAME // COLUMNS  # samples
# A short window and wide bands do not resolve harmonics, which the codes would have to carry twice: they follow from
# the source. Codes smooth them out, and a vocoder that reads them instead of the source then has none.
MELS, MEL_SIZE = 40, 512
FLOOR = 1e-3
MEAN, SCALE = -1.0, 2.0  # of log-mel values
SOURCE = 4.0  # weight of the source's channels, whose errors are multiplied with the harmonic's number
BETA = 0.3  # of the Huber loss on log-mel values


class LogMel(nn.Module):
    """Log-mel spectra [B,MELS,columns] of samples [B,N]; a window is centred at the end of its column."""

    bank: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", mel_bank(MEL_SIZE, MELS), persistent=False)
        self.register_buffer("window", torch.hann_window(MEL_SIZE), persistent=False)

    @torch.no_grad()
    def forward(self, samples: Tensor) -> Tensor:
        padded = F.pad(samples, (MEL_SIZE // 2 - COLUMN, MEL_SIZE // 2))
        spectrum = torch.stft(padded, MEL_SIZE, COLUMN, MEL_SIZE, self.window, center=False, return_complex=True)
        return ((self.bank @ spectrum.abs()).clamp(min=FLOOR).log() - MEAN) / SCALE


class AcousticFeatures(nn.Module):
    """The features of a segment, [B,channels,columns], from its log-mel spectrum and its source codes [B,T]."""

    source: Tensor

    def __init__(self) -> None:
        super().__init__()
        phasors = column_phasors(COLUMN)  # [codes, COLUMNS, width]
        table = source_table()[:, None].expand(-1, COLUMNS, -1)
        self.register_buffer("source", torch.cat([phasors, table], 2), persistent=False)
        self.num_source = self.source.shape[2]
        self.num_channels = self.num_source + MELS

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        return torch.cat([self.source[source].flatten(1, 2).transpose(1, 2), mel], 1)

    def distances(self, made: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Mean distance of log-mel values in nats, and relative distance of the source's channels."""
        source = made[:, : self.num_source] - wanted[:, : self.num_source]
        mel = made[:, self.num_source : self.num_channels] - wanted[:, self.num_source :]
        return {
            "mel": SCALE * mel.abs().mean(),
            "source": source.norm() / wanted[:, : self.num_source].norm(),
        }

    def loss(self, made: Tensor, wanted: Tensor) -> Tensor:
        """made may have further channels."""
        source, mel = made[:, : self.num_source], made[:, self.num_source : self.num_channels]
        exact = F.mse_loss(source, wanted[:, : self.num_source])
        return SOURCE * exact + F.smooth_l1_loss(mel, wanted[:, self.num_source :], beta=BETA)


@torch.no_grad()
def ignore_free_channels(decoder: CodecDecoder, num_channels: int) -> None:
    """The first convolution does not read the channels that have no fixed meaning."""
    first = decoder.decoder[0]
    assert isinstance(first, CausalConv)
    first.conv.weight[:, num_channels:] = 0
