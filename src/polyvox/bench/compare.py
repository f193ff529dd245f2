# SPDX-License-Identifier: Apache-2.0
"""Compares two results: a verdict per metric from bootstrap intervals, and reasons not to compare them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from polyvox.bench.load import Load
from polyvox.bench.metrics import RequestMetrics, measure
from polyvox.bench.results import Conditions, Run
from polyvox.bench.summary import HIGHER_IS_BETTER, WER, metric
from polyvox.errors import NOT_SHOWN, InvalidRequest

METRICS = (
    "success", "ttfb_p50", "ttfp_p50", "ttfp_p95", "ttfa_p50", "ttfa_p95", "e2e_p50", "e2e_p95", "rtf_p50",
    "underrun_rate", "needed_p95", "continuity_100", "throughput", "length_mean", "per_word_mean",
)  # fmt: skip
NEUTRAL = ("length_mean", "per_word_mean")  # neither direction is better
PER_RUN = ("throughput",)  # one value per run; the other metrics have one per request
MIN_RUNS, MIN_REQUESTS = 2, 10  # for a bootstrap interval
NUM_RESAMPLES = 2000
MAX_DRAWN_VALUES = 4_000_000  # per batch, to bound memory
CONFIDENCE = 95  # percent
MAX_LENGTH_DIFFERENCE = 0.03  # of the audio length of the same texts
VOLATILE_CONDITIONS = ("date", "load_average", "note")

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]  # of each row


@dataclass(frozen=True, slots=True)
class Verdict:
    """One metric of both results, and the confidence interval of the difference (second minus first)."""

    name: str
    first: float | None
    second: float | None
    low: float | None  # None without enough runs or requests
    high: float | None

    @property
    def text(self) -> str:
        if self.low is None or self.high is None:
            return "no verdict: needs --repeats" if self.name in PER_RUN else "no verdict: too few requests"
        if self.low <= 0 <= self.high:
            return "no significant difference"
        if self.name in NEUTRAL:
            return "differs"
        return "better" if (self.low > 0) == (self.name in HIGHER_IS_BETTER) else "worse"


@dataclass(frozen=True, slots=True)
class LoadComparison:
    """All verdicts at one load."""

    label: str
    repeats: tuple[int, int]
    verdicts: tuple[Verdict, ...]


def compare(first: Sequence[Run], second: Sequence[Run]) -> list[LoadComparison]:
    """One comparison per load that both results have; raises InvalidRequest if there is none."""
    first_runs, second_runs = _by_load(first), _by_load(second)
    comparisons = []
    for key, runs in first_runs.items():
        if key in second_runs:
            others = second_runs[key]
            transcribed = all(run.summary.wer is not None for run in (*runs, *others))
            names = (*METRICS, WER) if transcribed else METRICS
            verdicts = tuple(_verdict(name, runs, others) for name in names)
            comparisons.append(LoadComparison(runs[0].label, (len(runs), len(others)), verdicts))
    if not comparisons:
        labels = ", ".join(runs[0].label for runs in first_runs.values())
        raise InvalidRequest("files", NOT_SHOWN, f"the results have no load in common; the first one has {labels}")
    return comparisons


def _by_load(runs: Sequence[Run]) -> dict[tuple[str, float], list[Run]]:
    found: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        found.setdefault((run.load.mode, run.load.level), []).append(run)
    return found


def _verdict(name: str, first: Sequence[Run], second: Sequence[Run]) -> Verdict:
    means = _mean(name, first), _mean(name, second)
    a, b = _samples(name, first), _samples(name, second)
    min_samples = MIN_RUNS if name in PER_RUN else MIN_REQUESTS
    if min(sum(map(len, a)), sum(map(len, b))) < min_samples:
        return Verdict(name, *means, None, None)
    statistic = _statistic(name)
    rng = np.random.default_rng(0)
    differences = _resample(b, statistic, rng) - _resample(a, statistic, rng)
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(differences, [tail, 100 - tail])
    return Verdict(name, *means, float(low), float(high))


def _mean(name: str, runs: Sequence[Run]) -> float | None:
    values = [value for run in runs if (value := metric(run.summary, name)) is not None]
    return sum(values) / len(values) if values else None


def _resample(runs: Sequence[Values], statistic: Statistic, rng: np.random.Generator) -> Values:
    """The statistic over runs drawn with replacement, with requests drawn with replacement in each.

    So the interval includes the variance between runs, not only between the requests of one run.
    """
    total = np.zeros(NUM_RESAMPLES)
    for _ in runs:  # draws as many runs as there are
        chosen = rng.integers(len(runs), size=NUM_RESAMPLES)
        for number, values in enumerate(runs):
            selected = np.flatnonzero(chosen == number)
            for batch in np.array_split(selected, 1 + len(selected) * len(values) // MAX_DRAWN_VALUES):
                total[batch] += statistic(values[rng.integers(len(values), size=(len(batch), len(values)))])
    return total / len(runs)


def _statistic(name: str) -> Statistic:
    statistic = name.rsplit("_", 1)[-1]
    if not statistic.startswith("p") or not statistic[1:].isdigit():
        return lambda rows: rows.mean(axis=1)
    share = int(statistic[1:]) / 100

    def nearest_rank(rows: Values) -> Values:
        rank = max(int(np.ceil(share * rows.shape[1])), 1) - 1
        return np.partition(rows, rank, axis=1)[:, rank]

    return nearest_rank


def _samples(name: str, runs: Sequence[Run]) -> list[Values]:
    """The values behind a metric, by run; runs without values are left out."""
    found = []
    for run in runs:
        if name in PER_RUN:
            values = [run.summary.throughput]
        elif name == WER:
            values = _word_error_rates(run)
        elif name == "success":
            values = [float(trace.succeeded) for trace in run.traces if trace.measured]
        else:
            values = [value for each in _measured(run) if (value := _value(name, each)) is not None]
        if values:
            found.append(np.array(values))
    return found


def _word_error_rates(run: Run) -> list[float]:
    """Values whose mean is the WER of the run: the errors of each request by the mean number of words."""
    found = [trace.word_errors for trace in run.traces if trace.measured and trace.word_errors is not None]
    words = sum(words for _, words in found) or 1
    return [errors * len(found) / words for errors, _ in found]


def _measured(run: Run) -> list[RequestMetrics]:
    return [found for trace in run.traces if trace.measured and (found := measure(trace, run.buffer))]


def _value(name: str, found: RequestMetrics) -> float | None:
    if name == "underrun_rate":
        return float(bool(found.stalls))
    if name.startswith("continuity_"):
        return float(found.needed <= int(name.rsplit("_", 1)[1]) / 1e3)
    base = name.rsplit("_", 1)[0]
    value: float | None = getattr(found, {"length": "audio"}.get(base, base))
    return value


def comparability_warnings(a: tuple[Conditions, Sequence[Run]], b: tuple[Conditions, Sequence[Run]]) -> list[str]:
    """Reasons other than speed for which the two results may differ."""
    (first, first_runs), (second, second_runs) = a, b
    found = [
        f"{key} differs: {first.get(key)!r} and {second.get(key)!r}"
        for key in sorted(first.keys() | second.keys())
        if key not in VOLATILE_CONDITIONS and first.get(key) != second.get(key)
    ]
    for field in fields(Load):
        if field.name not in ("mode", "level", "seed", "record"):
            values = [
                sorted({getattr(run.load, field.name) or 0 for run in runs}) for runs in (first_runs, second_runs)
            ]
            if values[0] != values[1]:
                found.append(f"{field.name} differs: {values[0]} and {values[1]}")
    if any(min(map(len, _by_load(runs).values()), default=0) < 2 for runs in (first_runs, second_runs)):
        found.append("one run per load: the intervals exclude the variance between runs (use --repeats 3)")
    ratio = length_ratio(first_runs, second_runs)
    if ratio is None:
        found.append("no text is in both results: audio lengths cannot be compared")
    elif abs(ratio - 1) > MAX_LENGTH_DIFFERENCE:
        found.append(
            f"the audio of the second is {ratio:.0%} as long for the same texts: "
            "E2E latency, RTF and throughput are not of the same work"
        )
    return found


def length_ratio(first: Sequence[Run], second: Sequence[Run]) -> float | None:
    """Audio length of the second result divided by that of the first, over the texts in both."""
    first_lengths, second_lengths = _mean_lengths(first), _mean_lengths(second)
    common = first_lengths.keys() & second_lengths.keys()
    if not common:
        return None
    return sum(second_lengths[text] for text in common) / sum(first_lengths[text] for text in common)


def _mean_lengths(runs: Sequence[Run]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in runs:
        for trace in run.traces:
            if trace.succeeded:
                found.setdefault(trace.prompt, []).append(trace.audio)
    return {text: sum(each) / len(each) for text, each in found.items()}
