# SPDX-License-Identifier: Apache-2.0
"""Time-limited runs: learning rate as a function of elapsed time, early stopping, and a JSON-lines log."""

import json
import math
import time
from pathlib import Path

WARM_UP_STEPS = 200
DONE = "done"  # phase of the last line of a log when the time budget is used up
MAX_GAP = 15.0  # seconds between two readings of a clock; a longer gap is a pause of the process


class Clock:
    """The elapsed share of a run's time budget, earlier runs included and pauses of the process (SIGSTOP) left out."""

    def __init__(self, minutes: float, before: float = 0.0) -> None:
        self.total = 60 * minutes
        self._seconds, self._read = before, time.monotonic()

    @property
    def seconds(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._read, MAX_GAP)
        self._read = now
        return self._seconds

    @property
    def part(self) -> float:
        return min(1.0, self.seconds / self.total)

    @property
    def over(self) -> bool:
        return self.seconds >= self.total


def rate(peak: float, step: int, part: float, floor: float = 0.03) -> float:
    """Linear warm-up over steps, then half a cosine over the elapsed share down to `floor` of the peak."""
    fall = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * part))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * fall


class BestValue:
    """The lowest value so far, and whether it is stale."""

    def __init__(self, max_stale: float) -> None:
        """max_stale: share of a run without a lower value after which the run should end."""
        self.value = math.inf
        self._max_stale, self._found = max_stale, 0.0

    def improved(self, value: float, part: float) -> bool:
        """Record a value at this share of the run; true if it is the lowest."""
        if not value < self.value:  # false for NaN, too
            return False
        self.value, self._found = value, part
        return True

    def is_stale(self, part: float) -> bool:
        return part - self._found >= self._max_stale


class Log:
    """Append one JSON line per call to a file, and print it."""

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
