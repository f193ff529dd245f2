"""polyvox say: a text of any length, into a file, a pipe or the loudspeaker."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from polyvox.audio.clip import Samples
from polyvox.audio.formats import Encoder, format_for_path
from polyvox.audio.player import Player
from polyvox.cli.terminal import Device, Dtype, Model, console, load
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.files import write_atomically
from polyvox.reading import Reading, Spoken, lines_of
from polyvox.reading import subtitles as times
from polyvox.text import TextRules, load_lexicon

DEFAULT = "speech.wav"
SUBTITLES: dict[str, Literal["srt", "vtt"]] = {".srt": "srt", ".vtt": "vtt"}


def say(
    text: Annotated[str | None, typer.Argument(help="What to say; - or nothing reads stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the text from a file.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help=f"By its ending wav, flac, mp3 …; - is stdout. Else {DEFAULT}.")
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Through the loudspeaker, while it is made.")] = False,
    voice: Annotated[str | None, typer.Option("--voice", "-v", help="By default the first one.")] = None,
    language: Annotated[str, typer.Option("--language", "-l", help="auto, or a language of the model.")] = "auto",
    instructions: Annotated[
        str | None, typer.Option("--instructions", "-i", help="How to speak, for models that take it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same speech.")] = None,
    speed: Annotated[float, typer.Option(help="From 0.25 to 4, at the same pitch.")] = 1.0,
    rate: Annotated[int | None, typer.Option(help="The file's sample rate, from 8000 to 48000.")] = None,
    subtitles: Annotated[Path | None, typer.Option(help="Times of the sentences, as .srt or .vtt.")] = None,
    lexicon: Annotated[Path | None, typer.Option(help="A file of lines such as: GIF = jiff")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Say the text as it is written.")] = False,
    show_text: Annotated[bool, typer.Option("--show-text", help="Show what is said, sentence by sentence.")] = False,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Speak a text of any length; what was interrupted goes on where it was."""
    if output is None and not play:
        output = DEFAULT if sys.stdout.isatty() else "-"
    _check_places(output, rate, subtitles)
    rules = TextRules(language, load_lexicon(lexicon) if lexicon else {}, enabled=not as_is)
    said = _text(text, file)
    lines_of(said, rules)  # before a model is loaded for nothing
    with load(model, device, dtype) as tts, ExitStack() as closing:
        began = time.perf_counter()
        many = output not in (None, "-") and len(lines_of(said, rules)[0]) > 1
        keep = Path(f"{output}.parts") if many else None
        reading = tts.read(said, voice, language, instructions, seed, None, speed, rules, keep)
        _tell(reading)
        sinks: list[Sink] = []
        if output is not None:
            sinks.append(closing.enter_context(Written(output, tts.sample_rate, rate)))
        if play:
            sinks.append(closing.enter_context(Player(tts.sample_rate)))
        cues, cut, end = [], 0, 0
        for spoken in _with_progress(reading, show_text):
            for sink in sinks:
                sink.push(np.concatenate([spoken.samples, np.zeros(spoken.pause, np.float32)]))
            cues += [(spoken.start, spoken.end, spoken.line.text)] if spoken.line.text else []
            cut += spoken.finish_reason != "stop"
            end = spoken.end + spoken.pause
        for sink in sinks:
            sink.finish()
        if subtitles is not None:
            write_atomically(subtitles, times(cues, tts.sample_rate, SUBTITLES[subtitles.suffix.lower()]).encode())
        if reading.shelf is not None:
            reading.shelf.clear()
        took, seconds = time.perf_counter() - began, end / tts.sample_rate
        places = ", ".join(str(place) for place in (output, subtitles) if place) or "played"
        speech = f"{seconds:.2f} s of speech in {took:.2f} s ({seconds / took:.1f} × real time)"
        console.print(f"{places}: {speech}, seed {reading.seed}", soft_wrap=True)
        if cut:
            console.print(f"{cut} of {len(cues)} sentences did not end by themselves and were cut: try another --seed.")
        others = [name for name in tts.voices if name.lower() != (voice or tts.voices[0]).lower()]
        if others:
            console.print(f"Another voice: add --voice {others[0]}. Over the network: polyvox serve")


class Sink(Protocol):
    def push(self, samples: Samples) -> object: ...
    def finish(self) -> object: ...


class Written:
    """A file, which is there when it is whole, or stdout, where all that is ready leaves at once."""

    def __init__(self, place: str, sample_rate: int, rate: int | None) -> None:
        self._path = None if place == "-" else Path(place)
        name = "wav" if self._path is None else format_for_path(self._path).name
        self._encoder = Encoder(name, sample_rate, rate, streaming=self._path is None)

    def push(self, samples: Samples) -> None:
        self._write(self._encoder.push(samples))

    def finish(self) -> None:
        self._write(self._encoder.finish())

    def _write(self, data: bytes) -> None:
        if self._path is None:
            _to_stdout(data)
        elif data:  # all of it, as it is not streamed
            write_atomically(self._path, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoder.close()


def _to_stdout(data: bytes) -> None:
    """All of it, or an error: a pipe may close, a disk may be full, a write may be short."""
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        sys.stdout = None  # or the interpreter tries to flush it again
        raise InvalidRequest("output", "-", f"cannot write to stdout: {error}") from None


def _text(text: str | None, file: Path | None) -> str:
    if text is not None and text != "-" and file is not None:
        raise InvalidRequest("file", str(file), "cannot be combined with a text argument")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if text in (None, "-"):
            if sys.stdin.isatty():
                hint = 'Try: polyvox say "Hello there."'
                raise InvalidRequest("text", NOT_SHOWN, "must be an argument, a --file or stdin", hint)
            return sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise InvalidRequest("file", str(file), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "file" if file else "text", str(file or "stdin"), f"must be UTF-8: {error.reason}"
        ) from None
    assert text is not None
    return text


def _check_places(output: str | None, rate: int | None, subtitles: Path | None) -> None:
    """Before anything is loaded: whether all of it can be written."""
    if output == "-":
        if sys.stdout.isatty():
            raise InvalidRequest("output", output, "must be a file when stdout is a terminal")
    elif output is not None:
        _check_folder("output", Path(output))
        Encoder(format_for_path(output).name, 24_000, rate).close()
    if subtitles is not None:
        _check_folder("subtitles", subtitles)
        if subtitles.suffix.lower() not in SUBTITLES:
            raise InvalidRequest("subtitles", str(subtitles), "must end in .srt or .vtt")


def _check_folder(field: str, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(field, str(path), "the folder does not exist")


def _tell(reading: Reading) -> None:
    """What is there already, and what is not said as it is written."""
    if reading.shelf is not None and len(reading.shelf):
        console.print(f"Going on: {len(reading.shelf)} of {len(reading.lines)} sentences were spoken before.")
    kinds = Counter(note.kind for note in reading.notes)
    if kinds:
        told = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
        console.print(f"Not said as written: {told}. Show it with --show-text; --as-is says all of it.", soft_wrap=True)


def _with_progress(reading: Reading, show_text: bool) -> Iterator[Spoken]:
    """The same, with a bar and the time that is left on stderr."""
    total = sum(len(line.text) + 1 for line in reading.lines)
    columns = TextColumn("Speaking … {task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        for spoken in reading:
            if show_text and spoken.line.text:
                console.print(spoken.line.text, soft_wrap=True)
            yield spoken
            minutes, seconds = divmod(spoken.end // reading.engine.sample_rate, 60)
            done = f"{spoken.index + 1} of {len(reading.lines)}, {minutes}:{seconds:02}"
            progress.update(task, advance=len(spoken.line.text) + 1, description=done)
