"""What a draw depends on: a request's parameters and seed as rows of tensors, and where its noise comes from."""

from typing import Protocol

import torch
from torch import Tensor

from polyvox.models.request import Sampling


def talker_parameters(params: Sampling) -> list[float]:
    """One row of parameters for code 0. Temperature 0 is greedy; top_k 0, top_p 1 and penalty 1 are off."""
    return [params.temperature, params.top_k, params.top_p, params.repetition_penalty]


def predictor_parameters(params: Sampling) -> list[float]:
    """The same for the other codes, which have no repetition penalty."""
    return [params.predictor_temperature, params.predictor_top_k, params.predictor_top_p, 1.0]


def seed_words(seed: int) -> list[int]:
    """A seed of 64 bits as the two words of a key."""
    return [seed & 0xFFFFFFFF, seed >> 32]


class Noise(Protocol):
    """Gumbel noise for the draws of one frame."""

    def __call__(self, key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
        """For codebooks first to first + count - 1 of each row's frame: [B, count, vocab].

        key is [B, 2]; segment, which tells apart the sentences of one request, and frame are [B].
        """


class GeneratorNoise:
    """The draws of the reference, in its order, from one torch generator and for one stream.

    torch.multinomial is a race of exponentials: argmax(p / e), which is argmax(log p - log e).
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:  # noqa: ARG002
        if len(frame) != 1:
            raise ValueError("the reference's generator draws for one stream at a time")
        draws = [torch.empty(1, vocab).exponential_(generator=self.generator) for _ in range(count)]
        return -torch.stack(draws, dim=1).log().to(frame.device)
