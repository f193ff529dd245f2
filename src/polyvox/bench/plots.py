"""What a plot shows, apart from how it is drawn: points, bars, axes. Drawn as SVG by hand, as PNG by matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyvox.bench.capacity import ALWAYS, Capacity, Limit
from polyvox.bench.load import Mode
from polyvox.bench.metrics import play
from polyvox.bench.results import Run
from polyvox.bench.summary import in_seconds, metric

TIMELINE_STREAMS = 60
WIDE = 12  # by how much loads must differ for their axis to be logarithmic

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Points that are joined; `dashed` for what is beside the measurement, such as a bound.

    each: the points of single runs, where `points` are means of several.
    """

    name: str
    points: Points
    dashed: bool = False
    each: Points = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time in one row of a timeline."""

    row: int
    begin: float
    end: float
    kind: str  # one of KINDS


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    across: str
    up: str
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    log_across: bool = False
    log_up: bool = False
    ticks: tuple[float, ...] = ()  # on the axis across, instead of round numbers
    top: float | None = None  # of the axis up
    kinds: dict[str, str] = field(default_factory=dict)  # what the colours of the bars mean


UNITS: dict[Mode, str] = {"closed": "streams at once", "open": "requests a second"}
KINDS = {"waits": "waiting for audio", "plays": "playing", "dry": "run dry"}


def of_runs(runs: Sequence[Run]) -> list[Plot]:
    """First sound, continuity and throughput by load, and the streams of the last run in time."""
    runs = [run for run in runs if run.summary.succeeded]
    plots: list[Plot] = []
    for mode in ("closed", "open"):
        if chosen := [run for run in runs if run.load.mode == mode]:
            plots += [_first_sound(chosen), _continuity(chosen), _throughput(chosen)]
    if runs:
        plots.append(timeline(runs[-1]))
    return plots


def of_search(found: Capacity, runs: Sequence[Run], limits: Sequence[Limit]) -> list[Plot]:
    """What a search for the highest load tried, run by run, what held, each number that was bounded, and the rest."""
    broke = [bool(trial.breaches) for trial in found.trials]
    bars = [Bar(i, 0.0, run.load.level, "dry" if broke[i] else "plays") for i, run in enumerate(runs)]
    kinds = {"plays": "held", "dry": "broke"}
    unit, levels = UNITS[runs[0].load.mode], tuple(sorted({run.load.level for run in runs}))
    plots = [Plot("Loads in the order they were tried", unit, "run", bars=tuple(bars), ticks=levels, kinds=kinds)]
    lost = {run.load.level for run, each in zip(runs, broke, strict=True) if each}
    for limit in limits:
        values = [metric(run.summary, limit.name) for run in runs]
        if limit.name not in ALWAYS or any(not limit.holds(value) for value in values):
            plots.append(_bounded(limit, runs, values, lost))
    return plots + of_runs(runs)


def _bounded(limit: Limit, runs: Sequence[Run], values: Sequence[float | None], lost: set[float]) -> Plot:
    """One number by load, against what was allowed; lost: the loads that did not hold, by this number or another."""
    factor, unit = (1e3, "ms") if in_seconds(limit.name) else (1.0, "")
    lines = []
    for name, chosen in (("loads that held", False), ("loads that broke", True)):
        shown = [value * factor if value is not None and (run.load.level in lost) is chosen else None
                 for run, value in zip(runs, values, strict=True)]  # fmt: skip
        lines.append(_by_load(name, runs, shown))
    lines.append(_by_load("allowed", runs, [factor * limit.bound] * len(runs), dashed=True))
    return _plot(str(limit), runs, unit, lines)


def _plot(title: str, runs: Sequence[Run], up: str, lines: Sequence[Line], top: float | None = None) -> Plot:
    """A plot by load."""
    levels = tuple(sorted({run.load.level for run in runs}))
    wide = levels[-1] > WIDE * levels[0]
    return Plot(title, UNITS[runs[0].load.mode], up, tuple(lines), log_across=wide, ticks=levels, top=top)


def _by_load(name: str, runs: Sequence[Run], values: Sequence[float | None], dashed: bool = False) -> Line:
    """The mean of the repeats at each load, and each of them."""
    found: dict[float, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            found.setdefault(run.load.level, []).append(value)
    means = tuple((level, sum(some) / len(some)) for level, some in sorted(found.items()))
    several = any(len(some) > 1 for some in found.values())
    each = tuple((level, value) for level, some in sorted(found.items()) for value in some) if several else ()
    return Line(name, means, dashed, each)


def _first_sound(runs: Sequence[Run]) -> Plot:
    lines = []
    for name in ("p50", "p95", "p99"):
        spreads = [run.summary.ttfa for run in runs]
        lines.append(_by_load(name, runs, [None if s is None else getattr(s, name) * 1e3 for s in spreads]))
    lags = [run.lag.loop for run in runs]
    lines.append(_by_load("client's own lag, p99", runs, [lag.p99 * 1e3 if lag else None for lag in lags], dashed=True))
    return _plot("Time to the first audible sample", runs, "ms", lines)


def _continuity(runs: Sequence[Run]) -> Plot:
    answered = [100 * run.summary.succeeded / run.summary.requests for run in runs]
    lines = [_by_load("no buffer", runs, [100 * (1 - run.summary.underruns.rate) for run in runs])]
    for limit in runs[0].summary.continuity:
        lines.append(_by_load(f"{limit} ms", runs, [100 * run.summary.continuity[limit] for run in runs]))
    lines.append(_by_load("requests that succeeded", runs, answered, dashed=True))
    return _plot("Streams that never run dry, by start buffer", runs, "%", lines, top=100.0)


def _throughput(runs: Sequence[Run]) -> Plot:
    lines = [_by_load("audio", runs, [run.summary.throughput for run in runs])]
    if runs[0].load.mode == "closed":
        lines.append(_by_load("as fast as played", runs, [run.load.level for run in runs], dashed=True))
    return _plot("Audio throughput", runs, "seconds of audio a second", lines)


def timeline(run: Run) -> Plot:
    """What the players of one run did: the first measured streams, a row each."""
    chosen = sorted((t for t in run.traces if t.measured and t.succeeded), key=lambda t: t.sent)[:TIMELINE_STREAMS]
    begin = chosen[0].sent if chosen else 0.0
    bars = []
    for row, trace in enumerate(chosen):
        played = play(trace.arrivals, trace.sample_rate, trace.ended)
        if played is None:
            continue
        at = played.start
        bars.append(Bar(row, trace.sent - begin, at - begin, "waits"))
        told = 0
        for stall in played.stalls:
            until = at + (stall.before - told) / trace.sample_rate
            bars.append(Bar(row, at - begin, until - begin, "plays"))
            bars.append(Bar(row, until - begin, until + stall.seconds - begin, "dry"))
            at, told = until + stall.seconds, stall.before
        bars.append(Bar(row, at - begin, at + (trace.samples - told) / trace.sample_rate - begin, "plays"))
    return Plot(f"What listeners heard: {run.label}", "seconds", "stream", bars=tuple(bars), kinds=KINDS)
