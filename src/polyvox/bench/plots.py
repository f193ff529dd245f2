"""What a plot shows, apart from how it is drawn: points, bars, axes. Drawn as SVG by hand, as PNG by matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyvox.bench.metrics import play
from polyvox.bench.results import Run

TIMELINE_STREAMS = 60


@dataclass(frozen=True, slots=True)
class Line:
    """Points that are joined; `dashed` for what is a bound rather than a measurement."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


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
    log: bool = False  # both axes
    kinds: dict[str, str] = field(default_factory=dict)  # what the colours of the bars mean


KINDS = {"waits": "waiting for audio", "plays": "playing", "dry": "run dry"}


def of_runs(runs: Sequence[Run]) -> list[Plot]:
    """First sound, continuity and throughput by load, and the streams of the last run in time."""
    runs = [run for run in runs if run.summary.succeeded]
    plots = []
    for mode in ("closed", "open"):
        chosen = [run for run in runs if run.load.mode == mode]
        if chosen:
            across = "streams at once" if mode == "closed" else "requests a second"
            plots += [_first_sound(chosen, across), _continuity(chosen, across), _throughput(chosen, across)]
    if runs:
        plots.append(timeline(runs[-1]))
    return plots


def _points(runs: Sequence[Run], values: Sequence[float | None]) -> tuple[tuple[float, float], ...]:
    """The mean of the repeats at each load."""
    found: dict[float, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            found.setdefault(run.load.level, []).append(value)
    return tuple((level, sum(each) / len(each)) for level, each in sorted(found.items()))


def _first_sound(runs: Sequence[Run], across: str) -> Plot:
    spreads = [run.summary.ttfa for run in runs]
    lines = []
    for name in ("p50", "p95", "p99"):
        values = [None if found is None else getattr(found, name) * 1e3 for found in spreads]
        lines.append(Line(name, _points(runs, values)))
    return Plot("Time to the first audible sample", across, "ms", tuple(lines))


def _continuity(runs: Sequence[Run], across: str) -> Plot:
    lines = [Line("no buffer", _points(runs, [100 * (1 - run.summary.underruns.rate) for run in runs]))]
    for limit in runs[0].summary.continuity:
        values = [100 * run.summary.continuity[limit] for run in runs]
        lines.append(Line(f"{limit} ms", _points(runs, values)))
    return Plot("Streams that never run dry, by start buffer", across, "%", tuple(lines))


def _throughput(runs: Sequence[Run], across: str) -> Plot:
    lines = [Line("audio", _points(runs, [run.summary.throughput for run in runs]))]
    if runs[0].load.mode == "closed":
        levels = sorted({run.load.level for run in runs})
        lines.append(Line("as fast as played", tuple((level, level) for level in levels), dashed=True))
    return Plot("Audio throughput", across, "seconds of audio a second", tuple(lines))


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
