# SPDX-License-Identifier: Apache-2.0
"""polyvox think: the thinker of a Qwen3-Omni checkpoint for `polyvox serve --llm`."""

import asyncio
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from polyvox.errors import InvalidRequest, how_to_install

if TYPE_CHECKING:
    from polyvox.thinkers.transformers_thinker import TransformersThinker

Model = Annotated[str, typer.Option("--model", "-m", help="Checkpoint folder or Hugging Face id.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 for any free one.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16 or float32.")]
# For the process that `polyvox serve` starts.
StopWithStdin = Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)]


def think(
    model: Model,
    host: Host = "127.0.0.1",
    port: Port = 8001,
    device: Device = "auto",
    dtype: Dtype = "auto",
    stop_with_stdin: StopWithStdin = False,
) -> None:
    """Serve the thinker of a Qwen3-Omni checkpoint with transformers, for one user at a time.

    It accepts audio and images, and returns the hidden states that the talker reads. Needs the packages of
    the extra omni.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        requirement = f"requires the package transformers: {how_to_install('omni')}"
        raise InvalidRequest("model", model, requirement) from None
    from polyvox.thinkers.transformers_thinker import TransformersThinker

    if stop_with_stdin:
        threading.Thread(target=_wait_for_stdin, name="polyvox-stdin", daemon=True).start()
    thinker = TransformersThinker.load(model, device, dtype)
    asyncio.run(_serve(thinker, model, host, port))


async def _serve(thinker: "TransformersThinker", model: str, host: str, port: int) -> None:
    from polyvox.thinkers.transformers_server import TransformersServer

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with TransformersServer(thinker, model).listen(host, port) as url:
        typer.echo(f"Listening on {url} (press Ctrl-C to stop).", err=True)
        await stopped.wait()


def _wait_for_stdin() -> None:
    """Ends the process when the parent has ended, also while the model is loading."""
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)
