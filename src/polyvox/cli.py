"""The `polyvox` command. Speech goes to files or stdout; everything that is told goes to stderr."""

import copy
import socket
import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from polyvox.errors import InvalidRequest, PolyvoxError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True, highlight=False)

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="A folder or a hub id; by default the embedded voice.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float32 or float64.")]


@app.callback()
def polyvox() -> None:
    """Speech from Qwen3-TTS checkpoints."""


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say.")],
    output: Annotated[str, typer.Option("--output", "-o", help="A .wav file, or - for stdout.")] = "speech.wav",
    voice: Annotated[str | None, typer.Option("--voice", "-v", help="By default the first one.")] = None,
    language: Annotated[str, typer.Option("--language", "-l", help="auto, or a language of the model.")] = "auto",
    instructions: Annotated[
        str | None, typer.Option("--instructions", "-i", help="How to speak, for models that take it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same speech.")] = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Speak a text into a file."""
    if output != "-" and not output.lower().endswith(".wav"):
        raise InvalidRequest("output", output, "a name that ends in .wav, or - for stdout")
    if output == "-" and sys.stdout.isatty():
        raise InvalidRequest("output", output, "a file, or - where stdout is a pipe")
    tts = _load(model, device, dtype)
    stream = tts.stream(text, voice, language, instructions, seed)
    began = time.perf_counter()
    chunks = []
    with console.status("Speaking …") as status:
        for chunk in stream:
            chunks.append(chunk)
            spoken = sum(map(len, chunks)) / tts.sample_rate
            status.update(f"Speaking … {spoken:.1f} s")
    took = time.perf_counter() - began
    audio = stream.audio(chunks)
    if output == "-":
        sys.stdout.buffer.write(audio.wav())
    else:
        audio.save(output)
    console.print(
        f"{output}: {audio.seconds:.2f} s of speech in {took:.2f} s "
        f"({audio.seconds / took:.1f} × real time), seed {audio.seed}"
    )
    if audio.finish_reason == "length":
        console.print("It was cut at the longest utterance of this model: split the text at sentences.")
    others = [name for name in tts.voices if name != (voice or tts.voices[0]).lower()]
    if others:
        console.print(f"Another voice: add --voice {others[0]}. Over the network: polyvox serve")


@app.command()
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
        listener = socket.create_server((host, port))
    except OSError as error:
        raise InvalidRequest(
            "port", f"{host}:{port}", f"a free one ({error.strerror}): choose it with --port"
        ) from None
    with listener:
        tts = _load(model, device, dtype)
        address = f"http://{host}:{listener.getsockname()[1]}"
        console.print(f"Listening on {address} (stop with Ctrl-C). Try:", soft_wrap=True)
        example = f'curl {address}/say --json \'{{"text": "Hello there."}}\' --output hello.wav'
        console.print(f"  {example}", soft_wrap=True, markup=False)
        logs = copy.deepcopy(LOGGING_CONFIG)
        logs["handlers"]["access"]["stream"] = "ext://sys.stderr"
        server = uvicorn.Server(uvicorn.Config(create_app(tts), log_config=logs))
        server.run(sockets=[listener])


def _load(model: str | None, device: str, dtype: str):  # type: ignore[no-untyped-def]  # torch loads late
    with console.status("Starting …"):
        from polyvox.tts import load
    began = time.perf_counter()
    tts = load(model, device, dtype, progress=console.is_terminal)
    name = model or "the embedded voice"
    place = f"{tts.speech.device.type}, {str(tts.speech.dtype).removeprefix('torch.')}"
    voices = f"; voices: {', '.join(tts.voices)}" if tts.voices else ""
    console.print(f"Loaded {name} in {time.perf_counter() - began:.1f} s ({place}){voices}", soft_wrap=True)
    return tts


def main() -> None:
    """Runs the command; an error of ours is one sentence on stderr, never a traceback."""
    try:
        app()
    except PolyvoxError as error:
        console.print(f"[red]error:[/] {error}", soft_wrap=True)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
