# SPDX-License-Identifier: Apache-2.0
"""Mel filters, and a multi-resolution distance of log-mel spectra."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.graph import side_by_side
from training.units import SAMPLE_RATE

# window, hop, mel bands
SCALES = ((2048, 480, 128), (1024, 240, 80), (512, 120, 48), (256, 60, 24))
FLOOR = 1e-3  # of a mel value


def mel_bank(size: int, bands: int) -> Tensor:
    """Triangular mel filters for an STFT of this size: [bands, size // 2 + 1]."""
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700, dtype=torch.float64))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2, dtype=torch.float64) / 2595) - 1)
    bins = torch.arange(size // 2 + 1, dtype=torch.float64) * SAMPLE_RATE / size
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0).float()


class SpectralLoss(nn.Module):
    """Mean distance of log-mel spectra of samples [B,N] in nats, averaged over scales.

    Distances of single bins are left out on purpose: where the teacher's sound is noise they cannot be learnt, and
    their gradients hide those of the envelope, on which the predicted MOS depends.
    """

    def __init__(self) -> None:
        super().__init__()
        for size, _, bands in SCALES:
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"mels_{size}", mel_bank(size, bands), persistent=False)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """`wanted` must be kept until the backward pass has ended: it runs on several streams."""
        parts = [partial(self._distance, made, wanted, size, hop) for size, hop, _ in SCALES]
        return torch.stack(side_by_side(parts, made.device)).mean()

    def _distance(self, made: Tensor, wanted: Tensor, size: int, hop: int) -> Tensor:
        a, b = (self._log_mel(samples, size, hop) for samples in (made, wanted))
        return F.l1_loss(a, b)

    def _log_mel(self, samples: Tensor, size: int, hop: int) -> Tensor:
        window, bank = getattr(self, f"window_{size}"), getattr(self, f"mels_{size}")
        spectrum = torch.stft(samples, size, hop, size, window, pad_mode="constant", return_complex=True)
        magnitudes = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
        return (bank @ magnitudes).clamp(min=FLOOR).log()
