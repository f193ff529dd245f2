"""polyvox voice: the voice library from the command line."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from polyvox.audio import read_audio
from polyvox.cli.terminal import Device, Dtype, Json, console, load, show_json, show_rows
from polyvox.errors import InvalidRequest
from polyvox.models.info import Capability
from polyvox.voices import Voice, VoiceLibrary

app = typer.Typer(no_args_is_help=True, help="Keep voices under a name: clone, design, share.")

BASE_MODELS = "a Base checkpoint, such as Qwen/Qwen3-TTS-12Hz-1.7B-Base or Qwen/Qwen3-TTS-12Hz-0.6B-Base"
DESIGN_MODELS = "a VoiceDesign checkpoint, such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"
SAMPLE = (
    "Good evening, and welcome. This is how I sound when I take my time, and this is how I ask: shall we begin? "
    "There are seven candles on the table, and outside it has just begun to rain."
)

Name = Annotated[str, typer.Argument(help="The voice's name, in any case.")]
Replace = Annotated[bool, typer.Option("--replace", help="Take the place of a voice of that name.")]
Consent = Annotated[str | None, typer.Option(help="What the speaker agreed to; kept with the voice.")]


@app.command()
def add(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A recording of 1 to 30 seconds: one speaker, little noise.")],
    text: Annotated[str | None, typer.Option(help="What is said in it; speech then continues the recording.")] = None,
    text_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    consent: Consent = None,
    replace: Replace = False,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The Base model to clone for.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Clone a voice from a recording and keep it."""
    library = VoiceLibrary()
    if not replace:
        library.check_free(name)
    if not file.is_file():
        raise InvalidRequest("file", str(file), "must be an existing audio file")
    said = _transcript(text, text_file)
    base = _check_capability("model", model, "can_clone", BASE_MODELS)
    with load(base, device, dtype) as tts:
        began = time.perf_counter()
        with console.status(f"Listening to {file.name} …"):
            recording = read_audio(file, tts.sample_rate)
            cloned = tts.clone(recording, said)
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
    console.print(f"Kept {_described(voice)} ({time.perf_counter() - began:.1f} s).", soft_wrap=True)
    if voice.codes is None:
        console.print("With --text and what is said in the recording, it would sound closer to it.")
    if voice.consent is None:
        console.print('What the speaker agreed to can be kept with it: --consent "…"')
    _next(voice, base)


@app.command("list")
def list_voices(as_json: Json = False) -> None:
    """All voices of the library."""
    library = VoiceLibrary()
    voices, damaged = library.list(), library.damaged()
    if as_json:
        broken = [{"name": found.name, "path": str(found.path), "damaged": found.reason} for found in damaged]
        show_json({"voices": [voice.info() for voice in voices], "damaged": broken})
    elif voices:
        headings = ("name", "model", "mode", "seconds", "created", "consent")
        show_rows(headings, [_row(voice) for voice in voices])
    for found in damaged:
        console.print(
            f"! {found.name} is damaged ({found.path}: {found.reason}): polyvox voice rm '{found.name}', or add it "
            "again with --replace",
            soft_wrap=True,
        )
    if not voices and not damaged:
        console.print("No voices yet. Clone one: polyvox voice add NAME FILE --model MODEL", soft_wrap=True)


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """All that is known of a voice."""
    voice = VoiceLibrary().get(name)
    if as_json:
        show_json(voice.info())
    else:
        show_rows(("", ""), [(field, "–" if value is None else str(value)) for field, value in voice.info().items()])


@app.command("rm")
def remove(name: Name) -> None:
    """Take a voice away, and all that is stored of it."""
    library = VoiceLibrary()
    library.remove(name)
    console.print(f"Removed {name}. What was exported stays where it is. Left: {len(library.list())} voices.")


@app.command()
def export(
    name: Name, file: Annotated[Path, typer.Argument(help="The file to write, such as anna.safetensors.")]
) -> None:
    """Write a voice to a file, for another machine."""
    voice = VoiceLibrary().export(name, file)
    console.print(f"Wrote {_described(voice)} to {file}.", soft_wrap=True)
    console.print(f"On the other machine: polyvox voice import {file.name}", soft_wrap=True)


@app.command("import")
def import_voice(
    file: Annotated[Path, typer.Argument(help="A file of `polyvox voice export`.")],
    name: Annotated[str | None, typer.Option(help="Another name for it.")] = None,
    replace: Replace = False,
) -> None:
    """Keep the voice of an exported file."""
    voice = VoiceLibrary().import_(file, name, replace=replace)
    console.print(f"Kept {_described(voice)}.", soft_wrap=True)
    _next(voice, voice.model.name if "/" in voice.model.name else "MODEL")  # a folder's name is not its place


@app.command()
def design(
    description: Annotated[str, typer.Argument(help='The voice in words: "a warm old narrator".')],
    name: Annotated[str, typer.Option(help="The name to keep it under.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The VoiceDesign model that makes it.")] = None,
    base: Annotated[str | None, typer.Option(help="The Base model that keeps it.")] = None,
    say: Annotated[str, typer.Option(help="What the sample says; it becomes the voice's transcript.")] = SAMPLE,
    language: Annotated[str, typer.Option("--language", "-l", help="auto, or a language of the model.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Another seed gives another voice.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The sample; by default NAME.wav.")] = None,
    replace: Replace = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Make a voice from a description, and keep it where a Base model is given."""
    library = VoiceLibrary()
    if not replace:
        library.check_free(name)
    sample = output or Path(f"{name}.wav")
    if sample.suffix.lower() != ".wav" or not sample.absolute().parent.is_dir():
        raise InvalidRequest("output", str(sample), "must end in .wav and its folder must exist")
    designer = _check_capability("model", model, "designs_voices", DESIGN_MODELS)
    keeper = None if base is None else _check_capability("base", base, "can_clone", BASE_MODELS)
    with load(designer, device, dtype) as tts:
        stream = tts.stream(say, language=language, instructions=description, seed=seed, trim_silence=True)
        chunks = []
        with console.status("Speaking …") as status:
            for chunk in stream:
                chunks.append(chunk)
                status.update(f"Speaking … {sum(map(len, chunks)) / tts.sample_rate:.1f} s")
        audio = stream.audio(chunks)
    audio.save(sample)
    console.print(f"{sample}: {audio.seconds:.1f} s in the new voice, seed {audio.seed}", soft_wrap=True)
    if audio.finish_reason != "stop":
        console.print("It did not come to its end by itself: listen to it, and try another --seed or a shorter --say.")
    if keeper is None:
        console.print(
            f"The voice is not kept: that needs a Base model to clone the sample. Add --base with {BASE_MODELS}, "
            f"and --seed {audio.seed} for the same voice.",
            soft_wrap=True,
        )
        return
    del tts, stream  # the memory of the first model is needed for the second
    with load(keeper, device, dtype) as tts:
        with console.status(f"Listening to {sample.name} …"):
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
    console.print(f"Kept {_described(voice)}.", soft_wrap=True)
    _next(voice, keeper)


def _check_capability(field: str, model: str | None, capability: Capability, required: str) -> str:
    """The model, if it has the capability; checked before its weights are loaded."""
    if model is None:
        raise InvalidRequest(f"--{field}", model, f"must be {required}")
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
    mode = "a speaker's vector" if voice.codes is None else "vector and recording"
    return f"{voice.name} ({mode}, for {voice.model.name}, id {voice.id[:12]})"


def _row(voice: Voice) -> tuple[str, ...]:
    about = voice.info()
    seconds = "–" if voice.seconds is None else f"{voice.seconds:.1f}"
    return (voice.name, voice.model.name, about["mode"], seconds, f"{voice.created:%Y-%m-%d}", voice.consent or "–")


def _next(voice: Voice, model: str) -> None:
    command = f'polyvox say "Hello there." --voice {shlex.quote(voice.name)} --model {shlex.quote(model)}'
    console.print(f"Try: {command}", soft_wrap=True)
