"""What is measured: a server, or the engine in this process; a load in, a run out."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from polyvox.bench.clients import Target
from polyvox.bench.load import Lag, Load, lag_of, run, run_apart, run_here
from polyvox.bench.metrics import Trace
from polyvox.bench.prompts import fingerprint
from polyvox.bench.results import Conditions, Run, machine
from polyvox.cli.terminal import Device, Dtype, console, load
from polyvox.errors import InvalidRequest

if TYPE_CHECKING:
    from polyvox.bench.load import Progress as Report
    from polyvox.engine.interface import InProcessEngine
    from polyvox.tts import TTS

SIZES = ("0.6B", "1.7B")  # of random weights
PROMPT_ROWS = 32  # beside the text's, and one frame too late

ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="The server's name for it; in process a checkpoint, or 0.6B or 1.7B at random."),
]
Drive = Callable[[Load, "Report | None"], tuple[list[Trace], Lag]]


def progress() -> Progress:
    """A bar on stderr, for people."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@dataclass(frozen=True, slots=True)
class Driver:
    """Whatever is measured: a load in, traces out; and under which conditions."""

    drive: Drive
    conditions: Conditions
    buffer: float

    def run(self, load_: Load, name: str) -> Run:
        """One run, with a bar that shows how far it is."""
        total = load_.warmup + load_.seconds
        with progress() as bar:
            task = bar.add_task(name, total=total)

            def report(elapsed: float, done: int, under_way: int) -> None:
                phase = "warming up" if elapsed < load_.warmup else "measuring" if elapsed < total else "ending"
                bar.update(
                    task,
                    completed=min(elapsed, total),
                    description=f"{name}: {phase}, {done} done, {under_way} under way",
                )

            traces, lag = self.drive(load_, report)
        return Run(load_, lag, traces, self.buffer)


@dataclass(frozen=True, slots=True)
class Subject:
    """The options that say what is measured."""

    base_url: Annotated[str | None, typer.Option(help="The server, such as http://127.0.0.1:8000.")] = None
    in_process: Annotated[
        bool, typer.Option("--in-process", help="The engine in this process instead of a server.")
    ] = False
    protocol: Annotated[str, typer.Option(help="http (raw), sse, or ws (vLLM-Omni's WebSocket).")] = "http"
    endpoint: Annotated[str | None, typer.Option(help="Instead of /v1/audio/speech.")] = None
    model: ModelName = None
    voice: Annotated[str | None, typer.Option(help="A voice; by default none is asked for.")] = None
    form: Annotated[str, typer.Option("--format", help="pcm or wav.")] = "pcm"
    sample_rate: Annotated[int, typer.Option(help="Of pcm that does not say it.")] = 24_000
    extra_body: Annotated[str, typer.Option(help="JSON put over each request's body; null takes a field out.")] = "{}"
    api_key: Annotated[
        str | None, typer.Option(envvar="POLYVOX_BENCH_KEY", help="Sent as a bearer token; never stored.")
    ] = None
    request_seeds: Annotated[bool, typer.Option("--request-seeds", help="Send each request a seed of its own.")] = False
    processes: Annotated[int, typer.Option(min=0, help="Of the client; 0 takes as many as the load needs.")] = 0
    frames: Annotated[
        int | None, typer.Option(help="In process: each utterance has exactly so many frames of 80 ms.")
    ] = None
    tokens: Annotated[int | None, typer.Option(help="In process, random weights: each text has so many tokens.")] = None
    slots: Annotated[
        int | None,
        typer.Option(help="In process: streams that run at once. [the largest load, or what fits]"),
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    note: Annotated[str | None, typer.Option(help="Told beside the figures, such as the server's settings.")] = None

    def driver(self, texts: tuple[str, ...], loads: Sequence[Load], buffer: float, stack: ExitStack) -> Driver:
        if self.in_process == (self.base_url is not None):
            raise InvalidRequest("base-url", self.base_url, "exactly one of --base-url and --in-process is required")
        conditions = machine() | {"prompts": f"{len(texts)} texts, {fingerprint(texts)}", "note": self.note}
        if self.in_process:
            return self._engine(texts, loads, buffer, stack, conditions)
        for name in ("frames", "tokens", "slots"):
            if getattr(self, name) is not None:
                raise InvalidRequest(name, getattr(self, name), "requires --in-process")
        target = self.target()
        shown = asdict(target)
        del shown["headers"]  # a key may be in them
        cores = int(conditions["cores"] or 1)

        def drive(load_: Load, report: "Report | None") -> tuple[list[Trace], Lag]:
            return run(target, load_, texts, self.processes or load_.processes(cores), report)

        return Driver(drive, conditions | {"target": shown}, buffer)

    def target(self) -> Target:
        for name, value, allowed in (
            ("protocol", self.protocol, ("http", "sse", "ws")),
            ("format", self.form, ("pcm", "wav")),
        ):
            if value not in allowed:
                raise InvalidRequest(name, value, allowed)
        try:
            extra = json.loads(self.extra_body)
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise InvalidRequest("extra-body", self.extra_body, "must be a JSON object")
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        target = Target(
            self.base_url or "", self.protocol, self.endpoint, self.model, self.voice, self.form,  # type: ignore[arg-type]
            self.sample_rate, extra, headers, self.request_seeds,
        )  # fmt: skip
        target.check()
        return target

    def _engine(
        self, texts: tuple[str, ...], loads: Sequence[Load], buffer: float, stack: ExitStack, conditions: Conditions
    ) -> Driver:
        from polyvox.bench.inprocess import STREAMS_A_READER, DoorClient, EngineClient, engine_client
        from polyvox.ipc.client import RemoteEngine
        from polyvox.ipc.supervisor import EngineProcess
        from polyvox.tts import placement

        closed = [int(each.level) for each in loads if each.mode == "closed"]
        slots = self.slots or max(closed, default=0)  # for a rate, what the engine takes by itself
        patience = max(each.timeout for each in loads)
        device, dtype = placement(self.device, self.dtype)
        drive: Drive
        with console.status("Starting the engine …"):
            if device.type == "cuda":  # a GPU feeds more streams than one interpreter can also listen to
                process = stack.enter_context(EngineProcess(partial(_build, self, slots, patience)))
                with closing(RemoteEngine(process.door)) as remote:
                    slots = int(remote.stats()["slots"])
                apart, cores = DoorClient(process.door, self.voice, self.frames), int(conditions["cores"] or 1)

                def drive(load_: Load, report: "Report | None") -> tuple[list[Trace], Lag]:
                    readers = self.processes or load_.processes(cores, STREAMS_A_READER)
                    return run_apart(apart, load_, texts, readers, report)
            else:
                engine = stack.enter_context(self._tts(slots, patience)).engine
                slots = engine.config.max_streams
                client = EngineClient(engine, engine.info().sampling, self.voice, self.frames)

                def drive(load_: Load, report: "Report | None") -> tuple[list[Trace], Lag]:
                    out = run_here(partial(engine_client, client), load_, texts, report)
                    return out.traces, lag_of([out], processes=0)

        place = f"{device}, {str(dtype).removeprefix('torch.')}"
        about = {"model": self.model or "embedded", "on": place, "slots": slots, "frames": self.frames}
        return Driver(drive, conditions | {"engine": about | {"threads": _threads()}}, buffer)

    def _tts(self, slots: int, patience: float) -> "TTS":
        """An engine that takes every request, however long it waits: what is too much is to be seen, not refused."""
        from polyvox.engine.config import MIN_CONTEXT, EngineConfig

        context = EngineConfig().context
        if self.frames is not None and self.tokens is not None:  # no more memory than they need
            context = max(MIN_CONTEXT, self.frames + self.tokens + PROMPT_ROWS)
        config = EngineConfig(max_streams=slots, context=context, max_queue=4096, max_queue_seconds=patience)
        if self.model in SIZES:
            if self.frames is None:
                raise InvalidRequest("frames", None, "is required with random weights, which do not end by themselves")
            from polyvox.bench.weights import random_tts

            return random_tts(str(self.model), self.device, self.dtype, config, self.tokens)
        if self.tokens is not None:
            raise InvalidRequest("tokens", self.tokens, "requires random weights; a checkpoint has its own tokenizer")
        return load(self.model, self.device, self.dtype, config)


def _build(subject: Subject, slots: int, patience: float) -> "InProcessEngine":
    """In the engine's own process."""
    return subject._tts(slots, patience).engine


def _threads() -> int:
    import torch

    return torch.get_num_threads()
