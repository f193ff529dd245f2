# SPDX-License-Identifier: Apache-2.0
"""The texts of a benchmark, their order and their arrival times: the same for equal seeds."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from polyvox.errors import InvalidRequest

DEFAULT_PROMPTS = Path(__file__).parent / "prompts.txt"  # written for this benchmark; CC0

Phase = Literal["warm-up", "measured"]


@cache
def prompts(path: Path = DEFAULT_PROMPTS) -> tuple[str, ...]:
    """The texts of a file, one per line; by default the built-in set."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("prompts", str(path), f"must be a UTF-8 file with one text per line: {error}") from None
    texts = tuple(line.strip() for line in lines if line.strip())
    if not texts:
        raise InvalidRequest("prompts", str(path), "must have at least one line of text")
    return texts


def fingerprint(texts: Sequence[str]) -> str:
    """Identifies a prompt set: two runs with equal fingerprints used the same texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def prompt_order(count: int, seed: int, phase: Phase) -> Iterator[int]:
    """An endless sequence of text indices: all texts in random order, then all again in another order."""
    epoch = 0
    while True:
        yield from sorted(range(count), key=lambda text: _digest("order", seed, phase, epoch, text))
        epoch += 1


def poisson_arrivals(
    rate: float, seconds: float, seed: int, phase: Phase, num_arrivals: int | None = None
) -> list[float]:
    """Arrival times, in seconds from the start of the phase, of a Poisson process.

    The random numbers depend on the seed alone, so another rate gives the same sequence on another time scale.
    """
    due: list[float] = []
    now, number = 0.0, 0
    while len(due) != num_arrivals:
        word = int.from_bytes(_digest("arrival", seed, phase, number)[:8])
        now -= math.log1p(-(word + 0.5) / 2**64) / rate
        if now >= seconds:
            break
        due.append(now)
        number += 1
    return due


def request_seed(seed: int, index: int) -> int:
    """The sampling seed of one request, the same in every run with this seed."""
    return int.from_bytes(_digest("request", seed, index)[:4])


def _digest(*key: object) -> bytes:
    return hashlib.sha256("\0".join(("polyvox-bench", *map(str, key))).encode()).digest()
