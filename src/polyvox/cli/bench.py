# SPDX-License-Identifier: Apache-2.0
"""polyvox bench: benchmarks any speech server, and the engine against the limits of its device."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvox.bench import plots
from polyvox.bench.capacity import Capacity, CapacitySearch, Objective, format_metric, parse_slo, violations
from polyvox.bench.load import LOAD_UNITS, Load, Mode
from polyvox.bench.report import HEADINGS, row, serving_report
from polyvox.bench.results import machine, read
from polyvox.bench.summary import Summary, to_json
from polyvox.cli.bench_session import BenchOptions, BenchSession, PlotFiles, check_files
from polyvox.cli.bench_target import progress_bar
from polyvox.cli.options import with_options
from polyvox.cli.terminal import Device, Dtype, Json, console, load, named_options, show_figures, show_json
from polyvox.errors import InvalidRequest

if TYPE_CHECKING:
    from polyvox.bench.compare import LoadComparison
    from polyvox.bench.model_calls import CallTiming
    from polyvox.models.protocol import SpeechModel

app = typer.Typer(no_args_is_help=True, help="Benchmark a speech server, or the engine.")

MIN_EXPECTED_REQUESTS = 5  # in a run at the lowest rate of a search
DEFAULT_SLO = "underrun=0,ttfa_p95=1s"  # without a bound on latency, a server that queues without limit always passes
MAX_LOAD, MAX_LOAD_IN_PROCESS = 1024, 64  # defaults of --max-load
LEVELS = "1,4,8,16,32,48,64,96,128"
MODES: dict[str, Mode] = {"concurrency": "closed", "listeners": "listeners", "rate": "open"}  # by option

Repeats = Annotated[int, typer.Option(min=1, help="Runs per load, each with another seed.")]


@app.command()
@with_options(BenchOptions)
def serve(
    options: BenchOptions,
    concurrency: Annotated[
        str | None, typer.Option(help=f"Closed loop: concurrent streams, comma-separated, such as {LEVELS}.")
    ] = None,
    listeners: Annotated[
        str | None,
        typer.Option(
            help="Closed loop in real time: listeners, comma-separated, each of which sends its next request when it "
            "has played the audio of the last one."
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Open loop: requests per second, comma-separated, such as 1,2,4,8.")
    ] = None,
    repeats: Repeats = 1,
) -> None:
    """Measure latency, continuity and throughput at one or more loads."""
    given: dict[str, str | None] = {"concurrency": concurrency, "listeners": listeners, "rate": rate}
    loads: list[Load] = []
    for name, mode in MODES.items():
        with named_options(level=f"--{name}"):
            loads += [options.load(mode, level) for level in _parse_numbers(f"--{name}", given[name])]
    loads = loads or [options.load("closed", 1)]
    with ExitStack() as stack:
        session = BenchSession(options, loads, stack)
        for load_ in loads:
            for repeat in range(repeats):
                name = load_.label if repeats == 1 else f"{load_.label}, run {repeat + 1} of {repeats}"
                session.run(replace(load_, seed=options.seed + repeat), name)
    session.transcribe()
    runs, rows = session.runs, [row(run) for run in session.runs]
    succeeded = any(run.summary.succeeded for run in runs)
    if options.as_json:
        written = [run.to_json() for run in runs]
        show_json({"conditions": session.conditions, "runs": written, "warnings": session.warnings})
    elif succeeded:
        for run in runs:
            typer.echo(serving_report(run))
        show_figures(HEADINGS, rows)
        session.print_warnings()
    else:
        session.print_warnings()  # with the reasons
    if not succeeded:
        raise typer.Exit(1)
    session.write_plots("Serving benchmark", plots.run_plots(runs), HEADINGS, rows)


@app.command()
@with_options(BenchOptions)
def capacity(
    options: BenchOptions,
    slo: Annotated[str, typer.Option(help="Service-level objective, such as underrun=0,ttfa_p95=100ms.")] = DEFAULT_SLO,
    by: Annotated[str, typer.Option(help=f"What the search raises: {', '.join(MODES)}.")] = "concurrency",
    initial_load: Annotated[float, typer.Option(help="First load of the search.")] = 1.0,
    max_load: Annotated[
        float | None, typer.Option(help="Highest load of the search; by default 1024, in process 64.")
    ] = None,
    precision: Annotated[float, typer.Option(min=0, help="Resolution of the result, as a share of the load.")] = 0.05,
    repeats: Repeats = 3,
) -> None:
    """Find the highest load that meets a service-level objective, and what fails above it."""
    objectives = parse_slo(slo)
    if by not in MODES:
        raise InvalidRequest("by", by, tuple(MODES))
    mode = MODES[by]
    if max_load is None:  # in process, the engine allocates memory for the highest load at start
        max_load = max(initial_load, MAX_LOAD_IN_PROCESS if options.in_process else MAX_LOAD)
    first, highest = options.load(mode, initial_load), options.load(mode, max_load)
    if max_load < initial_load:
        raise InvalidRequest("max-load", max_load, f"must be at least --initial-load, which is {initial_load:g}")
    min_load = 1.0 if first.is_closed else min(initial_load, MIN_EXPECTED_REQUESTS / options.seconds)
    with ExitStack() as stack:
        session = BenchSession(options, [highest], stack, slo)

        def measure(level: float, seed: int) -> Summary:
            load_ = replace(first, level=level, seed=seed)
            summary = session.run(load_, load_.label).summary
            session.discard_audio(failed=lambda run: bool(violations(run.summary, objectives)), repeats=repeats)
            return summary

        search = CapacitySearch(mode, initial_load, max_load, repeats, precision, options.seed, min_load)
        found = search.find(measure, objectives)
    session.transcribe(lambda run: run.load.level == found.max_passing)
    runs, answer = session.runs, capacity_answer(found, mode, ", ".join(map(str, objectives)))
    if wer := [run.summary.wer for run in runs if run.summary.wer is not None]:
        answer += f". Word error rate at that load: {sum(wer) / len(wer):.1%}"
    headings = ("SLO met", *HEADINGS)
    rows = [["no" if trial.violations else "yes", *row(run)] for trial, run in zip(found.trials, runs, strict=True)]
    if options.as_json:
        show_json(_capacity_to_json(found, mode, objectives, session))
    else:
        show_figures(headings, rows)
        typer.echo(answer)
        session.print_warnings()
    session.write_plots("Capacity", plots.capacity_plots(found, runs, objectives), headings, rows, [answer])
    if found.max_passing is None:
        raise typer.Exit(1)


def capacity_answer(found: Capacity, mode: Mode, slo: str) -> str:
    """The result of a capacity search in a sentence or two."""
    unit = LOAD_UNITS[mode]
    first_violations = "; ".join(map(str, found.first_violations))
    if found.max_passing is None:
        return f"No load meets {slo}. At {found.min_failing:g} {unit}: {first_violations}"
    if found.min_failing is None:
        return f"{found.max_passing:g} {unit} meet {slo}. This is the highest load of the search: raise --max-load"
    return f"{found.max_passing:g} {unit} meet {slo}. First violation, at {found.min_failing:g}: {first_violations}"


def _capacity_to_json(
    found: Capacity, mode: Mode, objectives: Sequence[Objective], session: BenchSession
) -> dict[str, Any]:
    trials = [
        {
            "level": trial.level,
            "seed": trial.seed,
            "passed": not trial.violations,
            "violations": list(map(str, trial.violations)),
            "summary": to_json(run.summary),
        }
        for trial, run in zip(found.trials, session.runs, strict=True)
    ]
    return {
        "max_passing": found.max_passing,
        "min_failing": found.min_failing,
        "unit": LOAD_UNITS[mode],
        "objectives": list(map(str, objectives)),
        "first_violations": list(map(str, found.first_violations)),
        "trials": trials,
        "conditions": session.conditions,
        "warnings": session.warnings,
    }


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A result of polyvox bench serve.")],
    second: Annotated[Path, typer.Argument(help="Another result, compared with the first.")],
    as_json: Json = False,
) -> None:
    """Compare two results metric by metric."""
    from polyvox.bench import compare as comparison

    a, b = read(first), read(second)
    loads, warnings = comparison.compare(a[1], b[1]), comparison.comparability_warnings(a, b)
    if as_json:
        written = [
            {
                "load": each.label,
                "repeats": each.repeats,
                "verdicts": [asdict(verdict) | {"verdict": verdict.text} for verdict in each.verdicts],
            }
            for each in loads
        ]
        show_json({"loads": written, "warnings": warnings})
        return
    headings = ("load", "metric", first.name, second.name, "change", "95 % interval", "second is")
    show_figures(headings, [row for each in loads for row in _comparison_rows(each)])
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)


def _comparison_rows(compared: "LoadComparison") -> list[list[str]]:
    rows = []
    for each in compared.verdicts:
        values = [format_metric(each.name, value) for value in (each.first, each.second)]
        change = interval = "–"
        if each.first and each.second is not None:
            change = f"{(each.second - each.first) / abs(each.first):+.1%}"
        if each.low is not None and each.high is not None:
            interval = f"{format_metric(each.name, each.low)} to {format_metric(each.name, each.high)}"
        rows.append([compared.label, each.name, *values, change, interval, each.text])
    return rows


@app.command()
def engine(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A folder, a hub id, or 0.6B or 1.7B for random weights."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    kv_dtype: Annotated[str, typer.Option(help="Type of the KV cache: auto, model, int8 or fp8.")] = "auto",
    weight_dtype: Annotated[str, typer.Option(help="Type of the generator's matrices: auto, int8 or fp8.")] = "auto",
    batch: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,4",
    context: Annotated[str, typer.Option(help="Context lengths in the KV cache, comma-separated.")] = "64",
    repeats: Annotated[int, typer.Option(min=2, help="Timed calls of each.")] = 30,
    codec_frames: Annotated[int, typer.Option(min=1, max=16, help="Frames per codec step.")] = 4,
    graphs: Annotated[bool, typer.Option(help="On a GPU, replay CUDA graphs as the engine does.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON file for all timings.")] = None,
    plot: PlotFiles = None,
    as_json: Json = False,
) -> None:
    """Time prefill, frame step and codec step alone, against the roofline of the device."""
    batches, contexts = (
        [_positive_integer(name, number) for number in _parse_numbers(name, text)]
        for name, text in (("batch", batch), ("context", context))
    )
    check_files(output, plot)
    with console.status("Starting …"):
        import torch

        from polyvox.bench import model_calls, render
    with ExitStack() as stack:
        loaded = _load_model(model, device, dtype, kv_dtype, weight_dtype, stack)
        with console.status("Measuring the device …"):
            peaks = model_calls.model_peaks(loaded)
        types = _type_names(loaded)
        title = f"{model or 'embedded voice'}, torch {torch.__version__}, {peaks}, KV cache in {types['kv_dtype']}"
        console.print(title, soft_wrap=True)
        on_gpu = loaded.generator.device.type == "cuda"
        calls_per_context = 3 if graphs and on_gpu else 2
        calls = model_calls.measure_calls(loaded, batches, contexts, repeats, codec_frames, peaks, graphs)
        timings, failure = _timed_calls(calls, len(batches) * (calls_per_context * len(contexts) + 1))
        frame_seconds = loaded.vocoder.samples_per_frame / loaded.vocoder.sample_rate
        memory = torch.cuda.max_memory_allocated(loaded.generator.device) if on_gpu else None
    written = model_calls.to_json(timings, peaks)
    written |= {"model": model, "conditions": machine() | {"torch": torch.__version__}}
    written |= {"codec_frames": codec_frames, **types, "peak_memory": memory}
    written |= {"error": None if failure is None else repr(failure)}
    rows = [model_calls.row(timing) for timing in timings]
    if output is not None:
        output.write_text(json.dumps(written, indent=1), encoding="utf-8")
    if as_json:
        show_json(written)
    else:
        show_figures(model_calls.HEADINGS, rows)
        _show_capacity(model_calls.real_time_streams(timings, frame_seconds, codec_frames), memory)
    for path in plot or ():
        render.write(path, "Engine benchmark", model_calls.call_plots(timings), [(model_calls.HEADINGS, rows)], [title])
        console.print(f"Plots written to {path}", soft_wrap=True)
    if failure is not None:  # after the figures of the calls before it
        raise failure


def _timed_calls(calls: Iterator["CallTiming"], num_calls: int) -> tuple[list["CallTiming"], BaseException | None]:
    """The timings, and the error that ended them early; an error before the first timing is raised."""
    timings: list[CallTiming] = []
    with progress_bar() as bar:
        task = bar.add_task("Timing …", total=num_calls)
        try:
            for timing in calls:
                timings.append(timing)
                bar.update(task, advance=1, description=f"{timing.call}, batch {timing.batch}")
        except (Exception, KeyboardInterrupt) as error:
            if not timings:
                raise
            return timings, error
    return timings, None


def _show_capacity(capacities: list[tuple[int, int, float]], memory: int | None) -> None:
    """capacities: of real_time_streams. memory: peak bytes on a GPU."""
    for batch, context, streams in capacities:
        steps = f"batch {batch}, context {context}: sequential frame and codec steps"
        console.print(f"{steps} serve {streams:.1f} streams in real time", soft_wrap=True)
    if memory is not None:
        console.print(f"peak memory {memory / 2**30:.2f} GiB")


def _type_names(model: "SpeechModel") -> dict[str, str]:
    types = {"kv_dtype": model.generator.kv_dtype, "weight_dtype": model.generator.weight_dtype}
    return {name: str(dtype).removeprefix("torch.") for name, dtype in types.items()}


def _load_model(
    model: str | None, device: str, dtype: str, kv_dtype: str, weight_dtype: str, stack: ExitStack
) -> "SpeechModel":
    """A checkpoint, or random weights of a published size."""
    from polyvox.models.registry import published_sizes, random_model
    from polyvox.tts import load_options

    if model in published_sizes():
        return random_model(str(model), load_options(device, dtype, kv_dtype=kv_dtype, weight_dtype=weight_dtype))
    return stack.enter_context(load(model, device, dtype, kv_dtype=kv_dtype, weight_dtype=weight_dtype)).model


def _parse_numbers(name: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise InvalidRequest(name, text, "must be comma-separated numbers, such as 1,2,4") from None


def _positive_integer(name: str, number: float) -> int:
    if number < 1 or number != int(number):
        raise InvalidRequest(name, number, "must be a positive integer")
    return int(number)
