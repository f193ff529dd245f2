"""Two results side by side: a verdict for each number, from repeats, and what makes them hard to compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from polyvox.bench.load import Load
from polyvox.bench.metrics import Measures, measure
from polyvox.bench.results import Conditions, Run
from polyvox.bench.summary import MORE_IS_BETTER, WER, metric
from polyvox.errors import NOT_SHOWN, InvalidRequest

METRICS = (
    "success", "ttfb_p50", "ttfp_p50", "ttfp_p95", "ttfa_p50", "ttfa_p95", "e2e_p50", "e2e_p95", "rtf_p50",
    "underrun_rate", "needed_p95", "continuity_100", "throughput", "length_mean", "per_word_mean",
)  # fmt: skip
NEUTRAL = ("length_mean", "per_word_mean")  # neither more nor less of these is better
BY_RUN = ("throughput",)  # one value a run; the others have one a request
MIN_RUNS, MIN_REQUESTS = 2, 10  # of which resamples tell anything: one value has no spread
RESAMPLES = 2000
AT_ONCE = 4_000_000  # values that are drawn together, for the sake of memory
COVERAGE = 95  # percent of the resamples that the interval holds
LENGTHS_DIFFER = 0.03  # of the seconds of audio for the same texts
PASSING = ("date", "busy", "note")  # conditions that are never the same

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One number of both, and the interval of their difference (the second less the first)."""

    name: str
    first: float | None
    second: float | None
    low: float | None  # None where repeats would be needed
    high: float | None

    @property
    def told(self) -> str:
        if self.low is None or self.high is None:
            return "no verdict: repeats are needed" if self.name in BY_RUN else "no verdict: too few requests"
        if self.low <= 0 <= self.high:
            return "no difference shown"
        if self.name in NEUTRAL:
            return "differs"
        return "better" if (self.low > 0) == (self.name in MORE_IS_BETTER) else "worse"


@dataclass(frozen=True, slots=True)
class Group:
    """All verdicts at one load."""

    label: str
    repeats: tuple[int, int]
    verdicts: tuple[Verdict, ...]


def compare(first: Sequence[Run], second: Sequence[Run]) -> list[Group]:
    """A group for each load that both have; raises InvalidRequest where they have none in common."""
    ours, theirs = _by_load(first), _by_load(second)
    groups = []
    for key, runs in ours.items():
        if key in theirs:
            others = theirs[key]
            heard = all(run.summary.wer is not None for run in (*runs, *others))
            names = (*METRICS, WER) if heard else METRICS
            verdicts = tuple(_verdict(name, runs, others) for name in names)
            groups.append(Group(runs[0].label, (len(runs), len(others)), verdicts))
    if not groups:
        had = ", ".join(run[0].label for run in ours.values())
        raise InvalidRequest("files", NOT_SHOWN, f"the results have no load in common; the first one has {had}")
    return groups


def _by_load(runs: Sequence[Run]) -> dict[tuple[str, float], list[Run]]:
    found: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        found.setdefault((run.load.mode, run.load.level), []).append(run)
    return found


def _verdict(name: str, first: Sequence[Run], second: Sequence[Run]) -> Verdict:
    a, b = _mean(name, first), _mean(name, second)
    ours, theirs = _samples(name, first), _samples(name, second)
    least = MIN_RUNS if name in BY_RUN else MIN_REQUESTS
    if min(sum(map(len, ours)), sum(map(len, theirs))) < least:
        return Verdict(name, a, b, None, None)
    statistic = _statistic(name)
    random = np.random.default_rng(0)
    differences = _resampled(theirs, statistic, random) - _resampled(ours, statistic, random)
    tail = (100 - COVERAGE) / 2
    low, high = np.percentile(differences, [tail, 100 - tail])
    return Verdict(name, a, b, float(low), float(high))


def _mean(name: str, runs: Sequence[Run]) -> float | None:
    values = [value for run in runs if (value := metric(run.summary, name)) is not None]
    return sum(values) / len(values) if values else None


def _resampled(runs: Sequence[Values], statistic: "Statistic", random: np.random.Generator) -> Values:
    """The statistic over runs drawn with replacement, and in each run requests drawn with replacement.

    So the interval knows how much runs differ, not only requests within one.
    """
    total = np.zeros(RESAMPLES)
    for _ in runs:  # as many are drawn as there are
        chosen = random.integers(len(runs), size=RESAMPLES)
        for number, values in enumerate(runs):
            places = np.flatnonzero(chosen == number)
            for some in np.array_split(places, 1 + len(places) * len(values) // AT_ONCE):
                total[some] += statistic(values[random.integers(len(values), size=(len(some), len(values)))])
    return total / len(runs)


Statistic = Callable[[Values], Values]  # of each row


def _statistic(name: str) -> Statistic:
    statistic = name.rsplit("_", 1)[-1]
    if not statistic.startswith("p") or not statistic[1:].isdigit():
        return lambda rows: rows.mean(axis=1)
    share = int(statistic[1:]) / 100

    def ranked(rows: Values) -> Values:
        place = max(int(np.ceil(share * rows.shape[1])), 1) - 1
        return np.partition(rows, place, axis=1)[:, place]

    return ranked


def _samples(name: str, runs: Sequence[Run]) -> list[Values]:
    """The values that a number is made of, run by run; runs without any are left out."""
    found = []
    for run in runs:
        if name in BY_RUN:
            values = [run.summary.throughput]
        elif name == WER:
            values = _word_errors(run)
        elif name == "success":
            values = [float(trace.succeeded) for trace in run.traces if trace.measured]
        else:
            values = [value for each in _measured(run) if (value := _value(name, each)) is not None]
        if values:
            found.append(np.array(values))
    return found


def _word_errors(run: Run) -> list[float]:
    """Values whose mean is the rate: the errors of each request by the words that one has in the mean."""
    found = [trace.misheard for trace in run.traces if trace.measured and trace.misheard is not None]
    words = sum(words for _, words in found) or 1
    return [errors * len(found) / words for errors, _ in found]


def _measured(run: Run) -> list[Measures]:
    return [found for trace in run.traces if trace.measured and (found := measure(trace, run.buffer))]


def _value(name: str, found: Measures) -> float | None:
    if name == "underrun_rate":
        return float(bool(found.stalls))
    if name.startswith("continuity_"):
        return float(found.needed <= int(name.rsplit("_", 1)[1]) / 1e3)
    base = name.rsplit("_", 1)[0]
    value: float | None = getattr(found, {"length": "audio"}.get(base, base))
    return value


def cautions(a: tuple[Conditions, Sequence[Run]], b: tuple[Conditions, Sequence[Run]]) -> list[str]:
    """Why the two may differ for another reason than speed."""
    (first, ours), (second, theirs) = a, b
    told = [
        f"{key} differs: {first.get(key)!r} and {second.get(key)!r}"
        for key in sorted(first.keys() | second.keys())
        if key not in PASSING and first.get(key) != second.get(key)
    ]
    for field in fields(Load):
        if field.name not in ("mode", "level", "seed", "keep"):
            values = [sorted({getattr(run.load, field.name) or 0 for run in runs}) for runs in (ours, theirs)]
            if values[0] != values[1]:
                told.append(f"{field.name} differs: {values[0]} and {values[1]}")
    if min(map(len, _by_load(ours).values()), default=0) < 2 or min(map(len, _by_load(theirs).values()), default=0) < 2:
        told.append("one run for a load: the intervals do not know how much runs differ (use --repeats 3)")
    ratio = length_ratio(ours, theirs)
    if ratio is None:
        told.append("no text was spoken in both: lengths cannot be compared")
    elif abs(ratio - 1) > LENGTHS_DIFFER:
        told.append(
            f"the second speaks the same texts in {ratio:.0%} of the time: end to end, rtf and throughput are not of "
            "the same work"
        )
    return told


def length_ratio(first: Sequence[Run], second: Sequence[Run]) -> float | None:
    """Seconds of audio of the second by those of the first, over texts that both spoke."""
    ours, theirs = _lengths(first), _lengths(second)
    both = ours.keys() & theirs.keys()
    if not both:
        return None
    return sum(theirs[text] for text in both) / sum(ours[text] for text in both)


def _lengths(runs: Sequence[Run]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in runs:
        for trace in run.traces:
            if trace.succeeded:
                found.setdefault(trace.prompt, []).append(trace.audio)
    return {text: sum(each) / len(each) for text, each in found.items()}
