# SPDX-License-Identifier: Apache-2.0
"""The common part of `bench serve` and `bench capacity`: options, runs, transcription, result files and plots."""

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
from polyvox.bench.prompts import DEFAULT_PROMPTS, prompts
from polyvox.bench.report import brief, warnings
from polyvox.bench.results import Conditions, Run, save
from polyvox.bench.summary import START_BUFFER
from polyvox.cli.bench_target import TargetOptions, progress_bar
from polyvox.cli.terminal import Json, console
from polyvox.errors import InvalidRequest

OutputFile = Annotated[Path | None, typer.Option("--output", "-o", help="JSON file for all measurements.")]
PlotFiles = Annotated[
    list[Path] | None, typer.Option("--plot", metavar="PATH", help="File for plots, .html or .png; may be repeated.")
]


@dataclass(frozen=True, slots=True)
class BenchOptions(TargetOptions):
    """The options of a measurement: its target, its duration and its output."""

    seconds: Annotated[float, typer.Option(help="Seconds during which measured requests are started.")] = 30.0
    warmup: Annotated[float, typer.Option(help="Seconds of warm-up with the same load.")] = 5.0
    num_prompts: Annotated[int | None, typer.Option(help="Measured requests per run, instead of --seconds.")] = None
    ramp: Annotated[float, typer.Option(help="Closed loop: seconds of the warm-up over which streams start.")] = 0.0
    seed: Annotated[int, typer.Option(help="Seed of the order of texts and of arrivals.")] = 1
    timeout: Annotated[float, typer.Option(help="Timeout of one request in seconds.")] = 120.0
    max_in_flight: Annotated[int, typer.Option(help="Open loop: requests above this number in flight are dropped.")] = (
        4096
    )
    start_buffer: Annotated[float, typer.Option(help="Start buffer of the buffered player in milliseconds.")] = (
        START_BUFFER * 1e3
    )
    texts: Annotated[Path | None, typer.Option(help="File with one text per line, instead of the built-in set.")] = None
    output: OutputFile = None
    plot: PlotFiles = None
    wer: Annotated[
        str | None,
        typer.Option(help="Command that transcribes: reads one WAV path per line, writes one line of text for each."),
    ] = None
    wer_requests: Annotated[int, typer.Option(min=1, help="Number of requests per run to transcribe.")] = 100
    as_json: Json = False

    def load(self, mode: Mode, level: float) -> Load:
        """A load with these options; raises InvalidRequest."""
        record = 0 if self.wer is None else self.wer_requests
        made = Load(mode, level, self.seconds, self.warmup, self.num_prompts, self.ramp, self.seed, self.timeout,
                    self.max_in_flight, record)  # fmt: skip
        made.check()
        return made


class BenchSession:
    """The runs of one command; saved after each run."""

    def __init__(self, options: BenchOptions, loads: Sequence[Load], stack: ExitStack, slo: str | None = None) -> None:
        from polyvox.bench.transcription import check_command

        if not 0 <= options.start_buffer < inf:
            raise InvalidRequest("start-buffer", options.start_buffer, "must be at least 0")
        check_files(options.output, options.plot)
        if options.wer is not None:
            check_command(options.wer)
        self.options, self.texts = options, prompts(options.texts or DEFAULT_PROMPTS)
        self._target = options.open_target(self.texts, loads, options.start_buffer / 1e3, stack)
        self.conditions: Conditions = self._target.conditions | {"slo": slo, "wer": options.wer}
        self.runs: list[Run] = []

    def run(self, load: Load, name: str) -> Run:
        self.runs.append(self._target.run(load, name))
        if not self.options.as_json:
            console.print(f"{name}: {brief(self.runs[-1])}", soft_wrap=True)
        self._save()
        return self.runs[-1]

    def transcribe(self, chosen: Callable[[Run], bool] = lambda _: True) -> None:
        """Adds the WER to the summaries of these runs if a recogniser is configured."""
        if self.options.wer is None:
            return
        from polyvox.bench.transcription import transcribe

        traces = [trace for run in self.runs if chosen(run) for trace in run.traces]
        with progress_bar() as bar:
            task = bar.add_task("Transcribing …", total=sum(trace.pcm is not None for trace in traces))
            transcribe(self.options.wer, traces, self.texts, lambda done: bar.update(task, completed=done))
        self.runs[:] = [replace(run) for run in self.runs]
        self._save()

    def discard_audio(self, failed: Callable[[Run], bool], repeats: int) -> None:
        """Keeps recorded audio only for the highest load that passed all repeats and for loads that may still pass."""
        failing = {run.load.level for run in self.runs if failed(run)}
        complete = [level for level, count in Counter(run.load.level for run in self.runs).items() if count >= repeats]
        highest = max((level for level in complete if level not in failing), default=0.0)
        for run in self.runs:
            if run.load.level < highest or run.load.level in failing:
                for trace in run.traces:
                    trace.pcm = None

    @property
    def warnings(self) -> list[str]:
        return warnings(self.runs)

    def print_warnings(self) -> None:
        for warning in self.warnings:
            console.print(f"warning: {warning}", soft_wrap=True)

    def write_plots(
        self, title: str, plots: Sequence[Plot], headings: Sequence[str], rows: Sequence[Sequence[str]],
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Writes the plot files of the options."""
        from polyvox.bench import render

        shown = [f"{key}: {value}" for key, value in self.conditions.items() if value not in (None, {})]
        for path in self.options.plot or ():
            render.write(path, title, plots, [(headings, rows)], [*notes, *self.warnings, *shown])
            console.print(f"Plots written to {path}", soft_wrap=True)

    def _save(self) -> None:
        if self.options.output is not None:
            save(self.options.output, self.conditions, self.runs)


def check_files(output: Path | None, plots: Sequence[Path] | None) -> None:
    """Raises InvalidRequest, before anything is measured, for a file that could not be written."""
    from polyvox.bench import render

    for path in (output, *(plots or ())):
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise InvalidRequest("file", str(path), "the folder does not exist or is not writable")
    for path in plots or ():
        render.check_path(path)
