"""polyvox bench: what listeners of any speech server have, and how near the engine is to what its device can."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from polyvox.bench import plots
from polyvox.bench.capacity import Capacity, Limit, Search, breaches, parse_slo, told
from polyvox.bench.load import Mode
from polyvox.bench.report import HEADINGS, row, serving_report
from polyvox.bench.results import Run, machine, read
from polyvox.bench.summary import Summary, plain
from polyvox.cli.measuring import Measurement, Measuring, PlotTo, check_files
from polyvox.cli.options import taking
from polyvox.cli.subject import SIZES, ModelName, progress
from polyvox.cli.terminal import Device, Dtype, Json, console, load, show_figures, show_json
from polyvox.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Measure a speech server, or the engine.")

MIN_REQUESTS = 5  # that a rate must bring in a run, to show anything
SLO = "underrun=0,ttfa_p95=1s"  # without a bound on waiting, a server that lets its listeners queue holds any load
MOST, MAX_IN_PROCESS = 1024, 64  # loads that a search goes up to
LEVELS = "1,4,8,16,32,48,64,96,128"

Repeats = Annotated[int, typer.Option(min=1, help="Runs of each load, each with a seed of its own.")]


@app.command()
@taking(Measurement)
def serve(
    asked: Measurement,
    concurrency: Annotated[str | None, typer.Option(help=f"Streams at once, with commas, such as {LEVELS}.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests a second, with commas, such as 1,2,4,8.")] = None,
    repeats: Repeats = 1,
) -> None:
    """Measure a server, or the engine, at each of some loads."""
    loads = [asked.load("closed", level) for level in _numbers("concurrency", concurrency)]
    loads += [asked.load("open", level) for level in _numbers("rate", rate)]
    loads = loads or [asked.load("closed", 1)]
    with ExitStack() as stack:
        measuring = Measuring(asked, loads, stack)
        for load_ in loads:
            for repeat in range(repeats):
                name = load_.label if repeats == 1 else f"{load_.label}, run {repeat + 1} of {repeats}"
                measuring.run(replace(load_, seed=asked.seed + repeat), name)
    measuring.hear()
    runs, rows = measuring.runs, [row(run) for run in measuring.runs]
    if asked.as_json:
        told_runs = [_told(run) for run in runs]
        show_json({"conditions": measuring.conditions, "runs": told_runs, "warnings": measuring.warnings})
    else:
        for run in runs:
            typer.echo(serving_report(run))
        show_figures(HEADINGS, rows)
        _warn(measuring)
    measuring.draw("Serving benchmark", plots.of_runs(runs), HEADINGS, rows)
    if not any(run.summary.succeeded for run in runs):
        raise typer.Exit(1)


@app.command()
@taking(Measurement)
def capacity(
    asked: Measurement,
    slo: Annotated[str, typer.Option(help="What must hold, such as underrun=0,ttfa_p95=100ms.")] = SLO,
    by: Annotated[str, typer.Option(help="concurrency or rate: what is raised.")] = "concurrency",
    first: Annotated[float, typer.Option(help="The load to begin with.")] = 1.0,
    most: Annotated[float | None, typer.Option(help="The highest load to try. [1024; in process 64]")] = None,
    precision: Annotated[
        float, typer.Option(min=0, help="How narrow the answer must be, as a share of the load.")
    ] = 0.05,
    repeats: Repeats = 3,
) -> None:
    """Find the highest load that holds a service level, and what breaks above it."""
    limits = parse_slo(slo)
    if by not in ("concurrency", "rate"):
        raise InvalidRequest("by", by, ("concurrency", "rate"))
    mode: Mode = "closed" if by == "concurrency" else "open"
    if most is None:  # in process every stream of it has its memory from the start
        most = max(first, MAX_IN_PROCESS if asked.in_process else MOST)
    basis, highest = asked.load(mode, first), asked.load(mode, most)
    if most < first:
        raise InvalidRequest("most", most, f"must be at least --first, which is {first:g}")
    least = 1.0 if mode == "closed" else min(first, MIN_REQUESTS / asked.seconds)
    with ExitStack() as stack:
        measuring = Measuring(asked, [highest], stack, slo)

        def measure(level: float, seed: int) -> Summary:
            load_ = replace(basis, level=level, seed=seed)
            summary = measuring.run(load_, load_.label).summary
            measuring.let_sound_go(broke=lambda run: bool(breaches(run.summary, limits)), repeats=repeats)
            return summary

        found = Search(mode, first, most, repeats, precision, asked.seed, least).find(measure, limits)
    measuring.hear(lambda run: run.load.level == found.holds)
    runs, answer = measuring.runs, verdict(found, mode, ", ".join(map(str, limits)))
    if wer := [run.summary.wer for run in runs if run.summary.wer is not None]:
        answer += f". There {sum(wer) / len(wer):.1%} of the words were misheard"
    headings = ("holds", *HEADINGS)
    rows = [["no" if trial.breaches else "yes", *row(run)] for trial, run in zip(found.trials, runs, strict=True)]
    if asked.as_json:
        show_json(_capacity_told(found, mode, limits, measuring))
    else:
        show_figures(headings, rows)
        typer.echo(answer)
        _warn(measuring)
    measuring.draw("Capacity", plots.of_search(found, runs, limits), headings, rows, [answer])
    if found.holds is None:
        raise typer.Exit(1)


def verdict(found: Capacity, mode: Mode, limits: str) -> str:
    """The answer in a sentence or two."""
    unit = plots.UNITS[mode]
    what = "; ".join(map(str, found.broke_first))
    if found.holds is None:
        return f"No load held {limits}. At {found.breaks:g} {unit}: {what}"
    if found.breaks is None:
        return f"{found.holds:g} {unit} hold {limits}, and none higher was tried: see --most"
    return f"{found.holds:g} {unit} hold {limits}. What broke first, at {found.breaks:g}: {what}"


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A result of polyvox bench serve.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    as_json: Json = False,
) -> None:
    """Compare two results, number by number."""
    from polyvox.bench import compare as comparing

    a, b = read(first), read(second)
    groups, cautions = comparing.compare(a[1], b[1]), comparing.cautions(a, b)
    if as_json:
        shown_groups = []
        for group in groups:
            each_told = [asdict(each) | {"told": each.told} for each in group.verdicts]
            shown_groups.append({"load": group.label, "repeats": group.repeats, "verdicts": each_told})
        show_json({"groups": shown_groups, "warnings": cautions})
        return
    rows = []
    for group in groups:
        for each in group.verdicts:
            shown = [told(each.name, value) for value in (each.first, each.second)]
            change = "–"
            if each.first and each.second is not None:
                change = f"{(each.second - each.first) / abs(each.first):+.1%}"
            interval = "–"
            if each.low is not None and each.high is not None:
                interval = f"{told(each.name, each.low)} to {told(each.name, each.high)}"
            rows.append([group.label, each.name, *shown, change, interval, each.told])
    show_figures(("load", "metric", first.name, second.name, "change", "95 % interval", "the second is"), rows)
    for caution in cautions:
        console.print(f"warning: {caution}", soft_wrap=True)


@app.command()
def engine(
    model: ModelName = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4",
    context: Annotated[str, typer.Option(help="Rows in the cache, with commas.")] = "64",
    repeats: Annotated[int, typer.Option(min=2, help="Timed calls of each.")] = 30,
    codec_frames: Annotated[int, typer.Option(min=1, max=16, help="Frames of a codec step.")] = 4,
    graphs: Annotated[bool, typer.Option(help="On a GPU, replay graphs as the engine does.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file.")] = None,
    plot: PlotTo = None,
    as_json: Json = False,
) -> None:
    """Time prefill, frame step and codec step alone, against the device's floor."""
    batches, contexts = (
        [_whole(name, number) for number in _numbers(name, text)]
        for name, text in (("batch", batch), ("context", context))
    )
    check_files(output, plot)
    with console.status("Starting …"):
        import torch

        from polyvox.bench import draw
        from polyvox.bench import engine as calls
        from polyvox.bench.weights import random_weights
    timings: list[calls.Timing] = []
    with ExitStack() as stack:
        if model in SIZES:
            loaded = random_weights(str(model), device, dtype)
        else:
            loaded = stack.enter_context(load(model, device, dtype)).speech.model
        with console.status("Measuring the device …"):
            limits = calls.device_of(loaded)
        about = f"{model or 'the embedded voice'}, torch {torch.__version__}, {limits}"
        console.print(about, soft_wrap=True)
        beside = graphs and loaded.device.type == "cuda"
        total = len(batches) * ((3 if beside else 2) * len(contexts) + 1)
        with progress() as bar:
            task = bar.add_task("Timing …", total=total)
            for timing in calls.measure_calls(loaded, batches, contexts, repeats, codec_frames, limits, graphs):
                timings.append(timing)
                bar.update(task, advance=1, description=f"{timing.call} of {timing.batch} at {timing.context}")
        codec = loaded.config.codec
        fed = calls.streams(timings, codec.samples_per_frame / codec.sample_rate, codec_frames)
        memory = torch.cuda.max_memory_allocated(loaded.device) if loaded.device.type == "cuda" else None
    told_all = calls.plain(timings, limits) | {"model": model, "conditions": machine() | {"torch": torch.__version__}}
    told_all |= {"codec_frames": codec_frames, "peak_memory": memory}
    rows = [calls.row(timing) for timing in timings]
    if output is not None:
        output.write_text(json.dumps(told_all, indent=1), encoding="utf-8")
    if as_json:
        show_json(told_all)
    else:
        show_figures(calls.HEADINGS, rows)
        for size, held, streams in fed:
            step = f"batch {size}, context {held}: frame and codec step one after the other"
            console.print(f"{step} would keep {streams:.1f} streams fed", soft_wrap=True)
        if memory is not None:
            console.print(f"peak memory {memory / 2**30:.2f} GiB")
    for path in plot or ():
        draw.write(path, "Engine benchmark", calls.plots(timings), [(calls.HEADINGS, rows)], [about])
        console.print(f"Plots are in {path}", soft_wrap=True)


def _numbers(name: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise InvalidRequest(name, text, "must be numbers separated by commas, such as 1,2,4") from None


def _whole(name: str, number: float) -> int:
    if number < 1 or number != int(number):
        raise InvalidRequest(name, number, "must be a positive integer")
    return int(number)


def _warn(measuring: Measuring) -> None:
    for warning in measuring.warnings:
        console.print(f"note: {warning}", soft_wrap=True)


def _told(run_: Run) -> dict[str, Any]:
    lag = {"loop": plain(run_.lag.loop), "cpu": run_.lag.cpu, "processes": run_.lag.processes}
    return {"load": asdict(run_.load), "summary": plain(run_.summary), "lag": lag}


def _capacity_told(found: Capacity, mode: Mode, limits: Sequence[Limit], measuring: Measuring) -> dict[str, Any]:
    trials = [
        {
            "level": trial.level,
            "seed": trial.seed,
            "holds": not trial.breaches,
            "breaches": list(map(str, trial.breaches)),
            "summary": plain(run.summary),
        }
        for trial, run in zip(found.trials, measuring.runs, strict=True)
    ]
    broke = list(map(str, found.broke_first))
    return {"holds": found.holds, "breaks": found.breaks, "unit": plots.UNITS[mode], "limits": list(map(str, limits)),
            "broke_first": broke, "trials": trials, "conditions": measuring.conditions,
            "warnings": measuring.warnings}  # fmt: skip
