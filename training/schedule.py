"""Runs that end by the clock: the learning rate as a function of the time gone, and a log of what was seen."""

import json
import math
import time
from pathlib import Path

WARM_UP_STEPS = 200


class Clock:
    """How much of a run's time has gone, those before it counted in."""

    def __init__(self, minutes: float, before: float = 0.0) -> None:
        self.total = 60 * minutes
        self._began = time.monotonic() - before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def part(self) -> float:
        return min(1.0, self.seconds / self.total)

    @property
    def over(self) -> bool:
        return self.seconds >= self.total


def rate(peak: float, step: int, part: float, least: float = 0.03) -> float:
    """A linear rise over the first steps, then a half cosine down to a small rest."""
    fall = least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * fall


class Best:
    """The lowest value so far, and whether a lower one may still be hoped for."""

    def __init__(self, patience: float) -> None:
        """patience: the part of a run after which, without a lower value, it is not worth going on."""
        self.value = math.inf
        self._patience, self._found = patience, 0.0

    def improved(self, value: float, part: float) -> bool:
        """Whether this is the lowest; part: how much of the run has gone."""
        if not value < self.value:  # nor where it is no number
            return False
        self.value, self._found = value, part
        return True

    def hopeless(self, part: float) -> bool:
        return part - self._found >= self._patience


class Log:
    """One line of numbers at a time, to a file for the plots and to the screen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()

    def __call__(self, **numbers: float | str) -> None:
        numbers = {"seconds": round(time.monotonic() - self._began, 1), **numbers}
        with self._path.open("a") as file:
            file.write(json.dumps(numbers) + "\n")
        shown = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in numbers.items()
        )
        print("  ".join(shown), flush=True)  # noqa: T201
