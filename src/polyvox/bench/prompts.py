"""What is said in a benchmark, in which order, and when: the same for everyone who has the same seed."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from polyvox.errors import InvalidRequest

PROMPTS = Path(__file__).parent / "prompts.txt"  # written for this; CC0

Phase = Literal["warm-up", "measured"]


@cache
def prompts(path: Path = PROMPTS) -> tuple[str, ...]:
    """The texts of a file, one in each line; by default our own."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("prompts", str(path), f"must be a UTF-8 file with one text per line: {error}") from None
    texts = tuple(line.strip() for line in lines if line.strip())
    if not texts:
        raise InvalidRequest("prompts", str(path), "must have at least one line of text")
    return texts


def fingerprint(texts: Sequence[str]) -> str:
    """By which two runs know that they said the same."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def order(count: int, seed: int, phase: Phase) -> Iterator[int]:
    """Which text comes next, for ever: all of them in an order of their own, then all again in another."""
    epoch = 0
    while True:
        keyed = sorted(range(count), key=lambda text: _digest("order", seed, phase, epoch, text))
        yield from keyed
        epoch += 1


def arrivals(rate: float, seconds: float, seed: int, phase: Phase) -> list[float]:
    """When requests are due, in seconds from the beginning of the phase: a Poisson process.

    The chances are the seed's alone: at another rate it is the same sequence, stretched or pressed together.
    """
    due: list[float] = []
    now, number = 0.0, 0
    while True:
        word = int.from_bytes(_digest("arrival", seed, phase, number)[:8])
        now -= math.log1p(-(word + 0.5) / 2**64) / rate
        if now >= seconds:
            return due
        due.append(now)
        number += 1


def request_seed(seed: int, index: int) -> int:
    """The seed that a request may be spoken with, so that two runs say everything alike."""
    return int.from_bytes(_digest("request", seed, index)[:4])


def _digest(*key: object) -> bytes:
    return hashlib.sha256("\0".join(("polyvox-bench", *map(str, key))).encode()).digest()
