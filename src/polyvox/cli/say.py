# SPDX-License-Identifier: Apache-2.0
"""polyvox say: speak a text of any length to a file, a pipe or the loudspeaker."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Protocol, Self

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from polyvox.audio.formats import RATES, Encoder, format_for_path
from polyvox.audio.player import Player
from polyvox.audio.samples import Samples
from polyvox.cli.terminal import (
    Device,
    Dtype,
    Interrupted,
    Model,
    VocoderDevice,
    console,
    load,
    named_options,
    remembering_interrupts,
)
from polyvox.cli.text_notes import describe_notes
from polyvox.errors import NOT_SHOWN, InvalidRequest, PolyvoxError
from polyvox.files import write_atomically
from polyvox.long_form import DEFAULT_PAUSES, LongFormReader, Sentence, SpokenSentence, split_text
from polyvox.subtitles import Cue, SubtitleFormat, format_subtitles, word_cues
from polyvox.text import Lexicon, Note, TextRules, load_lexicon
from polyvox.text.phonemes import unmark_phonemes

DEFAULT_OUTPUT = "speech.wav"
BROKEN_PIPE = 141  # exit status when the reader of stdout has ended, as of a shell
PROGRESS_INTERVAL = 10.0  # seconds between two lines about the progress where stderr is no terminal
SUBTITLES: dict[str, SubtitleFormat] = {".srt": "srt", ".vtt": "vtt"}


def say(
    words: Annotated[
        list[str] | None, typer.Argument(help="Text to speak; - or none reads stdin.", metavar="TEXT")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the text from a file.")] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Output file (.wav, .flac, .mp3 …); - for stdout.", show_default=DEFAULT_OUTPUT
        ),
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play the audio while it is generated.")] = False,
    voice: Annotated[str | None, typer.Option("--voice", "-v", help="Voice.", show_default="the first one")] = None,
    language: Annotated[
        str, typer.Option("--language", "-l", help="auto, or a language of the model, such as english, en or en-GB.")
    ] = "auto",
    instructions: Annotated[
        str | None, typer.Option("--instructions", "-i", help="How to speak, for models that support it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same speech.")] = None,
    speed: Annotated[float, typer.Option(help="Speed from 0.25 to 4, at the same pitch.")] = 1.0,
    rate: Annotated[int | None, typer.Option(help=f"Sample rate of the file: {', '.join(map(str, RATES))}.")] = None,
    subtitles: Annotated[Path | None, typer.Option(help="Write subtitles to this file (.srt or .vtt).")] = None,
    word_times: Annotated[
        bool, typer.Option("--word-times", help="Write the estimated times of words to the subtitles.")
    ] = False,
    lexicon: Annotated[Path | None, typer.Option(help="File with pronunciations, such as: GIF = jiff")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Speak the text without normalisation.")] = False,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Print the normalised text and speak nothing.")
    ] = False,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    vocoder_device: VocoderDevice = "auto",
) -> None:
    """Speak a text of any length. An interrupted run resumes when repeated."""
    text = " ".join(words) if words else None
    if output is None and not play:
        output = DEFAULT_OUTPUT if sys.stdout.isatty() else "-"
    _check_outputs(output, rate, subtitles)
    if word_times and subtitles is None:
        raise InvalidRequest("--word-times", NOT_SHOWN, "requires --subtitles")
    with named_options(lexicon="--lexicon"):
        rules = TextRules(language, load_lexicon(lexicon) if lexicon else Lexicon(), enabled=not as_is)
    content = _read_text(text, file)
    sentences, normalizer = split_text(content, rules)  # fails before the model is loaded
    if show_text:
        if languages := ", ".join(f"{name} ({count})" for name, count in normalizer.languages.items()):
            console.print(f"Sentences by language: {languages}.", soft_wrap=True)
        _print_notes(normalizer.notes, hint="Use --as-is to disable normalisation.")
        _print_text(sentences)
        return
    with load(model, device, dtype, vocoder_device=vocoder_device) as tts:
        resumable = output not in (None, "-") and len(sentences) > 1
        keep = Path(f"{output}.parts") if resumable else None
        reader = tts.read(content, voice, language, instructions, seed, None, speed, rules, keep, word_times)
        _print_resumed(reader)
        _print_notes(reader.notes, hint="Use --show-text to see the spoken text, --as-is to disable normalisation.")
        try:
            _speak(reader, output, rate, play, subtitles)
        except KeyboardInterrupt:
            raise Interrupted(_describe_interruption(reader, keep)) from None
        if voice is None and console.is_terminal:
            others = tts.voices[1:]
            next_voice = f"Try another voice with --voice {others[0]}, or start" if others else "Start"
            console.print(f"{next_voice} a server with: polyvox serve")


def _speak(reader: LongFormReader, output: str | None, rate: int | None, play: bool, subtitles: Path | None) -> None:
    """Speaks all sentences to the outputs, and prints a summary."""
    start, sample_rate = time.perf_counter(), reader.engine.sample_rate
    cues: list[Cue] = []
    subtitle_format = None if subtitles is None else SUBTITLES[subtitles.suffix.lower()]
    num_sentences = num_cut = end = 0
    with ExitStack() as stack:
        sinks: list[AudioSink] = []
        if output is not None:
            sinks.append(stack.enter_context(FileOutput(output, sample_rate, rate)))
        if play:
            sinks.append(stack.enter_context(Player(sample_rate)))
        check_interrupt = stack.enter_context(remembering_interrupts())
        for spoken in _with_progress(reader):
            check_interrupt()
            for sink in sinks:
                sink.push(np.concatenate([spoken.samples, np.zeros(spoken.pause, np.float32)]))
            num_sentences += bool(spoken.text)
            if spoken.text and subtitle_format is not None:
                cue = (spoken.start, spoken.end, spoken.text)
                cues += word_cues(cue, spoken.words, sample_rate, subtitle_format)
            num_cut += spoken.finish_reason != "stop"
            end = spoken.end + spoken.pause
        for sink in sinks:
            sink.finish()
    if subtitles is not None and subtitle_format is not None:
        write_atomically(subtitles, format_subtitles(cues, sample_rate, subtitle_format).encode())
    if reader.store is not None:
        reader.store.clear()
    elapsed, seconds = time.perf_counter() - start, end / sample_rate
    summary = f"{'Played' if output is None else 'Wrote'} {seconds:.2f} s of speech"
    summary += "" if output is None else f" to {'stdout' if output == '-' else output}"
    summary += "" if subtitles is None else f", subtitles to {subtitles},"
    taken = f"in {elapsed:.2f} s ({seconds / elapsed:.1f} × real time), seed {reader.seed}"
    console.print(f"{summary} {taken}", soft_wrap=True)
    if num_cut:
        console.print(f"warning: {num_cut} of {num_sentences} sentences were cut. Try another --seed.")


class AudioSink(Protocol):
    def push(self, samples: Samples) -> object: ...
    def finish(self) -> object: ...


class FileOutput:
    """A file, written atomically at the end, or stdout, to which bytes are streamed."""

    def __init__(self, path: str, sample_rate: int, rate: int | None) -> None:
        self._path = None if path == "-" else Path(path)
        name = "wav" if self._path is None else format_for_path(self._path).name
        self._encoder = Encoder(name, sample_rate, rate, streaming=self._path is None)

    def push(self, samples: Samples) -> None:
        self._write(self._encoder.push(samples))

    def finish(self) -> None:
        self._write(self._encoder.finish())

    def _write(self, data: bytes) -> None:
        if self._path is None:
            _write_stdout(data)
        elif data:  # the whole file, because it is not streamed
            write_atomically(self._path, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoder.close()


def _write_stdout(data: bytes) -> None:
    """Write all bytes or raise: a disk may be full, a write may be partial. Ends the command if the pipe is closed."""
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        sys.stdout = None  # otherwise Python flushes it again at exit
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(BROKEN_PIPE) from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise PolyvoxError(f"Cannot write to stdout: {reason}.") from None


def _read_text(text: str | None, file: Path | None) -> str:
    if text is not None and text != "-" and file is not None:
        raise InvalidRequest("--file", str(file), "cannot be combined with a text argument")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if text in (None, "-"):
            if sys.stdin.isatty():
                hint = 'Try: polyvox say "Hello there."'
                raise InvalidRequest("text", NOT_SHOWN, "must be an argument, a --file or stdin", hint)
            return sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise InvalidRequest("--file", str(file), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "--file" if file else "text", str(file or "stdin"), f"must be UTF-8: {error.reason}"
        ) from None
    assert text is not None
    return text


def _check_outputs(output: str | None, rate: int | None, subtitles: Path | None) -> None:
    """Check that all outputs can be written, before the model is loaded."""
    if output == "-":
        if sys.stdout.isatty():
            raise InvalidRequest("--output", output, "must be a file when stdout is a terminal")
    elif output is not None:
        _check_folder("--output", Path(output))
        with named_options(path="--output", sample_rate="--rate"):
            Encoder(format_for_path(output).name, 24_000, rate).close()
    if subtitles is not None:
        _check_folder("--subtitles", subtitles)
        if subtitles.suffix.lower() not in SUBTITLES:
            raise InvalidRequest("--subtitles", str(subtitles), "must end in .srt or .vtt")


def _check_folder(field: str, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(field, str(path), "the folder does not exist")


def _print_text(sentences: list[Sentence]) -> None:
    """Print each sentence to stdout, with its speaking rate, and pauses that are not those between sentences."""
    for sentence in sentences:
        text = unmark_phonemes(sentence.text)
        if text and sentence.rate != 1.0:
            text = f'<prosody rate="{sentence.rate:g}">{text}</prosody>'
        pause = "" if sentence.pause in (0.0, *DEFAULT_PAUSES) else f"[pause:{sentence.pause:g}s]"
        typer.echo(f"{text} {pause}".strip())


def _print_resumed(reader: LongFormReader) -> None:
    if reader.store is not None and len(reader.store):
        console.print(f"Resuming: {len(reader.store)} of {len(reader.sentences)} sentences are already done.")


def _print_notes(notes: list[Note], hint: str) -> None:
    """Print what was changed or left out of the text."""
    if notes:
        console.print(f"{describe_notes(notes)} {hint}", soft_wrap=True)


def _describe_interruption(reader: LongFormReader, keep: Path | None) -> str:
    """What is kept of an interrupted run; a folder without a sentence is deleted."""
    if reader.store is None or not len(reader.store):
        if reader.store is not None:
            reader.store.clear()
        return "Interrupted."
    done = f"{len(reader.store)} of {len(reader.sentences)} sentences are done, kept in {keep}"
    return f"Interrupted: {done}. Run the same command again to resume, or delete that folder."


def _with_progress(reader: LongFormReader) -> Iterator[SpokenSentence]:
    """Iterate with a progress bar on stderr, or with a line every PROGRESS_INTERVAL seconds if it is no terminal."""
    return _with_bar(reader) if console.is_terminal else with_progress_lines(reader)


def with_progress_lines(
    reader: LongFormReader, clock: Callable[[], float] = time.monotonic
) -> Iterator[SpokenSentence]:
    """Iterate and print how far the text is spoken, at most every PROGRESS_INTERVAL seconds."""
    printed_at = clock()
    for spoken in reader:
        yield spoken
        if clock() - printed_at >= PROGRESS_INTERVAL:
            seconds = spoken.end / reader.engine.sample_rate
            console.print(f"{spoken.index + 1} of {len(reader.sentences)} sentences, {seconds:.0f} s of audio")
            printed_at = clock()


def _with_bar(reader: LongFormReader) -> Iterator[SpokenSentence]:
    total = sum(len(sentence.text) + 1 for sentence in reader.sentences)
    columns = TextColumn("Speaking … {task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        for spoken in reader:
            yield spoken
            minutes, seconds = divmod(spoken.end // reader.engine.sample_rate, 60)
            done = f"{spoken.index + 1} of {len(reader.sentences)}, {minutes}:{seconds:02}"
            progress.update(task, advance=len(spoken.text) + 1, description=done)
