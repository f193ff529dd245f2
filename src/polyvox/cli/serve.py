"""polyvox serve: the HTTP server."""

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
    from polyvox.ipc.messages import EngineEndpoint
    from polyvox.server.settings import Settings

BACKLOG = 2048


def serve(
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; 0.0.0.0 for every network. [127.0.0.1]")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes any free one. [8000]")] = None,
    model: Model = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. [auto]")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, float32 or float64. [auto]")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Server processes; 0 has the engine in the same process. [1]")
    ] = None,
    max_streams: Annotated[
        int | None, typer.Option(min=1, help="Streams that run at once. [8; on a GPU as many as fit, at most 256]")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="GB that the streams may take. [all there is]")] = None,
    slo: Annotated[float | None, typer.Option(help="Seconds that a request may wait for its place. [10]")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file with these and all other settings.")] = None,
) -> None:
    """Start the server: clients of OpenAI's speech API stream from it unchanged."""
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
    with _listener(settings.host, settings.port) as listener, ExitStack() as closing:
        from polyvox.server.logs import set_up_logs

        set_up_logs(settings)
        console.print("Settings:\n" + settings.shown(), soft_wrap=True)
        if settings.workers > 1:
            _serve_by_workers(settings, listener, closing)
        else:
            _serve_here(settings, listener, closing)


def _serve_here(settings: "Settings", listener: socket.socket, closing: ExitStack) -> None:
    from polyvox.ipc.client import RemoteEngine
    from polyvox.server import workers

    began = time.perf_counter()
    engine: Engine
    if settings.workers:
        engine = RemoteEngine(_engine_process(settings, closing))
    else:
        with console.status("Starting …"):
            engine = workers.build_engine(settings)
    closing.callback(engine.close)
    _tell(settings, listener, engine, began)
    workers.serve_here(engine, settings, listener)


def _serve_by_workers(settings: "Settings", listener: socket.socket, closing: ExitStack) -> None:
    from polyvox.ipc.client import RemoteEngine
    from polyvox.server import workers

    began = time.perf_counter()
    door = _engine_process(settings, closing)
    engine = RemoteEngine(door)
    _tell(settings, listener, engine, began)
    engine.close()
    workers.serve_by_workers(door, settings, listener)


def _engine_process(settings: "Settings", closing: ExitStack) -> "EngineEndpoint":
    from polyvox.ipc.supervisor import EngineProcess
    from polyvox.server import workers

    build = partial(workers.build_engine, settings)
    with console.status("Starting the engine …"):
        return closing.enter_context(EngineProcess(build)).door


def _tell(settings: "Settings", listener: socket.socket, engine: "Engine", began: float) -> None:
    """What is loaded, how much it can do, and where it is to be found."""
    facts, stats = engine.info(), engine.stats()
    name = "the embedded voice" if settings.model is None else facts.identity.name
    voices = f"; voices: {', '.join(facts.voices)}" if facts.voices else ""
    console.print(f"Loaded {name} in {time.perf_counter() - began:.1f} s{voices}", soft_wrap=True)
    room = f"There is room for {stats['slots']:g} streams"
    fed = f"by its first measure this machine keeps {stats['capacity']:g} listeners fed at once"
    console.print(f"{room}; {fed}.", soft_wrap=True)
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    console.print(f"Listening on {address} (stop with Ctrl-C).", soft_wrap=True)
    if not settings.api_keys and not ip_address(listener.getsockname()[0]).is_loopback:
        console.print("Everybody who reaches this port may speak: api_keys would change that.")
    console.print("A browser finds the playground there. Or try:")
    key = "-H 'authorization: Bearer YOUR_API_KEY' " if settings.api_keys else ""
    body = key + """-H 'content-type: application/json' -d '{"input": "Hello there."}'"""
    console.print(f"  curl {address}/v1/audio/speech {body} -o hello.mp3", soft_wrap=True)


def _listener(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest("host", host, f"must be an address of this machine: {error.strerror}") from None
    try:
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        hint = "Choose another --host or --port."
        raise InvalidRequest("address", f"{host}:{port}", f"cannot be bound: {error.strerror}", hint) from None
