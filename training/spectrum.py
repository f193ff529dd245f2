# SPDX-License-Identifier: Apache-2.0
"""Multi-resolution spectral losses, on magnitudes and on complex values."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.units import SAMPLE_RATE

# window, hop, mel bands
SCALES = ((2048, 480, 128), (1024, 240, 80), (512, 120, 48), (256, 60, 24))

PHASE_LIMIT = 800  # Hz; above, the phase of the teacher's harmonics cannot be predicted from the codes


def mel_bank(size: int, bands: int) -> Tensor:
    """Triangular mel filters for an STFT of this size: [bands, size // 2 + 1]."""
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700, dtype=torch.float64))
    edges = 700 * (10 ** (torch.linspace(0, float(top), bands + 2, dtype=torch.float64) / 2595) - 1)
    bins = torch.arange(size // 2 + 1, dtype=torch.float64) * SAMPLE_RATE / size
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0).float()


class SpectralLoss(nn.Module):
    """Distances of short-time spectra, averaged over scales."""

    def __init__(self) -> None:
        super().__init__()
        for size, _, bands in SCALES:
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"mels_{size}", mel_bank(size, bands), persistent=False)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Log-mel distance, log-magnitude distance and spectral convergence between samples [B,N], without phase."""
        return self.both(made, wanted)[0]

    def both(self, made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The distance without phase, and the relative distance of complex values at low frequencies."""
        plain, waves = made.new_zeros(()), made.new_zeros(())
        for size, hop, _ in SCALES:
            x, y = (self._spectrum(samples, size, hop) for samples in (made, wanted))
            a, b = _magnitudes(x), _magnitudes(y)
            bank = getattr(self, f"mels_{size}")
            plain = plain + F.l1_loss((bank @ a).clamp(min=1e-3).log(), (bank @ b).clamp(min=1e-3).log())
            plain = plain + 0.5 * F.l1_loss((a + 1e-2).log(), (b + 1e-2).log())
            plain = plain + 0.5 * (b - a).norm() / (b.norm() + 1e-3)
            low = math.ceil(PHASE_LIMIT * size / SAMPLE_RATE)
            waves = waves + _magnitudes(x[:, :low] - y[:, :low]).mean() / (b[:, :low].mean() + 1e-3)
        return plain / len(SCALES), waves / len(SCALES)

    def _spectrum(self, samples: Tensor, size: int, hop: int) -> Tensor:
        window = getattr(self, f"window_{size}")
        return torch.stft(samples, size, hop, size, window, pad_mode="constant", return_complex=True)


def _magnitudes(spectrum: Tensor) -> Tensor:
    return (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
