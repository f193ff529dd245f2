# SPDX-License-Identifier: Apache-2.0
"""Multi-period and multi-resolution STFT discriminators."""

import itertools
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.graph import side_by_side

PERIODS = (2, 3, 5, 7, 11)
RESOLUTIONS = (2048, 1024, 512)
WIDTH = 32  # channels of a layer for spectrograms
LEAK = 0.1

DiscriminatorOutput = tuple[Tensor, list[Tensor]]  # scores, and the feature maps of all layers


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        sizes = (1, 24, 64, 160, 256)
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0)) for a, b in itertools.pairwise(sizes)
        )
        self.last = nn.Conv2d(sizes[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, samples: Tensor) -> DiscriminatorOutput:
        x = F.pad(samples, (0, -samples.shape[1] % self.period)).unflatten(1, (-1, self.period))[:, None]
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), LEAK)
            features.append(x)
        return self.last(x), features


class SpectrogramDiscriminator(nn.Module):
    window: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList([nn.Conv2d(2, WIDTH, (3, 9), (1, 2), padding=(1, 4))])
        for dilation in (1, 2, 4):
            padding = (dilation, 4)
            self.layers.append(nn.Conv2d(WIDTH, WIDTH, (3, 9), (1, 2), padding=padding, dilation=(dilation, 1)))
        self.layers.append(nn.Conv2d(WIDTH, WIDTH, 3, padding=1))
        self.last = nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, samples: Tensor) -> DiscriminatorOutput:
        with torch.autocast(samples.device.type, enabled=False):
            spectrum = torch.stft(
                samples, self.size, self.size // 4, self.size, self.window, pad_mode="constant", return_complex=True
            )
            parts = torch.stack([spectrum.real, spectrum.imag], 1).transpose(2, 3)
            x = parts.sign() * parts.abs().clamp(min=1e-6).sqrt()
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), LEAK)
            features.append(x)
        return self.last(x), features


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList([PeriodDiscriminator(period) for period in PERIODS])
        self.all.extend(SpectrogramDiscriminator(size) for size in RESOLUTIONS)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def losses(self, samples: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """Least-squares discriminator loss on [2B,N] samples, and the features of the first half, the real ones.

        `samples` must be kept until the backward pass has ended: it runs on several streams.
        """
        found = side_by_side([partial(_own_loss, one, samples) for one in self.all], samples.device)
        return torch.stack([loss for loss, _ in found]).mean(), [features for _, features in found]

    def generator_losses(self, targets: list[list[Tensor]], made: Tensor) -> tuple[Tensor, Tensor]:
        """The generator's adversarial loss and its distance to the features of the real samples."""
        pairs = zip(self.all, targets, strict=True)
        found = side_by_side([partial(_generator_loss, one, wanted, made) for one, wanted in pairs], made.device)
        adversarial, matching = (torch.stack(terms).mean() for terms in zip(*found, strict=True))
        return adversarial, matching


def _own_loss(discriminator: nn.Module, samples: Tensor) -> tuple[Tensor, list[Tensor]]:
    count = len(samples) // 2
    score, features = discriminator(samples)
    loss = (1 - score[:count].float()).square().mean() + score[count:].float().square().mean()
    return loss, [one[:count].detach() for one in features]


def _generator_loss(discriminator: nn.Module, wanted: list[Tensor], made: Tensor) -> tuple[Tensor, Tensor]:
    score, features = discriminator(made)
    distances = [
        (a.float() - b.float()).abs().mean() / (a.float().abs().mean() + 1e-3)
        for a, b in zip(wanted, features, strict=True)
    ]
    return (1 - score.float()).square().mean(), torch.stack(distances).mean()
