# SPDX-License-Identifier: Apache-2.0
"""The plots of a benchmark as data: series, bars and axes. `render` draws them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyvox.bench.capacity import IMPLICIT_OBJECTIVES, Capacity, Objective
from polyvox.bench.load import LOAD_UNITS
from polyvox.bench.metrics import play
from polyvox.bench.results import Run
from polyvox.bench.summary import in_seconds, metric

MAX_TIMELINE_STREAMS = 60
MIN_LOG_RATIO = 12  # ratio of the highest to the lowest load above which the load axis is logarithmic

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A line through points; `dashed` for a reference, such as a bound.

    `samples` are the points of single runs where `points` are means of several.
    """

    name: str
    points: Points
    dashed: bool = False
    samples: Points = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A time span in one row of a timeline."""

    row: int
    begin: float
    end: float
    kind: str  # a key of Plot.bar_labels


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...] = ()
    bars: tuple[Bar, ...] = ()
    log_x: bool = False
    log_y: bool = False
    x_ticks: tuple[float, ...] = ()  # instead of automatic ticks
    y_max: float | None = None
    bar_labels: dict[str, str] = field(default_factory=dict)  # legend of the bars, by kind


def run_plots(runs: Sequence[Run]) -> list[Plot]:
    """TTFA, continuity and throughput by load, and the timeline of the last run."""
    runs = [run for run in runs if run.summary.succeeded]
    plots: list[Plot] = []
    for mode in LOAD_UNITS:
        if chosen := [run for run in runs if run.load.mode == mode]:
            plots += [_ttfa_plot(chosen), _continuity_plot(chosen), _throughput_plot(chosen)]
    if runs:
        plots.append(timeline(runs[-1]))
    return plots


def capacity_plots(capacity: Capacity, runs: Sequence[Run], objectives: Sequence[Objective]) -> list[Plot]:
    """The loads of a capacity search in order, each metric against its objective, and the plots of the runs."""
    failed = [bool(trial.violations) for trial in capacity.trials]
    bars = tuple(Bar(i, 0.0, run.load.level, "failed" if failed[i] else "passed") for i, run in enumerate(runs))
    unit, levels = LOAD_UNITS[runs[0].load.mode], tuple(sorted({run.load.level for run in runs}))
    labels = {"passed": "SLO met", "failed": "SLO violated"}
    plots = [Plot("Loads in the order of the search", unit, "run", bars=bars, x_ticks=levels, bar_labels=labels)]
    failing_levels = {run.load.level for run, each in zip(runs, failed, strict=True) if each}
    for objective in objectives:
        values = [metric(run.summary, objective.name) for run in runs]
        if objective.name not in IMPLICIT_OBJECTIVES or any(not objective.met_by(value) for value in values):
            plots.append(_objective_plot(objective, runs, values, failing_levels))
    return plots + run_plots(runs)


def _objective_plot(
    objective: Objective, runs: Sequence[Run], values: Sequence[float | None], failing_levels: set[float]
) -> Plot:
    """One metric by load against its bound; failing_levels: loads that violated any objective."""
    factor, unit = (1e3, "ms") if in_seconds(objective.name) else (1.0, "")
    series = []
    for name, failing in (("passing loads", False), ("failing loads", True)):
        shown = [value * factor if value is not None and (run.load.level in failing_levels) is failing else None
                 for run, value in zip(runs, values, strict=True)]  # fmt: skip
        series.append(_by_load(name, runs, shown))
    series.append(_by_load("objective", runs, [factor * objective.bound] * len(runs), dashed=True))
    return _load_plot(str(objective), runs, unit, series)


def _load_plot(
    title: str, runs: Sequence[Run], y_label: str, series: Sequence[Series], y_max: float | None = None
) -> Plot:
    levels = tuple(sorted({run.load.level for run in runs}))
    log_x = levels[-1] > MIN_LOG_RATIO * levels[0]
    unit = LOAD_UNITS[runs[0].load.mode]
    return Plot(title, unit, y_label, tuple(series), log_x=log_x, x_ticks=levels, y_max=y_max)


def _by_load(name: str, runs: Sequence[Run], values: Sequence[float | None], dashed: bool = False) -> Series:
    """The mean over the repeats of each load, and each repeat."""
    found: dict[float, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            found.setdefault(run.load.level, []).append(value)
    means = tuple((level, sum(each) / len(each)) for level, each in sorted(found.items()))
    repeated = any(len(each) > 1 for each in found.values())
    samples = tuple((level, value) for level, each in sorted(found.items()) for value in each) if repeated else ()
    return Series(name, means, dashed, samples)


def _ttfa_plot(runs: Sequence[Run]) -> Plot:
    series = []
    for name in ("p50", "p95", "p99"):
        found = [run.summary.ttfa for run in runs]
        series.append(_by_load(name, runs, [None if each is None else getattr(each, name) * 1e3 for each in found]))
    lags = [run.lag.loop for run in runs]
    series.append(_by_load("client lag, p99", runs, [lag.p99 * 1e3 if lag else None for lag in lags], dashed=True))
    return _load_plot("Time to first audio (TTFA)", runs, "ms", series)


def _continuity_plot(runs: Sequence[Run]) -> Plot:
    success = [100 * run.summary.succeeded / run.summary.requests for run in runs]
    series = [_by_load("no buffer", runs, [100 * (1 - run.summary.underruns.rate) for run in runs])]
    for limit in runs[0].summary.continuity:
        series.append(_by_load(f"{limit} ms", runs, [100 * run.summary.continuity[limit] for run in runs]))
    series.append(_by_load("successful requests", runs, success, dashed=True))
    return _load_plot("Streams without underruns, by start buffer", runs, "%", series, y_max=100.0)


def _throughput_plot(runs: Sequence[Run]) -> Plot:
    series = [_by_load("audio", runs, [run.summary.throughput for run in runs])]
    if runs[0].load.is_closed:
        series.append(_by_load("real time", runs, [run.load.level for run in runs], dashed=True))
    return _load_plot("Audio throughput", runs, "audio seconds per second", series)


def timeline(run: Run) -> Plot:
    """Playback without a buffer of the first measured streams of a run, one row per stream."""
    measured = sorted((t for t in run.traces if t.measured and t.succeeded), key=lambda t: t.sent)
    chosen = measured[:MAX_TIMELINE_STREAMS]
    origin = chosen[0].sent if chosen else 0.0
    bars = []
    for row, trace in enumerate(chosen):
        playback = play(trace.arrivals, trace.sample_rate, trace.ended)
        if playback is None:
            continue
        at = playback.start
        bars.append(Bar(row, trace.sent - origin, at - origin, "waiting"))
        played = 0
        for stall in playback.stalls:
            until = at + (stall.before - played) / trace.sample_rate
            bars.append(Bar(row, at - origin, until - origin, "playing"))
            bars.append(Bar(row, until - origin, until + stall.seconds - origin, "underrun"))
            at, played = until + stall.seconds, stall.before
        bars.append(Bar(row, at - origin, at + (trace.samples - played) / trace.sample_rate - origin, "playing"))
    labels = {"waiting": "waiting for the first packet", "playing": "playing", "underrun": "underrun"}
    return Plot(f"Playback by stream: {run.label}", "seconds", "stream", bars=tuple(bars), bar_labels=labels)
