# SPDX-License-Identifier: Apache-2.0
"""Recovery from divergence: training returns to earlier weights and continues at half of the learning rate."""

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_RATIO = 1.6  # of the validation distance to the best one; training has diverged above it
NUM_KEPT = 2  # copies of the weights; the newest may already be damaged when divergence is seen
RATE_FACTOR = 0.5
MIN_RATE_FACTOR = 0.5**6  # training that diverges again at this rate has failed


class Recovery:
    """Copies of the weights at the last validations, and the factor of the learning rate."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        """weights: they receive the kept values in place, so a captured step can continue with them."""
        self._weights = weights
        self._kept: deque[list[Tensor]] = deque(maxlen=NUM_KEPT)
        self.best = math.inf
        self.rate_factor = 1.0

    @torch.no_grad()
    def has_diverged(self, distance: float) -> bool:
        """Keep the weights that have this validation distance, or restore the oldest kept ones if it is too high."""
        if distance <= MAX_RATIO * self.best and math.isfinite(distance):
            self.best = min(self.best, distance)
            self._kept.append([weight.detach().clone() for weight in self._weights])
            return False
        if not self._kept:
            raise RuntimeError(f"Training has no valid start: its validation distance is {distance}.")
        if self.rate_factor <= MIN_RATE_FACTOR:
            raise RuntimeError(f"Training diverges even at {self.rate_factor} of the learning rate.")
        while len(self._kept) > 1:
            self._kept.pop()
        for weight, kept in zip(self._weights, self._kept[0], strict=True):
            weight.copy_(kept)
        self.rate_factor *= RATE_FACTOR
        return True
