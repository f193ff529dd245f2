"""polyvox bench: what listeners of any speech server have, and how near the engine is to what its device can."""

import json
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from polyvox.bench.capacity import Capacity, Search, parse_slo, told
from polyvox.bench.load import Load, Mode
from polyvox.bench.prompts import PROMPTS, prompts
from polyvox.bench.report import HEADINGS, row, serving_report, warnings
from polyvox.bench.results import Conditions, Run, machine, read, save
from polyvox.bench.summary import START_BUFFER, Summary, plain
from polyvox.commands.subject import SIZES, Subject, progress
from polyvox.commands.terminal import Device, Dtype, Json, console, load, show_json, show_rows
from polyvox.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Measure a speech server, or the engine.")

LEAST_REQUESTS = 5  # that a rate must bring in a run, to show anything
LEVELS = "1,4,8,16,32,48,64,96,128"

BaseUrl = Annotated[str | None, typer.Option(help="The server, such as http://127.0.0.1:8000.")]
InProcess = Annotated[bool, typer.Option("--in-process", help="The engine in this process instead of a server.")]
Protocol = Annotated[str, typer.Option(help="http (raw), sse, or ws (vLLM-Omni's WebSocket).")]
Endpoint = Annotated[str | None, typer.Option(help="Instead of /v1/audio/speech.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="The server's name for it; in process a checkpoint, or 0.6B or 1.7B at random."),
]
Voice = Annotated[str | None, typer.Option(help="A voice; by default none is asked for.")]
Form = Annotated[str, typer.Option("--format", help="pcm or wav.")]
Rate = Annotated[int, typer.Option(help="Of pcm that does not say it.")]
Extra = Annotated[str, typer.Option(help="JSON put over each request's body; null takes a field out.")]
Key = Annotated[str | None, typer.Option(envvar="POLYVOX_BENCH_KEY", help="Sent as a bearer token; never stored.")]
RequestSeeds = Annotated[bool, typer.Option("--request-seeds", help="Send each request a seed of its own.")]
Seconds = Annotated[float, typer.Option(help="How long requests are begun and measured.")]
Warmup = Annotated[float, typer.Option(help="Seconds of the same load before.")]
Requests = Annotated[int | None, typer.Option(help="At most so many measured requests a run.")]
Ramp = Annotated[float, typer.Option(help="Seconds of the warm-up over which a closed loop's streams begin.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of each load, each with a seed of its own.")]
Seed = Annotated[int, typer.Option(help="Of the order of texts and of arrivals.")]
Timeout = Annotated[float, typer.Option(help="Seconds for one request.")]
InFlight = Annotated[int, typer.Option(help="Open loop: beyond so many at once, requests are dropped.")]
Buffer = Annotated[float, typer.Option(help="Milliseconds of the player that has a start buffer.")]
Texts = Annotated[Path | None, typer.Option(help="A file with one text in each line, instead of our own.")]
Processes = Annotated[int, typer.Option(min=0, help="Of the client; 0 takes as many as the load needs.")]
Frames = Annotated[int | None, typer.Option(help="In process: each utterance has exactly so many frames of 80 ms.")]
Tokens = Annotated[int | None, typer.Option(help="In process, random weights: each text has so many tokens.")]
Slots = Annotated[int | None, typer.Option(help="In process: streams that run at once; by default the largest load.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file for all raw samples.")]
PlotTo = Annotated[
    list[Path] | None, typer.Option("--plot", help="A file for plots: .html, or .png with matplotlib; may be repeated.")
]
Note = Annotated[str | None, typer.Option(help="Told beside the figures, such as the server's settings.")]


@app.command()
def serve(
    base_url: BaseUrl = None,
    in_process: InProcess = False,
    concurrency: Annotated[str | None, typer.Option(help=f"Streams at once, with commas, such as {LEVELS}.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests a second, with commas, such as 1,2,4,8.")] = None,
    protocol: Protocol = "http",
    endpoint: Endpoint = None,
    model: ModelName = None,
    voice: Voice = None,
    form: Form = "pcm",
    sample_rate: Rate = 24_000,
    extra_body: Extra = "{}",
    api_key: Key = None,
    request_seeds: RequestSeeds = False,
    seconds: Seconds = 30.0,
    warmup: Warmup = 5.0,
    requests: Requests = None,
    ramp: Ramp = 0.0,
    repeats: Repeats = 1,
    seed: Seed = 1,
    timeout: Timeout = 120.0,
    max_in_flight: InFlight = 4096,
    start_buffer: Buffer = START_BUFFER * 1e3,
    texts: Texts = None,
    processes: Processes = 0,
    frames: Frames = None,
    tokens: Tokens = None,
    slots: Slots = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    plot: PlotTo = None,
    note: Note = None,
    wer: Annotated[
        str | None, typer.Option(help="A command that hears: reads names of WAV files, writes a line of text for each.")
    ] = None,
    wer_requests: Annotated[int, typer.Option(min=1, help="How many requests of each run it hears.")] = 100,
    as_json: Json = False,
) -> None:
    """Measure a server, or the engine, at each of some loads."""
    from polyvox.bench import draw, plots
    from polyvox.bench.hearing import check_command

    keep = 0 if wer is None else wer_requests
    basis = Load("closed", 1, seconds, warmup, requests, ramp, seed, timeout, max_in_flight, keep)
    loads = [replace(basis, mode="closed", level=level) for level in _numbers("concurrency", concurrency)]
    loads += [replace(basis, mode="open", level=level) for level in _numbers("rate", rate)]
    loads = loads or [basis]
    for each in loads:
        each.check()
    for path in (output, *(plot or ())):
        _check_folder(path)
    for path in plot or ():
        draw.check_path(path)
    if wer is not None:
        check_command(wer)
    said = prompts(texts or PROMPTS)
    asked = Subject(base_url, in_process, protocol, endpoint, model, voice, form, sample_rate, extra_body, api_key,
                   request_seeds, processes, frames, tokens, slots, device, dtype, note)  # fmt: skip
    with ExitStack() as stack:
        driver = asked.driver(said, loads, start_buffer / 1e3, stack)
        runs = []
        for each in loads:
            for repeat in range(repeats):
                made = each.label
                name = made if repeats == 1 else f"{made}, run {repeat + 1} of {repeats}"
                runs.append(driver.run(replace(each, seed=seed + repeat), name))
                if not as_json:
                    console.print(f"{name}: {_brief(runs[-1].summary)}", soft_wrap=True)
                if output is not None:
                    save(output, driver.conditions, runs)  # again after each, so that nothing measured is lost
    if wer is not None:
        runs = _heard(wer, runs, said)
        if output is not None:
            save(output, driver.conditions | {"wer": wer}, runs)
    notes = warnings(runs)
    if as_json:
        show_json({"conditions": driver.conditions, "runs": [_told(run) for run in runs], "warnings": notes})
    else:
        for each_run in runs:
            typer.echo(serving_report(each_run))
        show_rows(HEADINGS, [row(each_run) for each_run in runs])
        for warning in notes:
            console.print(f"note: {warning}", soft_wrap=True)
    for path in plot or ():
        shown = [f"{key}: {value}" for key, value in driver.conditions.items() if value not in (None, {})]
        draw.write(path, "Serving benchmark", plots.of_runs(runs), [(HEADINGS, [row(r) for r in runs])], notes + shown)
        console.print(f"Plots are in {path}", soft_wrap=True)
    if not any(each_run.summary.succeeded for each_run in runs):
        raise typer.Exit(1)


@app.command()
def capacity(
    slo: Annotated[str, typer.Option(help="What must hold, such as underrun=0,ttfa_p95=100ms.")] = "underrun=0",
    base_url: BaseUrl = None,
    in_process: InProcess = False,
    by: Annotated[str, typer.Option(help="concurrency or rate: what is raised.")] = "concurrency",
    first: Annotated[float, typer.Option(help="The load to begin with.")] = 1.0,
    most: Annotated[float, typer.Option(help="The highest load to try.")] = 1024.0,
    precision: Annotated[float, typer.Option(help="How narrow the answer must be, as a share of the load.")] = 0.05,
    protocol: Protocol = "http",
    endpoint: Endpoint = None,
    model: ModelName = None,
    voice: Voice = None,
    form: Form = "pcm",
    sample_rate: Rate = 24_000,
    extra_body: Extra = "{}",
    api_key: Key = None,
    request_seeds: RequestSeeds = False,
    seconds: Seconds = 30.0,
    warmup: Warmup = 5.0,
    requests: Requests = None,
    ramp: Ramp = 0.0,
    repeats: Repeats = 3,
    seed: Seed = 1,
    timeout: Timeout = 120.0,
    max_in_flight: InFlight = 4096,
    start_buffer: Buffer = START_BUFFER * 1e3,
    texts: Texts = None,
    processes: Processes = 0,
    frames: Frames = None,
    tokens: Tokens = None,
    slots: Slots = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    output: Output = None,
    note: Note = None,
    as_json: Json = False,
) -> None:
    """Find the highest load that holds a service level, and what breaks above it."""
    limits = parse_slo(slo)
    if by not in ("concurrency", "rate"):
        raise InvalidRequest("by", by, ("concurrency", "rate"))
    mode: Mode = "closed" if by == "concurrency" else "open"
    basis = Load(mode, first, seconds, warmup, requests, ramp, seed, timeout, max_in_flight)
    for level in (first, most):
        replace(basis, level=level).check()
    _check_folder(output)
    said = prompts(texts or PROMPTS)
    asked = Subject(base_url, in_process, protocol, endpoint, model, voice, form, sample_rate, extra_body, api_key,
                   request_seeds, processes, frames, tokens, slots, device, dtype, note)  # fmt: skip
    runs: list[Run] = []
    with ExitStack() as stack:
        driver = asked.driver(said, [replace(basis, level=most)], start_buffer / 1e3, stack)

        def measure(level: float, run_seed: int) -> Summary:
            made = replace(basis, level=level, seed=run_seed)
            runs.append(driver.run(made, made.label))
            console.print(f"{runs[-1].label}: {_brief(runs[-1].summary)}", soft_wrap=True)
            if output is not None:
                save(output, driver.conditions, runs)
            return runs[-1].summary

        least = 1.0 if mode == "closed" else min(first, LEAST_REQUESTS / seconds)
        found = Search(mode, first, most, repeats, precision, seed, least).find(measure, limits)
    unit = "streams at once" if mode == "closed" else "requests a second"
    if as_json:
        show_json(_capacity_told(found, unit, [str(limit) for limit in limits], driver.conditions))
    else:
        show_rows(("holds", *HEADINGS), [
            ["no" if trial.breaches else "yes", *row(each)] for trial, each in zip(found.trials, runs, strict=True)
        ])  # fmt: skip
        typer.echo(verdict(found, unit, ", ".join(map(str, limits))))
    for warning in warnings(runs):
        console.print(f"note: {warning}", soft_wrap=True)
    if found.holds is None:
        raise typer.Exit(1)


def verdict(found: Capacity, unit: str, limits: str) -> str:
    """The answer in a sentence or two."""
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
    show_rows(("load", "metric", first.name, second.name, "change", "95 % interval", "the second is"), rows)
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
    for path in (output, *(plot or ())):
        _check_folder(path)
    with console.status("Starting …"):
        import torch

        from polyvox.bench import draw
        from polyvox.bench import engine as calls
        from polyvox.bench.floor import measure_device
        from polyvox.bench.weights import random_weights
    for path in plot or ():
        draw.check_path(path)
    timings: list[calls.Timing] = []
    with ExitStack() as stack:
        if model in SIZES:
            loaded = random_weights(str(model), device, dtype)
        else:
            loaded = stack.enter_context(load(model, device, dtype)).speech.model
        with console.status("Measuring the device …"):
            kinds = {loaded.dtype, next(loaded.codec.parameters()).dtype}
            limits = measure_device(loaded.device, kinds)
        about = f"{model or 'the embedded voice'}, torch {torch.__version__}, {limits}"
        console.print(about, soft_wrap=True)
        total = len(batches) * (2 * len(contexts) + 1)
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
        show_rows(calls.HEADINGS, rows)
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
        raise InvalidRequest(name, text, "numbers with commas, such as 1,2,4") from None


def _whole(name: str, number: float) -> int:
    if number < 1 or number != int(number):
        raise InvalidRequest(name, number, "whole numbers, 1 or more")
    return int(number)


def _check_folder(path: Path | None) -> None:
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise InvalidRequest("file", str(path), "a name in a folder that can be written to")


def _brief(s: Summary) -> str:
    bad = s.failed + s.dropped
    if s.ttfa is None:
        return f"{s.succeeded} of {s.requests} requests succeeded"
    first = f"first sound after {s.ttfa.p50 * 1e3:.0f} ms (p95 {s.ttfa.p95 * 1e3:.0f})"
    return f"{s.succeeded} requests, {bad} failed; {first}; {s.underruns.count} underruns; {s.throughput:.2f} audio s/s"


def _heard(command: str, runs: list[Run], texts: tuple[str, ...]) -> list[Run]:
    """The same runs with the word errors in their summaries."""
    from polyvox.bench.hearing import hear

    traces = [trace for each in runs for trace in each.traces]
    with progress() as bar:
        task = bar.add_task("Hearing what was said …", total=sum(trace.sound is not None for trace in traces))
        hear(command, traces, texts, lambda done: bar.update(task, completed=done))
    return [replace(each) for each in runs]


def _told(run_: Run) -> dict[str, Any]:
    lag = {"loop": plain(run_.lag.loop), "cpu": run_.lag.cpu, "processes": run_.lag.processes}
    return {"load": asdict(run_.load), "summary": plain(run_.summary), "lag": lag}


def _capacity_told(found: Capacity, unit: str, limits: list[str], conditions: Conditions) -> dict[str, Any]:
    trials = [
        {
            "level": trial.level,
            "seed": trial.seed,
            "holds": not trial.breaches,
            "breaches": list(map(str, trial.breaches)),
        }
        for trial in found.trials
    ]
    broke = list(map(str, found.broke_first))
    return {"holds": found.holds, "breaks": found.breaks, "unit": unit, "limits": limits, "broke_first": broke,
            "trials": trials, "conditions": conditions}  # fmt: skip
