# SPDX-License-Identifier: Apache-2.0
"""One adversarial step: the discriminators learn, and the decoder's output receives balanced gradients.

The gradients of the losses with respect to the samples are scaled to fixed shares of the spectral one before they pass
through the decoder, as in EnCodec. The shares do not depend on the scales of the losses.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.discriminators import Discriminators
from training.graph import half_precision
from training.optimizer import adam, set_learning_rate
from training.spectrum import SpectralLoss

DISCRIMINATOR_RATE = 3e-4
MATCHING = 2.0  # weight of feature matching relative to the adversarial loss
SHARES = {"spectral": (1.0, 1.0), "adversarial": (0.5, 1.5)}  # of the gradients at the start and at the end of training
DECAY = 0.99  # of the running gradient norms


class AdversarialLoss:
    """Discriminators with their optimizer, the spectral loss and the balance of all gradients."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.discriminators = Discriminators().to(device)
        self.spectral = SpectralLoss().to(device)
        self.optimizer = adam(self.discriminators.parameters(), DISCRIMINATOR_RATE, device)
        self.shares = {name: torch.zeros((), device=device) for name in SHARES}
        self.norms = {name: torch.zeros((), device=device) for name in SHARES}
        names = (*SHARES, "matching", "discriminators")
        self.seen = {name: torch.zeros((), device=device) for name in names}

    def schedule(self, rate: float, part: float, rise: float) -> None:
        """Set the learning rate, as a factor, and the shares at this part of the training.

        rise: factor of the adversarial share, which is zero before the discriminators start.
        """
        set_learning_rate(self.optimizer, DISCRIMINATOR_RATE * rate)
        for name, (first, last) in SHARES.items():
            share = first + part * (last - first)
            self.shares[name].fill_(share * rise if name == "adversarial" else share)

    def gradient(
        self, made: Tensor, target: Tensor, adversarial: bool = True, spectral_factors: Tensor | None = None
    ) -> Tensor:
        """Train the discriminators on [B,N] samples and return the balanced gradient with respect to `made`.

        spectral_factors [B]: of the spectral gradient of each segment, by default 1.
        """
        leaf = made.detach().requires_grad_()
        losses = {"spectral": self.spectral(leaf, target)}
        if adversarial:
            features = self._discriminate(torch.cat([target, leaf.detach()]))
            with half_precision(self.device):
                self.discriminators.requires_grad_(False)
                score, matching = self.discriminators.generator_losses(features, leaf)
            losses["adversarial"] = score + MATCHING * matching
            self.seen["matching"].copy_(matching.detach())
        total = torch.zeros_like(leaf)
        for name, loss in losses.items():
            (slope,) = torch.autograd.grad(loss, leaf)
            norm, running = slope.norm(), self.norms[name]
            running.copy_(torch.where(running > 0, torch.lerp(norm, running, DECAY), norm))
            slope = slope * (self.shares[name] * self.norms["spectral"] / (running + 1e-12))
            if spectral_factors is not None and name == "spectral":
                slope = spectral_factors[:, None] * slope
            total += slope
            self.seen[name].copy_(loss.detach())
        return total

    def _discriminate(self, samples: Tensor) -> list[list[Tensor]]:
        """Train the discriminators on real samples and as many made ones; the features of the real ones."""
        with half_precision(self.device):
            self.discriminators.requires_grad_(True)
            self.optimizer.zero_grad(set_to_none=True)
            loss, features = self.discriminators.losses(samples)
        loss.backward()
        nn.utils.clip_grad_norm_(self.discriminators.parameters(), 5.0)
        self.optimizer.step()
        self.seen["discriminators"].copy_(loss.detach())
        return features

    def restart(self) -> None:
        """Forget the running gradient norms."""
        for norm in self.norms.values():
            norm.zero_()

    def values(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self.seen.items() if float(value)}
