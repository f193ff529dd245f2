# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters and seeds as rows of tensors, and the interface of sampling noise."""

from typing import Protocol

from torch import Tensor

from polyvox.models.request import Sampling


def talker_parameters(params: Sampling) -> list[float]:
    """The parameter row of the first code. Temperature 0 is greedy; top_k 0, top_p 1 and penalty 1 are off."""
    return [params.temperature, params.top_k, params.top_p, params.repetition_penalty]


def predictor_parameters(params: Sampling) -> list[float]:
    """The parameter row of the other codes, which have no repetition penalty."""
    return [params.predictor_temperature, params.predictor_top_k, params.predictor_top_p, 1.0]


def seed_words(seed: int) -> list[int]:
    """A 64-bit seed as the two 32-bit words of a key."""
    return [seed & 0xFFFFFFFF, seed >> 32]


class Noise(Protocol):
    """Gumbel noise for the codes of one frame."""

    def __call__(self, key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
        """Noise [B, count, vocab] for codebooks first to first + count - 1.

        key is [B, 2]; segment, the index of a sentence within one request, and frame are [B].
        """
