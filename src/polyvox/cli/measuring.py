"""What `bench serve` and `bench capacity` have in common: their options, and runs that are made, heard, kept, drawn."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from polyvox.bench.load import Load, Mode
from polyvox.bench.plots import Plot
from polyvox.bench.prompts import PROMPTS, prompts
from polyvox.bench.report import warnings
from polyvox.bench.results import Conditions, Run, save
from polyvox.bench.summary import START_BUFFER, Summary
from polyvox.cli.subject import Subject, progress
from polyvox.cli.terminal import Json, console
from polyvox.errors import InvalidRequest

Output = Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file for all that was measured.")]
PlotTo = Annotated[
    list[Path] | None, typer.Option("--plot", help="A file for plots: .html, or .png with matplotlib; may be repeated.")
]


@dataclass(frozen=True, slots=True)
class Measurement(Subject):
    """What is measured, for how long, and where it goes."""

    seconds: Annotated[float, typer.Option(help="How long requests are begun and measured.")] = 30.0
    warmup: Annotated[float, typer.Option(help="Seconds of the same load before.")] = 5.0
    requests: Annotated[int | None, typer.Option(help="At most so many measured requests a run.")] = None
    ramp: Annotated[float, typer.Option(help="Seconds of the warm-up over which a closed loop's streams begin.")] = 0.0
    seed: Annotated[int, typer.Option(help="Of the order of texts and of arrivals.")] = 1
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 120.0
    max_in_flight: Annotated[int, typer.Option(help="Open loop: beyond so many at once, requests are dropped.")] = 4096
    start_buffer: Annotated[float, typer.Option(help="Milliseconds of the player that has a start buffer.")] = (
        START_BUFFER * 1e3
    )
    texts: Annotated[Path | None, typer.Option(help="A file with one text in each line, instead of our own.")] = None
    output: Output = None
    plot: PlotTo = None
    wer: Annotated[
        str | None, typer.Option(help="A command that hears: reads names of WAV files, writes a line of text for each.")
    ] = None
    wer_requests: Annotated[int, typer.Option(min=1, help="How many requests of a run it hears.")] = 100
    as_json: Json = False

    def load(self, mode: Mode, level: float) -> Load:
        """Raises InvalidRequest where it cannot be."""
        keep = 0 if self.wer is None else self.wer_requests
        made = Load(mode, level, self.seconds, self.warmup, self.requests, self.ramp, self.seed, self.timeout,
                    self.max_in_flight, keep)  # fmt: skip
        made.check()
        return made


class Measuring:
    """The runs of one command, which are kept as they are made."""

    def __init__(self, asked: Measurement, loads: Sequence[Load], stack: ExitStack, slo: str | None = None) -> None:
        from polyvox.bench.hearing import check_command

        if not 0 <= asked.start_buffer < inf:
            raise InvalidRequest("start-buffer", asked.start_buffer, "must be at least 0")
        check_files(asked.output, asked.plot)
        if asked.wer is not None:
            check_command(asked.wer)
        self.asked, self.texts = asked, prompts(asked.texts or PROMPTS)
        self._driver = asked.driver(self.texts, loads, asked.start_buffer / 1e3, stack)
        self.conditions: Conditions = self._driver.conditions | {"slo": slo, "wer": asked.wer}
        self.runs: list[Run] = []

    def run(self, load: Load, name: str) -> Run:
        self.runs.append(self._driver.run(load, name))
        if not self.asked.as_json:
            console.print(f"{name}: {_brief(self.runs[-1].summary)}", soft_wrap=True)
        self._save()
        return self.runs[-1]

    def hear(self, chosen: Callable[[Run], bool] = lambda _: True) -> None:
        """Puts the word errors of these runs into their summaries, where a recogniser was named."""
        if self.asked.wer is None:
            return
        from polyvox.bench.hearing import hear

        traces = [trace for run in self.runs if chosen(run) for trace in run.traces]
        with progress() as bar:
            task = bar.add_task("Hearing what was said …", total=sum(trace.sound is not None for trace in traces))
            hear(self.asked.wer, traces, self.texts, lambda done: bar.update(task, completed=done))
        self.runs[:] = [replace(run) for run in self.runs]
        self._save()

    def let_sound_go(self, broke: Callable[[Run], bool], repeats: int) -> None:
        """Keeps the sound of the highest load that held in so many runs, and of what may come to hold above it."""
        lost = {run.load.level for run in self.runs if broke(run)}
        held = [level for level, count in Counter(run.load.level for run in self.runs).items() if count >= repeats]
        highest = max((level for level in held if level not in lost), default=0.0)
        for run in self.runs:
            if run.load.level < highest or run.load.level in lost:
                for trace in run.traces:
                    trace.sound = None

    @property
    def warnings(self) -> list[str]:
        return warnings(self.runs)

    def draw(
        self, title: str, plots: Sequence[Plot], headings: Sequence[str], rows: Sequence[Sequence[str]],
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Writes the plots that were asked for."""
        from polyvox.bench import draw

        shown = [f"{key}: {value}" for key, value in self.conditions.items() if value not in (None, {})]
        for path in self.asked.plot or ():
            draw.write(path, title, plots, [(headings, rows)], [*notes, *self.warnings, *shown])
            console.print(f"Plots are in {path}", soft_wrap=True)

    def _save(self) -> None:
        """After each run, so that nothing measured is lost."""
        if self.asked.output is not None:
            save(self.asked.output, self.conditions, self.runs)


def check_files(output: Path | None, plots: Sequence[Path] | None) -> None:
    """Refuses what could not be written after an hour of measuring."""
    from polyvox.bench import draw

    for path in (output, *(plots or ())):
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise InvalidRequest("file", str(path), "the folder does not exist or is not writable")
    for path in plots or ():
        draw.check_path(path)


def _brief(s: Summary) -> str:
    bad = s.failed + s.dropped
    if s.ttfa is None:
        return f"{s.succeeded} of {s.requests} requests succeeded"
    first = f"first sound after {s.ttfa.p50 * 1e3:.0f} ms (p95 {s.ttfa.p95 * 1e3:.0f})"
    return f"{s.succeeded} requests, {bad} failed; {first}; {s.underruns.count} underruns; {s.throughput:.2f} audio s/s"
