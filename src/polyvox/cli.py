"""The `polyvox` command. Speech goes to files or stdout; everything that is told goes to stderr."""

import copy
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from polyvox.commands import doctor, voice
from polyvox.errors import InvalidRequest, PolyvoxError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(voice.app, name="voice")
app.command()(doctor.doctor)
console = Console(stderr=True, highlight=False, markup=False)

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="A folder or a hub id; by default the embedded voice.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float32 or float64.")]


GRACE_SECONDS = 5  # for requests that are under way when the server stops


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
    if output != "-" and not Path(output).absolute().parent.is_dir():
        raise InvalidRequest("output", output, "a file in a folder that is there")
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
        _write(audio.wav())
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
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest("host", host, f"an address of this machine ({error.strerror})") from None
    try:
        listener = socket.create_server(place[:2], family=family)
    except OSError as error:
        allowed = f"an address and a port that are free here ({error.strerror}): see --host and --port"
        raise InvalidRequest("address", f"{host}:{port}", allowed) from None
    with listener:
        tts = _load(model, device, dtype)
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


def _write(data: bytes) -> None:
    """All of it to stdout, or an error: a pipe may close, a disk may be full, a write may be short."""
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        sys.stdout = None  # or the interpreter tries to flush it again
        raise InvalidRequest("output", "-", f"a stdout that takes all of it ({error})") from None


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
        console.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
