# SPDX-License-Identifier: Apache-2.0
"""polyvox serve: start the HTTP server."""

import socket
import time
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyvox.cli.terminal import Model, console
from polyvox.errors import InvalidRequest

if TYPE_CHECKING:
    from polyvox.engine.interface import Engine
    from polyvox.ipc.endpoint import EngineEndpoint
    from polyvox.server.settings import Settings


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to bind; 0.0.0.0 for all interfaces.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.", show_default="8000")
    ] = None,
    model: Model = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default="auto")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, float32 or float64.", show_default="auto")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="HTTP worker processes; 0 runs the engine in the server process.", show_default="1"),
    ] = None,
    max_streams: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum concurrent streams.", show_default="8; on a GPU as many as fit, up to 256"),
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="Memory limit for streams in GB.", show_default="all free memory")
    ] = None,
    slo: Annotated[float | None, typer.Option(help="Maximum time in the queue in seconds.", show_default="10")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with these and all other settings.")] = None,
) -> None:
    """Start an HTTP server with OpenAI- and ElevenLabs-compatible APIs."""
    from polyvox.server.settings import read_settings

    flags = {
        "host": host,
        "port": port,
        "model": model,
        "device": device,
        "dtype": dtype,
        "workers": workers,
        "max_streams": max_streams,
        "memory": memory,
        "slo": slo,
    }
    settings = read_settings(flags, config)
    with _bind(settings.host, settings.port) as listener, ExitStack() as stack:
        from polyvox.server.logs import set_up_logs

        set_up_logs(settings)
        console.print("Settings:\n" + settings.shown(), soft_wrap=True)
        if settings.workers > 1:
            _serve_by_workers(settings, listener, stack)
        else:
            _serve_here(settings, listener, stack)


def _serve_here(settings: "Settings", listener: socket.socket, stack: ExitStack) -> None:
    from polyvox.ipc.blocking import RemoteEngine
    from polyvox.server import workers

    start = time.perf_counter()
    engine: Engine
    if settings.workers:
        engine = RemoteEngine(_engine_process(settings, stack))
    else:
        with console.status("Loading …"):
            engine = workers.build_engine(settings)
    stack.callback(engine.close)
    _print_summary(settings, listener, engine, start)
    workers.serve_here(engine, settings, listener)


def _serve_by_workers(settings: "Settings", listener: socket.socket, stack: ExitStack) -> None:
    from polyvox.ipc.blocking import RemoteEngine
    from polyvox.server import workers

    start = time.perf_counter()
    endpoint = _engine_process(settings, stack)
    engine = RemoteEngine(endpoint)
    _print_summary(settings, listener, engine, start)
    engine.close()
    workers.serve_by_workers(endpoint, settings, listener)


def _engine_process(settings: "Settings", stack: ExitStack) -> "EngineEndpoint":
    from polyvox.ipc.supervisor import EngineProcess
    from polyvox.server import workers

    build = partial(workers.build_engine, settings)
    with console.status("Starting the engine …"):
        return stack.enter_context(EngineProcess(build)).endpoint


def _print_summary(settings: "Settings", listener: socket.socket, engine: "Engine", start: float) -> None:
    """Print the model, the capacity, the address and an example request."""
    info, stats = engine.info(), engine.stats()
    name = "the embedded voice" if settings.model is None else info.identity.name
    voices = f"; voices: {', '.join(info.voices)}" if info.voices else ""
    console.print(f"Loaded {name} in {time.perf_counter() - start:.1f} s{voices}", soft_wrap=True)
    capacity = f"estimated real-time capacity: {stats['capacity']:g} streams"
    console.print(f"Maximum concurrent streams: {stats['slots']:g}; {capacity}.", soft_wrap=True)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}"
    console.print(f"Listening on {address} (press Ctrl-C to stop).", soft_wrap=True)
    if not settings.api_keys and not ip_address(listener.getsockname()[0]).is_loopback:
        console.print("warning: the server accepts requests without authentication. Set api_keys to require a key.")
    console.print("Open the address in a browser for the playground, or try:")
    key = "-H 'authorization: Bearer YOUR_API_KEY' " if settings.api_keys else ""
    body = key + """-H 'content-type: application/json' -d '{"input": "Hello there."}'"""
    console.print(f"  curl {address}/v1/audio/speech {body} -o hello.mp3", soft_wrap=True)


def _bind(host: str, port: int) -> socket.socket:
    from polyvox.server.workers import BACKLOG

    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest("host", host, f"must be an address of this machine: {error.strerror}") from None
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        hint = "Choose another --host or --port."
        raise InvalidRequest("address", f"{host}:{port}", f"cannot be bound: {error.strerror}", hint) from None
