# SPDX-License-Identifier: Apache-2.0
"""Estimates over sentences with their standard errors: word error rates, differences and means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyvox.bench.wer import WordErrors


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio or mean over sentences, and its standard error."""

    value: float
    error: float

    @property
    def percent(self) -> str:
        return f"{100 * self.value:.1f} ± {100 * self.error:.1f} %"


def error_rate(found: Sequence[WordErrors]) -> Estimate:
    """The error rate over all sentences."""
    return ratio([one.errors for one in found], [one.words for one in found])


def difference(found: Sequence[WordErrors], base: Sequence[WordErrors]) -> Estimate:
    """Difference to `base` on the same sentences; errors common to both cancel in the standard error."""
    more = [one.errors - other.errors for one, other in zip(found, base, strict=True)]
    return ratio(more, [one.words for one in found])


def ratio(values: Sequence[float], words: Sequence[int]) -> Estimate:
    """The ratio of two sums over sentences, with its standard error."""
    count, value = len(values), sum(values) / sum(words)
    squares = sum((one - value * size) ** 2 for one, size in zip(values, words, strict=True))
    return Estimate(value, math.sqrt(squares * count / max(1, count - 1)) / sum(words))
