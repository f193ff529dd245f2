"""The highest load at which a service level holds, found by bracketing, and what breaks above it."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyvox.bench.load import Mode
from polyvox.bench.summary import MORE_IS_BETTER, Summary, check_name, in_seconds, metric
from polyvox.errors import InvalidRequest

UNITS = {"ms": 1e-3, "s": 1.0, "%": 1e-2, "": 1.0}
ALWAYS = ("failed", "dropped")  # none of these, unless the service level says otherwise


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one number of a run: at most that, or at least."""

    name: str
    bound: float

    @property
    def at_least(self) -> bool:
        return self.name in MORE_IS_BETTER

    def holds(self, value: float | None) -> bool:
        if value is None:
            return False  # nothing was measured, so nothing is shown
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{self.name} {'≥' if self.at_least else '≤'} {told(self.name, self.bound)}"


def told(name: str, value: float | None) -> str:
    """A number of a run with its unit."""
    if value is None:
        return "nothing"
    if not in_seconds(name):
        return f"{value:.4g}"
    return f"{value:.4g} s" if abs(value) >= 10 else f"{value * 1e3:.4g} ms"


def parse_slo(text: str) -> list[Limit]:
    """Limits from `underrun=0,ttfa_p95=100ms`; raises InvalidRequest."""
    limits = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\w+)\s*(?:=|<=|>=)\s*([\d.]+)\s*(ms|s|%|)", part)
        if not found:
            raise InvalidRequest("slo", part, "must be a metric and its bound, such as ttfa_p95=100ms or underrun=0")
        name, number, unit = found.groups()
        check_name(name)
        if in_seconds(name) != (unit in ("ms", "s")):
            requirement = "must be a time in ms or s" if in_seconds(name) else "must be a number without a unit"
            raise InvalidRequest("slo", part, requirement)
        try:
            limits[name] = Limit(name, float(number) * UNITS[unit])
        except ValueError:
            raise InvalidRequest("slo", part, "must be a number") from None
    if not limits:
        raise InvalidRequest("slo", text, "must have at least one bound, such as underrun=0,ttfa_p95=100ms")
    return [Limit(name, 0.0) for name in ALWAYS if name not in limits] + list(limits.values())


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that did not hold, and by what."""

    limit: Limit
    value: float | None

    def __str__(self) -> str:
        return f"{self.limit.name} was {told(self.limit.name, self.value)} (allowed: {self.limit})"


def breaches(summary: Summary, limits: Sequence[Limit]) -> list[Breach]:
    found = [Breach(limit, metric(summary, limit.name)) for limit in limits]
    return [breach for breach in found if not breach.limit.holds(breach.value)]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the search."""

    level: float
    seed: int
    breaches: tuple[Breach, ...]
    summary: Summary


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest load that held in every repeat, the lowest that did not, and all runs in their order."""

    holds: float | None
    breaks: float | None
    trials: tuple[Trial, ...]

    @property
    def broke_first(self) -> tuple[Breach, ...]:
        """What did not hold at the lowest load that broke."""
        broken = [trial for trial in self.trials if trial.level == self.breaks and trial.breaches]
        return broken[0].breaches if broken else ()


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look. Loads double from `first` until one breaks or `most` holds; then the bracket is halved until it
    is narrower than `precision` (a share of the load; between whole numbers of streams, 1 is the narrowest).

    A load holds if it holds in all of `repeats` runs, each with a seed of its own, and breaks with the first that
    does not.
    """

    mode: Mode
    first: float = 1.0
    most: float = 1024.0
    repeats: int = 3
    precision: float = 0.05
    seed: int = 1
    least: float = 1.0  # the lowest to try

    def find(self, measure: Callable[[float, int], Summary], limits: Sequence[Limit]) -> Capacity:
        """measure gives the summary of a run with a load and a seed."""
        trials: list[Trial] = []

        def holds(level: float) -> bool:
            for seed in range(self.seed, self.seed + self.repeats):
                summary = measure(level, seed)
                trials.append(Trial(level, seed, tuple(breaches(summary, limits)), summary))
                if trials[-1].breaches:
                    return False
            return True

        low, high = self._bracket(holds)
        while low is not None and high is not None and (between := self._between(low, high)) is not None:
            if holds(between):
                low = between
            else:
                high = between
        return Capacity(low, high, tuple(trials))

    def _bracket(self, holds: Callable[[float], bool]) -> tuple[float | None, float | None]:
        """A load that holds and a higher one that does not; None where there is none."""
        level = self.first
        if holds(level):
            while level < self.most:
                above = min(2 * level, self.most)
                if not holds(above):
                    return level, above
                level = above
            return level, None
        while level > self.least:
            below = max(math.floor(level / 2) if self.mode == "closed" else level / 2, self.least)
            if holds(below):
                return below, level
            level = below
        return None, level

    def _between(self, low: float, high: float) -> float | None:
        """The next load to try; None where the bracket is narrow enough."""
        if high / low <= 1 + self.precision:
            return None
        if self.mode == "open":
            return float(f"{math.sqrt(low * high):.3g}")
        return float((low + high) // 2) if high - low > 1 else None
