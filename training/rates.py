"""Errors per word over many sentences, and how far chance may move them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyvox.bench.wer import WordErrors


@dataclass(frozen=True, slots=True)
class Rate:
    """Errors per word, and by how much chance may move it: one standard error over sentences."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} ± {100 * self.error:.1f} %"


def rate_of(found: Sequence[WordErrors]) -> Rate:
    """Over many sentences."""
    return ratio([one.errors for one in found], [one.words for one in found])


def difference(found: Sequence[WordErrors], base: Sequence[WordErrors]) -> Rate:
    """How many more errors per word than `base` has on the same sentences; what is hard for both is no noise here."""
    more = [one.errors - other.errors for one, other in zip(found, base, strict=True)]
    return ratio(more, [one.words for one in found])


def ratio(values: Sequence[float], words: Sequence[int]) -> Rate:
    """So much of something per word, from what sentences have of both."""
    count, value = len(values), sum(values) / sum(words)
    squares = sum((one - value * size) ** 2 for one, size in zip(values, words, strict=True))
    return Rate(value, math.sqrt(squares * count / max(1, count - 1)) / sum(words))
