# SPDX-License-Identifier: Apache-2.0
"""Multi-resolution spectral loss on magnitudes, without phase."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.units import SAMPLE_RATE

# window, hop, mel bands
SCALES = ((2048, 480, 128), (1024, 240, 80), (512, 120, 48), (256, 60, 24))


def mel_bank(size: int, bands: int) -> Tensor:
    """Triangular mel filters for an STFT of this size: [bands, size // 2 + 1]."""
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700, dtype=torch.float64))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2, dtype=torch.float64) / 2595) - 1)
    bins = torch.arange(size // 2 + 1, dtype=torch.float64) * SAMPLE_RATE / size
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0).float()


class SpectralLoss(nn.Module):
    """Log-mel distance, log-magnitude distance and spectral convergence, averaged over scales."""

    def __init__(self) -> None:
        super().__init__()
        for size, _, bands in SCALES:
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"mels_{size}", mel_bank(size, bands), persistent=False)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """The loss between samples [B,N]."""
        total = made.new_zeros(())
        for size, hop, _ in SCALES:
            a, b = (self._magnitudes(x, size, hop) for x in (made, wanted))
            bank = getattr(self, f"mels_{size}")
            total = total + F.l1_loss((bank @ a).clamp(min=1e-3).log(), (bank @ b).clamp(min=1e-3).log())
            total = total + 0.5 * F.l1_loss((a + 1e-2).log(), (b + 1e-2).log())
            total = total + 0.5 * (b - a).norm() / (b.norm() + 1e-3)
        return total / len(SCALES)

    def _magnitudes(self, samples: Tensor, size: int, hop: int) -> Tensor:
        spectrum = torch.stft(
            samples, size, hop, size, getattr(self, f"window_{size}"), pad_mode="constant", return_complex=True
        )
        return (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
