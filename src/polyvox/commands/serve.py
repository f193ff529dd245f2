"""polyvox serve: the HTTP server."""

import copy
import socket
from typing import Annotated

import typer

from polyvox.commands.terminal import Device, Dtype, Model, console, load
from polyvox.errors import InvalidRequest

GRACE_SECONDS = 5  # for requests that are under way when the server stops


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Start the server: POST a text, get a WAV file."""
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    from polyvox.server.app import create_app

    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest("host", host, f"an address of this machine ({error.strerror})") from None
    try:
        listener = socket.create_server(place[:2], family=family)
    except OSError as error:
        allowed = f"an address and a port that are free here ({error.strerror}): see --host and --port"
        raise InvalidRequest("address", f"{host}:{port}", allowed) from None
    with listener:
        tts = load(model, device, dtype)
        with console.status("Measuring this machine …"):
            capacity = tts.engine.scheduler.capacity()
        console.print(f"By its first measure this machine keeps {capacity} listeners fed at once.")
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}"
        console.print(f"Listening on {address} (stop with Ctrl-C). Try:", soft_wrap=True)
        body = """-H 'content-type: application/json' -d '{"text": "Hello there."}'"""
        example = f"curl {address}/say {body} -o hello.wav"
        console.print(f"  {example}", soft_wrap=True)
        logs = copy.deepcopy(LOGGING_CONFIG)
        logs["handlers"]["access"]["stream"] = "ext://sys.stderr"
        settings = uvicorn.Config(create_app(tts), log_config=logs, timeout_graceful_shutdown=GRACE_SECONDS)
        with tts:
            uvicorn.Server(settings).run(sockets=[listener])
