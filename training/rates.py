# SPDX-License-Identifier: Apache-2.0
"""Word error rates with standard errors over sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyvox.bench.wer import WordErrors


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """Errors per word and one standard error over sentences."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} ± {100 * self.error:.1f} %"


def error_rate(found: Sequence[WordErrors]) -> ErrorRate:
    """The error rate over all sentences."""
    return ratio([one.errors for one in found], [one.words for one in found])


def difference(found: Sequence[WordErrors], base: Sequence[WordErrors]) -> ErrorRate:
    """Difference to `base` on the same sentences; errors common to both cancel in the standard error."""
    more = [one.errors - other.errors for one, other in zip(found, base, strict=True)]
    return ratio(more, [one.words for one in found])


def ratio(values: Sequence[float], words: Sequence[int]) -> ErrorRate:
    """The ratio of two sums over sentences, with its standard error."""
    count, value = len(values), sum(values) / sum(words)
    squares = sum((one - value * size) ** 2 for one, size in zip(values, words, strict=True))
    return ErrorRate(value, math.sqrt(squares * count / max(1, count - 1)) / sum(words))
