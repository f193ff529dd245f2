# SPDX-License-Identifier: Apache-2.0
"""polyvox voice: manage the voice library."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from polyvox.audio import read_audio
from polyvox.audio.excerpt import fit_recording
from polyvox.cli.terminal import Device, Dtype, Json, UsageError, console, load, show_json, show_rows
from polyvox.errors import InvalidRequest
from polyvox.models.info import Capability
from polyvox.voices import Voice, VoiceLibrary

app = typer.Typer(no_args_is_help=True, help="Manage the voice library: clone, design, share.")

BASE_MODELS = "a Base checkpoint, such as Qwen/Qwen3-TTS-12Hz-1.7B-Base or Qwen/Qwen3-TTS-12Hz-0.6B-Base"
DESIGN_MODELS = "a VoiceDesign checkpoint, such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"
SAMPLE = (
    "Good evening, and welcome. This is how I sound when I take my time, and this is how I ask: shall we begin? "
    "There are seven candles on the table, and outside it has just begun to rain."
)

Name = Annotated[str, typer.Argument(help="Name of the voice (case-insensitive).")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a voice of the same name.")]
Consent = Annotated[str | None, typer.Option(help="What the speaker consented to; stored with the voice.")]


@app.command()
def add(
    name: Name,
    file: Annotated[Path, typer.Argument(help="Recording of 1 to 30 seconds: one speaker, little noise.")],
    text: Annotated[
        str | None, typer.Option(help="Transcript of the recording; brings speech closer to the voice.")
    ] = None,
    text_file: Annotated[Path | None, typer.Option(help="File with the transcript.")] = None,
    consent: Consent = None,
    replace: Replace = False,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Base model that the voice is for.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Clone a voice from a recording and add it to the library."""
    library = VoiceLibrary()
    if not replace:
        library.check_free(name)
    if not file.is_file():
        raise InvalidRequest("file", str(file), "must be an existing audio file")
    transcript = _transcript(text, text_file)
    base = _check_capability("model", model, "can_clone", BASE_MODELS)
    with load(base, device, dtype) as tts:
        start = time.perf_counter()
        with console.status(f"Cloning {file.name} …"):
            recording = read_audio(file, tts.sample_rate)
            notice = None
            if (max_seconds := tts.model.info().max_reference_seconds) is not None:
                recording, notice = fit_recording(recording, tts.sample_rate, max_seconds)
            if notice is not None:
                transcript = None
            cloned = tts.clone(recording, transcript)
        assert tts.identity is not None
        voice = library.add(
            name,
            cloned,
            tts.identity,
            consent=consent,
            source=file.name,
            seconds=round(len(recording) / tts.sample_rate, 2),
            replace=replace,
        )
    if notice is not None:
        ignored = " The transcript is ignored." if text or text_file else ""
        console.print(f"warning: {notice}{ignored}", soft_wrap=True)
    console.print(f"Added {_described(voice)} ({time.perf_counter() - start:.1f} s).", soft_wrap=True)
    if voice.codes is None:
        console.print("Tip: a transcript (--text) brings the voice closer to the recording.")
    if voice.consent is None:
        console.print('Tip: record the consent of the speaker with --consent "…"')
    _print_example(voice, base)


@app.command("list")
def list_voices(as_json: Json = False) -> None:
    """List the voices of the library."""
    library = VoiceLibrary()
    voices, damaged = library.list(), library.damaged()
    if as_json:
        broken = [{"name": found.name, "path": str(found.path), "damaged": found.reason} for found in damaged]
        show_json({"voices": [voice.info() for voice in voices], "damaged": broken})
    elif voices:
        headings = ("name", "model", "mode", "seconds", "created", "consent")
        show_rows(headings, [_row(voice) for voice in voices])
        _print_example(voices[0], _model_option(voices[0]))
    for found in damaged:
        console.print(
            f"warning: voice {found.name!r} is damaged ({found.path}: {found.reason}). "
            f"Remove it with: polyvox voice rm {shlex.quote(found.name)}",
            soft_wrap=True,
        )
    if not voices and not damaged:
        console.print(
            "The voice library is empty. Add a voice with: polyvox voice add NAME FILE --model MODEL", soft_wrap=True
        )


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show the details of a voice."""
    voice = VoiceLibrary().get(name)
    if as_json:
        show_json(voice.info())
    else:
        show_rows(("", ""), [(field, "–" if value is None else str(value)) for field, value in voice.info().items()])
        _print_example(voice, _model_option(voice))


@app.command("rm")
def remove(name: Name) -> None:
    """Remove a voice and its data from the library."""
    library = VoiceLibrary()
    library.remove(name)
    console.print(f"Removed {name}. Exported files are not deleted. Voices in the library: {len(library.list())}.")
    console.print("List them with: polyvox voice list")


@app.command()
def export(name: Name, file: Annotated[Path, typer.Argument(help="Output file, such as anna.safetensors.")]) -> None:
    """Export a voice to a file."""
    voice = VoiceLibrary().export(name, file)
    console.print(f"Wrote {_described(voice)} to {file}.", soft_wrap=True)
    console.print(f"Import it elsewhere with: polyvox voice import {file.name}", soft_wrap=True)


@app.command("import")
def import_voice(
    file: Annotated[Path, typer.Argument(help="File from `polyvox voice export`.")],
    name: Annotated[str | None, typer.Option(help="Another name for the voice.")] = None,
    replace: Replace = False,
) -> None:
    """Import an exported voice."""
    voice = VoiceLibrary().import_(file, name, replace=replace)
    console.print(f"Added {_described(voice)}.", soft_wrap=True)
    _print_example(voice, _model_option(voice))


@app.command()
def design(
    description: Annotated[str, typer.Argument(help='Description of the voice: "a warm old narrator".')],
    name: Annotated[str, typer.Option(help="Name of the new voice.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="VoiceDesign model that designs the voice.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Base model that the voice is stored for.")] = None,
    say: Annotated[str, typer.Option(help="Text of the sample, which becomes the transcript of the voice.")] = SAMPLE,
    language: Annotated[
        str, typer.Option("--language", "-l", help="auto, or a language of the model, such as english, en or en-GB.")
    ] = "auto",
    seed: Annotated[int | None, typer.Option(help="Random seed; another seed gives another voice.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the sample.", show_default="NAME.wav")
    ] = None,
    replace: Replace = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Design a voice from a description; with --base, add it to the library."""
    library = VoiceLibrary()
    if not replace:
        library.check_free(name)
    sample = output or Path(f"{name}.wav")
    if sample.suffix.lower() != ".wav" or not sample.absolute().parent.is_dir():
        raise InvalidRequest("output", str(sample), "must end in .wav and its folder must exist")
    designer = _check_capability("model", model, "designs_voices", DESIGN_MODELS)
    base_model = None if base is None else _check_capability("base", base, "can_clone", BASE_MODELS)
    with load(designer, device, dtype) as tts:
        stream = tts.stream(say, language=language, instructions=description, seed=seed, trim_silence=True)
        chunks = []
        with console.status("Speaking …") as status:
            for chunk in stream:
                chunks.append(chunk)
                status.update(f"Speaking … {sum(map(len, chunks)) / tts.sample_rate:.1f} s")
        audio = stream.audio(chunks)
    audio.save(sample)
    console.print(f"Wrote {sample}: {audio.seconds:.1f} s in the new voice, seed {audio.seed}", soft_wrap=True)
    if audio.finish_reason != "stop":
        console.print("warning: the sample was cut. Listen to it, then try another --seed or a shorter --say.")
    if base_model is None:
        console.print(
            f"The voice was not added to the library. To add it, run again with --seed {audio.seed} and --base: "
            f"{BASE_MODELS}.",
            soft_wrap=True,
        )
        return
    del tts, stream  # free the memory of the first model for the second
    with load(base_model, device, dtype) as tts:
        with console.status(f"Cloning {sample.name} …"):
            cloned = tts.clone(sample, say)
        assert tts.identity is not None
        voice = library.add(
            name,
            cloned,
            tts.identity,
            source=sample.name,
            seconds=audio.seconds,
            description=description,
            replace=replace,
        )
    console.print(f"Added {_described(voice)}.", soft_wrap=True)
    _print_example(voice, base_model)


def _check_capability(field: str, model: str | None, capability: Capability, required: str) -> str:
    """Check a capability of a model before its weights are loaded."""
    if model is None:
        raise UsageError(f"Missing option '--{field}': {required}.")
    with console.status("Starting …"):
        from polyvox.models.registry import read_info
    if not read_info(model).supports(capability):
        raise InvalidRequest(f"--{field}", model, f"must be {required}")
    return model


def _transcript(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise InvalidRequest("--text-file", str(file), "cannot be combined with --text")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise InvalidRequest("--text-file", str(file), f"must be a UTF-8 text file: {error}") from None
    if text is not None and not text.strip():
        raise InvalidRequest("--text", text, "must not be empty")
    return None if text is None else " ".join(text.split())


def _described(voice: Voice) -> str:
    mode = "speaker embedding" if voice.codes is None else "speaker embedding and recording"
    return f"{voice.name} ({mode}, for {voice.model.name}, id {voice.id[:12]})"


def _row(voice: Voice) -> tuple[str, ...]:
    about = voice.info()
    seconds = "–" if voice.seconds is None else f"{voice.seconds:.1f}"
    return (voice.name, voice.model.name, about["mode"], seconds, f"{voice.created:%Y-%m-%d}", voice.consent or "–")


def _model_option(voice: Voice) -> str:
    """The hub id of the voice's model. A name without a slash is the name of a folder, whose path is unknown."""
    return voice.model.name if "/" in voice.model.name else "MODEL"


def _print_example(voice: Voice, model: str) -> None:
    command = f'polyvox say "Hello there." --voice {shlex.quote(voice.name)} --model {shlex.quote(model)}'
    console.print(f"Try: {command}", soft_wrap=True)
