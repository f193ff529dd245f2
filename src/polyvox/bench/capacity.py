# SPDX-License-Identifier: Apache-2.0
"""Capacity: the highest load that meets a service-level objective, found by bracketing and bisection."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyvox.bench.load import Mode
from polyvox.bench.summary import HIGHER_IS_BETTER, Summary, check_metric_name, in_seconds, metric
from polyvox.errors import InvalidRequest

UNITS = {"ms": 1e-3, "s": 1.0, "%": 1e-2, "": 1.0}
IMPLICIT_OBJECTIVES = ("failed", "dropped")  # must be 0 unless the SLO says otherwise


@dataclass(frozen=True, slots=True)
class Objective:
    """A bound on one metric of a run: a minimum if higher is better, otherwise a maximum."""

    name: str
    bound: float

    @property
    def is_minimum(self) -> bool:
        return self.name in HIGHER_IS_BETTER

    def met_by(self, value: float | None) -> bool:
        """Whether the value is within the bound. A missing value is not."""
        if value is None:
            return False
        return value >= self.bound if self.is_minimum else value <= self.bound

    def __str__(self) -> str:
        return f"{self.name} {'≥' if self.is_minimum else '≤'} {format_metric(self.name, self.bound)}"


def format_metric(name: str, value: float | None) -> str:
    """A metric with its unit."""
    if value is None:
        return "not measured"
    if not in_seconds(name):
        return f"{value:.4g}"
    return f"{value:.4g} s" if abs(value) >= 10 else f"{value * 1e3:.4g} ms"


def parse_slo(text: str) -> list[Objective]:
    """Objectives from `underrun=0,ttfa_p95=100ms`; raises InvalidRequest."""
    objectives = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\w+)\s*(?:=|<=|>=)\s*([\d.]+)\s*(ms|s|%|)", part)
        if not found:
            raise InvalidRequest("slo", part, "must be a metric and its bound, such as ttfa_p95=100ms or underrun=0")
        name, number, unit = found.groups()
        check_metric_name(name)
        if in_seconds(name) != (unit in ("ms", "s")):
            requirement = "must be a time in ms or s" if in_seconds(name) else "must be a number without a time unit"
            raise InvalidRequest("slo", part, requirement)
        try:
            objectives[name] = Objective(name, float(number) * UNITS[unit])
        except ValueError:
            raise InvalidRequest("slo", part, "must be a number") from None
    if not objectives:
        raise InvalidRequest("slo", text, "must have at least one bound, such as underrun=0,ttfa_p95=100ms")
    implicit = [Objective(name, 0.0) for name in IMPLICIT_OBJECTIVES if name not in objectives]
    return implicit + list(objectives.values())


@dataclass(frozen=True, slots=True)
class Violation:
    """An objective that was not met, and the measured value."""

    objective: Objective
    value: float | None

    def __str__(self) -> str:
        measured = format_metric(self.objective.name, self.value)
        return f"{self.objective.name} was {measured} (objective: {self.objective})"


def violations(summary: Summary, objectives: Sequence[Objective]) -> list[Violation]:
    """The objectives that a run does not meet."""
    found = [Violation(objective, metric(summary, objective.name)) for objective in objectives]
    return [violation for violation in found if not violation.objective.met_by(violation.value)]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the search."""

    level: float
    seed: int
    violations: tuple[Violation, ...]
    summary: Summary


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest load that met the SLO in every repeat, the lowest that did not, and all runs in order."""

    max_passing: float | None
    min_failing: float | None
    trials: tuple[Trial, ...]

    @property
    def first_violations(self) -> tuple[Violation, ...]:
        """The violations at the lowest failing load."""
        failed = [trial for trial in self.trials if trial.level == self.min_failing and trial.violations]
        return failed[0].violations if failed else ()


@dataclass(frozen=True, slots=True)
class CapacitySearch:
    """Doubles the load from `initial` until one fails or `max_load` passes, then bisects the bracket.

    Bisection ends when the bracket is narrower than `precision`, a share of the load; streams and listeners have a
    resolution of 1. A load passes if all of its `repeats` runs pass, each with another seed; it fails with the first
    that fails.
    """

    mode: Mode
    initial: float = 1.0
    max_load: float = 1024.0
    repeats: int = 3
    precision: float = 0.05
    seed: int = 1
    min_load: float = 1.0

    def find(self, measure: Callable[[float, int], Summary], objectives: Sequence[Objective]) -> Capacity:
        """`measure` runs one load with one seed."""
        trials: list[Trial] = []

        def passes(level: float) -> bool:
            for seed in range(self.seed, self.seed + self.repeats):
                summary = measure(level, seed)
                trials.append(Trial(level, seed, tuple(violations(summary, objectives)), summary))
                if trials[-1].violations:
                    return False
            return True

        low, high = self._bracket(passes)
        while low is not None and high is not None and (middle := self._midpoint(low, high)) is not None:
            if passes(middle):
                low = middle
            else:
                high = middle
        return Capacity(low, high, tuple(trials))

    def _bracket(self, passes: Callable[[float], bool]) -> tuple[float | None, float | None]:
        """A load that passes and a higher one that fails; None if there is none."""
        level = self.initial
        if passes(level):
            while level < self.max_load:
                above = min(2 * level, self.max_load)
                if not passes(above):
                    return level, above
                level = above
            return level, None
        while level > self.min_load:
            below = max(level / 2 if self.mode == "open" else math.floor(level / 2), self.min_load)
            if passes(below):
                return below, level
            level = below
        return None, level

    def _midpoint(self, low: float, high: float) -> float | None:
        """The next load to try; None if the bracket is narrow enough."""
        if high / low <= 1 + self.precision:
            return None
        if self.mode == "open":
            return float(f"{math.sqrt(low * high):.3g}")
        return float((low + high) // 2) if high - low > 1 else None
