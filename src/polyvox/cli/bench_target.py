# SPDX-License-Identifier: Apache-2.0
"""The target of a benchmark: a server, or the engine without one."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from polyvox.bench.clients import ServerTarget
from polyvox.bench.load import ClientLag, Load
from polyvox.bench.load_generator import client_lag, run_in_process, run_in_processes, run_on_server
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.prompts import fingerprint
from polyvox.bench.results import Conditions, Run, machine
from polyvox.cli.terminal import Device, Dtype, UsageError, console, load
from polyvox.errors import InvalidRequest, PolyvoxError

if TYPE_CHECKING:
    from polyvox.bench.load_generator import ProgressCallback
    from polyvox.engine.interface import InProcessEngine
    from polyvox.tts import TTS

PROMPT_ROWS = 32  # upper bound on the prompt rows that are not text tokens
MAX_QUEUE = 4096

# Fields that select what is sent to a server, and their options.
SERVER_OPTIONS = {
    "protocol": "--protocol",
    "endpoint": "--endpoint",
    "audio_format": "--format",
    "sample_rate": "--sample-rate",
    "extra_body": "--extra-body",
    "request_seeds": "--request-seeds",
    "text_rate": "--text-rate",
}
CONNECT_TIMEOUT = 5.0  # seconds
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

RunLoad = Callable[[Load, "ProgressCallback | None"], tuple[list[RequestTrace], ClientLag]]


def progress_bar() -> Progress:
    """A progress bar on stderr if it is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A target that is ready to be measured, and the conditions of the measurement."""

    run_load: RunLoad
    conditions: Conditions
    buffer: float

    def run(self, load_: Load, name: str) -> Run:
        """One run, with a progress bar."""
        end = load_.warmup + load_.seconds if load_.num_prompts is None else inf
        with progress_bar() as bar:
            task = bar.add_task(name, total=load_.num_prompts or end)

            def on_progress(elapsed: float, completed: int, in_flight: int) -> None:
                phase = "warm-up" if elapsed < load_.warmup else "measuring" if elapsed < end else "draining"
                bar.update(
                    task,
                    completed=min(elapsed, end) if load_.num_prompts is None else min(completed, load_.num_prompts),
                    description=f"{name}: {phase}, {completed} completed, {in_flight} in flight",
                )

            traces, lag = self.run_load(load_, on_progress)
        return Run(load_, lag, traces, self.buffer)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options that select the target."""

    base_url: Annotated[str | None, typer.Option(help="URL of the server, such as http://127.0.0.1:8000.")] = None
    in_process: Annotated[bool, typer.Option("--in-process", help="Measure the engine without an HTTP server.")] = False
    protocol: Annotated[str, typer.Option(help="http (raw body), sse, or ws (vLLM-Omni's WebSocket).")] = "http"
    endpoint: Annotated[str | None, typer.Option(help="Path on the server, instead of /v1/audio/speech.")] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Server: the model name to send. In process: a checkpoint, or 0.6B or 1.7B for random weights.",
        ),
    ] = None
    voice: Annotated[str | None, typer.Option(help="Voice to send; by default none.")] = None
    audio_format: Annotated[str, typer.Option("--format", help="pcm or wav.")] = "pcm"
    sample_rate: Annotated[int, typer.Option(help="Sample rate of PCM if the response does not declare it.")] = 24_000
    extra_body: Annotated[
        str, typer.Option(help="JSON object merged into each request body; null removes a field.")
    ] = "{}"
    api_key: Annotated[str | None, typer.Option(envvar="POLYVOX_BENCH_KEY", help="Bearer token; never saved.")] = None
    request_seeds: Annotated[bool, typer.Option("--request-seeds", help="Send a seed with each request.")] = False
    text_rate: Annotated[
        float | None, typer.Option(help="Live text over ws: tokens per second; by default the whole text at once.")
    ] = None
    processes: Annotated[int, typer.Option(min=0, help="Client processes; 0 chooses by load.")] = 0
    frames: Annotated[
        int | None, typer.Option(help="In process: exact length of each utterance in frames of 80 ms.")
    ] = None
    tokens: Annotated[int | None, typer.Option(help="In process, random weights: tokens per text.")] = None
    max_streams: Annotated[
        int | None,
        typer.Option(help="In process: concurrent streams of the engine; by default the highest concurrency."),
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    note: Annotated[str | None, typer.Option(help="Note saved with the result, such as the server's settings.")] = None

    def open_target(
        self, texts: tuple[str, ...], loads: Sequence[Load], buffer: float, stack: ExitStack
    ) -> BenchTarget:
        """Prepares the target for these loads; the stack closes what was started."""
        if self.in_process == (self.base_url is not None):
            raise UsageError("Give one of --base-url URL and --in-process.")
        conditions = machine() | {"prompts": f"{len(texts)} texts, {fingerprint(texts)}", "note": self.note}
        if self.in_process:
            self._reject_server_options()
            return self._open_engine(texts, loads, buffer, stack, conditions)
        for name in ("frames", "tokens", "max_streams"):
            if getattr(self, name) is not None:
                raise InvalidRequest(name, getattr(self, name), "requires --in-process")
        server = self.server_target()
        check_connection(server.base_url)
        shown = asdict(server)
        del shown["headers"]  # may contain an API key
        cores = int(conditions["cores"] or 1)

        def run_load(load_: Load, on_progress: "ProgressCallback | None") -> tuple[list[RequestTrace], ClientLag]:
            return run_on_server(server, load_, texts, self.processes or load_.num_processes(cores), on_progress)

        return BenchTarget(run_load, conditions | {"target": shown}, buffer)

    def _reject_server_options(self) -> None:
        for name, option in SERVER_OPTIONS.items():
            if (value := getattr(self, name)) != getattr(TargetOptions(), name):
                raise InvalidRequest(option, value, "requires --base-url")

    def server_target(self) -> ServerTarget:
        for name, value, allowed in (
            ("protocol", self.protocol, ("http", "sse", "ws")),
            ("format", self.audio_format, ("pcm", "wav")),
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
        target = ServerTarget(
            self.base_url or "", self.protocol, self.endpoint, self.model, self.voice, self.audio_format,  # type: ignore[arg-type]
            self.sample_rate, extra, headers, self.request_seeds, self.text_rate,
        )  # fmt: skip
        target.check()
        return target

    def _open_engine(
        self, texts: tuple[str, ...], loads: Sequence[Load], buffer: float, stack: ExitStack, conditions: Conditions
    ) -> BenchTarget:
        from polyvox.tts import placement

        concurrencies = [int(each.level) for each in loads if each.is_closed]
        max_streams = self.max_streams or max(concurrencies, default=0)  # 0: the engine's default
        timeout = max(each.timeout for each in loads)
        device, dtype = placement(self.device, self.dtype)
        # On a GPU the engine needs its GIL for itself, so it runs in its own process, as in the server.
        start = self._start_remote if device.type == "cuda" else self._start_local
        with console.status("Starting the engine …"):
            run_load, max_streams = start(texts, max_streams, timeout, stack, int(conditions["cores"] or 1))
        engine = {
            "model": self.model or "embedded",
            "device": str(device),
            "dtype": str(dtype).removeprefix("torch."),
            "max_streams": max_streams,
            "frames": self.frames,
            "threads": _num_threads(),
        }
        return BenchTarget(run_load, conditions | {"engine": engine}, buffer)

    def _start_remote(
        self, texts: tuple[str, ...], max_streams: int, timeout: float, stack: ExitStack, cores: int
    ) -> tuple[RunLoad, int]:
        from polyvox.bench.engine_client import STREAMS_PER_READER, RemoteEngineClient, remote_stats
        from polyvox.ipc.supervisor import EngineProcess

        process = stack.enter_context(EngineProcess(partial(_build_engine, self, max_streams, timeout)))
        max_streams = int(asyncio.run(remote_stats(process.endpoint))["slots"])
        new_client = RemoteEngineClient(process.endpoint, self.voice, self.frames)

        def run_load(load_: Load, on_progress: "ProgressCallback | None") -> tuple[list[RequestTrace], ClientLag]:
            processes = self.processes or load_.num_processes(cores, STREAMS_PER_READER)
            return run_in_processes(new_client, load_, texts, processes, on_progress)

        return run_load, max_streams

    def _start_local(
        self, texts: tuple[str, ...], max_streams: int, timeout: float, stack: ExitStack, _cores: int
    ) -> tuple[RunLoad, int]:
        from polyvox.bench.engine_client import EngineClient, engine_client
        from polyvox.engine.async_engine import AsyncLocalEngine

        engine = stack.enter_context(self.build_tts(max_streams, timeout)).engine
        client = EngineClient(AsyncLocalEngine(engine), engine.info().sampling, self.voice, self.frames)

        def run_load(load_: Load, on_progress: "ProgressCallback | None") -> tuple[list[RequestTrace], ClientLag]:
            result = run_in_process(partial(engine_client, client), load_, texts, on_progress)
            return result.traces, client_lag([result], processes=0)

        return run_load, engine.config.max_streams

    def build_tts(self, max_streams: int, timeout: float) -> "TTS":
        """An engine that queues every request until its timeout: overload shows as latency, not as rejections."""
        from polyvox.engine.config import MIN_CONTEXT, EngineConfig
        from polyvox.models.registry import published_sizes, random_model
        from polyvox.tts import TTS, load_options

        context = 0
        if self.frames is not None and self.tokens is not None:
            context = max(MIN_CONTEXT, self.frames + self.tokens + PROMPT_ROWS)
        config = EngineConfig(max_streams, context, max_queue=MAX_QUEUE, max_queue_seconds=timeout)
        if self.model in published_sizes():
            if self.frames is None:
                raise InvalidRequest("frames", None, "is required with random weights, which do not end an utterance")
            return TTS(random_model(str(self.model), load_options(self.device, self.dtype), self.tokens), config)
        if self.tokens is not None:
            raise InvalidRequest("tokens", self.tokens, "requires random weights; a checkpoint has its own tokenizer")
        return load(self.model, self.device, self.dtype, config)


def check_connection(base_url: str) -> None:
    """Raises PolyvoxError if nothing listens at the URL: otherwise each request of the run would fail."""
    parts = urlsplit(base_url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidRequest("--base-url", base_url, f"must be a URL with a valid port: {error}") from None
    try:
        socket.create_connection((parts.hostname or "", port), CONNECT_TIMEOUT).close()
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        hint = f" Start the server with: polyvox serve --port {port}" if parts.hostname in LOCAL_HOSTS else ""
        raise PolyvoxError(f"Cannot connect to {base_url}: {reason}.{hint}") from None


def _build_engine(options: TargetOptions, max_streams: int, timeout: float) -> "InProcessEngine":
    """Runs in the engine's process."""
    return options.build_tts(max_streams, timeout).detach_engine()


def _num_threads() -> int:
    import torch

    return torch.get_num_threads()
