# SPDX-License-Identifier: Apache-2.0
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import wave
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from rich.console import Console
from rich.markup import render
from safetensors.torch import load_file, save_file

from conftest import LoadedTTS
from polyvox import __version__
from polyvox.__main__ import main as run
from polyvox.audio import read_audio
from polyvox.cli.main import build_app, main
from polyvox.cli.say import with_progress_lines
from polyvox.cli.terminal import remembering_interrupts

pytestmark = pytest.mark.slow


def polyvox(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command."""
    monkeypatch.setattr(sys, "argv", ["polyvox", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_say_writes_a_file_and_a_summary_to_stderr(tmp_path: Path) -> None:
    """In a process, as a user runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "polyvox", "say", "Hello there.", "-o", "hello.wav", "--seed", "7"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    with wave.open(str(tmp_path / "hello.wav")) as file:
        assert file.getnframes() > 10_000
    assert done.stdout == ""
    summary = r"Wrote \d\.\d\d s of speech to hello\.wav in \d+\.\d\d s \(\d+\.\d × real time\), seed 7"
    assert re.fullmatch(summary, done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("is_terminal", "options", "tip"), [(True, "", True), (True, "--voice heart", False), (False, "", False)]
)
def test_a_user_at_a_terminal_who_chose_no_voice_gets_a_tip(
    is_terminal: bool, options: str, tip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = Console(file=io.StringIO(), force_terminal=is_terminal)
    monkeypatch.setattr("polyvox.cli.say.console", printed)
    assert polyvox(monkeypatch, "say", "Hello.", "-o", str(tmp_path / "a.wav"), *options.split()) == 0
    assert isinstance(printed.file, io.StringIO)
    assert ("--voice michael, or start a server with" in printed.file.getvalue()) == tip


def test_say_writes_to_a_pipe(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert polyvox(monkeypatch, "say", "Hello", "there.", "-o", "-") == 0
    out, err = capfdbinary.readouterr()
    assert out.startswith(b"RIFF")
    assert b" s of speech to stdout in " in err


def test_say_reads_stdin_and_writes_audio_and_subtitles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Dr. Grey paid $3.\n\nThen she left.")))
    options = "-o a.flac --subtitles a.srt --rate 16000 --speed 1.5 --seed 3"
    assert polyvox(monkeypatch, "say", *options.split()) == 0
    assert re.search(r"Wrote .* to a.flac, subtitles to a.srt, in ", capsys.readouterr().err)
    first, second = (tmp_path / "a.srt").read_text().split("\n\n")
    assert first.endswith("Doctor Grey paid three dollars.")
    assert second.endswith("Then she left.\n")
    sound = read_audio(tmp_path / "a.flac", 16_000)
    assert 0.5 < len(sound) / 16_000 < 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.flac", "a.srt"]


def test_say_shows_the_text_and_speaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "Dr. Grey paid $3. 😀\n\nThen <break time='2s'/> <prosody rate='slow'>she left.</prosody>"
    assert polyvox(monkeypatch, "say", "-o", "a.wav", "--model", "/nowhere", "--show-text", text) == 0
    lines = ["Doctor Grey paid three dollars.", "Grinning face", "Then [pause:2s]"]
    lines.append('<prosody rate="0.75">she left.</prosody>')
    printed = capsys.readouterr()
    assert printed.out.splitlines() == lines
    assert "Sentences by language: english (" in printed.err
    assert list(tmp_path.iterdir()) == []


def test_say_resumes_an_interrupted_run(tmp_path: Path) -> None:
    text = " ".join(f"This is sentence {number}." for number in ("one", "two", "three", "four", "five", "six"))
    command = [sys.executable, "-m", "polyvox", "say", text, "-o", "a.wav"]
    parts = tmp_path / "a.wav.parts"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        until = time.monotonic() + 120
        while len(list(parts.glob("*.npz"))) < 2:
            assert time.monotonic() < until
            assert running.poll() is None
            time.sleep(0.01)
        running.kill()
    assert not (tmp_path / "a.wav").exists()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "of 6 sentences are already done" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def accept_interrupts() -> None:
    """A process in the background of a shell ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupts_that_a_process_ignores_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with remembering_interrupts() as check:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_a_destructor_swallowed_is_raised_again() -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with remembering_interrupts() as check, mock.patch.object(sys, "unraisablehook") as ignored:
            check()
            Interrupted()
            ignored.assert_called_once()
            with pytest.raises(KeyboardInterrupt):
                check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_run_says_how_to_resume_it(tmp_path: Path) -> None:
    text = " ".join(f"This is sentence {number}." for number in range(40))
    command = [sys.executable, "-m", "polyvox", "say", text, "-o", "a.wav"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=accept_interrupts
    ) as running:
        until = time.monotonic() + 120
        while not list((tmp_path / "a.wav.parts").glob("*.npz")):
            assert time.monotonic() < until
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert running.returncode == 130
    last = err.splitlines()[-1]
    assert re.fullmatch(r"Interrupted: \d+ of 40 sentences are done, kept in a\.wav\.parts\. Run the same .*", last)
    assert "Traceback" not in err
    assert list((tmp_path / "a.wav.parts").glob("*.npz"))


@pytest.mark.parametrize("module", ["polyvox.cli.main", "polyvox.cli.say", "polyvox.tts"])
def test_an_interrupted_start_prints_no_traceback(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == module:
                raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["polyvox", "say", "Hello."])
    for name in ("polyvox.cli.main", "polyvox.cli.say", "polyvox.tts"):
        monkeypatch.delitem(sys.modules, name)
        package, _, attribute = name.rpartition(".")
        monkeypatch.delattr(sys.modules[package], attribute, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    with pytest.raises(SystemExit, match="130"):
        run()
    assert capsys.readouterr().err == "Interrupted.\n"


def test_progress_is_printed_every_ten_seconds_without_a_terminal(
    embedded: LoadedTTS, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, now = embedded.read("One. Two. Three. Four."), iter([0.0, 4.0, 10.5, 11.0, 12.0, 20.0])
    assert len(list(with_progress_lines(reader, lambda: next(now)))) == 4
    first, *rest = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"2 of 4 sentences, \d+ s of audio", first)
    assert rest == []


def test_say_plays_the_audio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    player = tmp_path / "aplay"
    player.write_text(f"#!/bin/sh\ncat > {tmp_path}/received\n")
    player.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert polyvox(monkeypatch, "say", "Hello.", "--play") == 0
    assert "Played" in capsys.readouterr().err
    assert (tmp_path / "received").stat().st_size > 10_000
    assert not (tmp_path / "speech.wav").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["say", "hi", "--voice", "bob"],
            2,
            "Invalid value for 'voice': must be one of heart, michael (got 'bob').",
        ),
        (["say", "hi", "--language", "klingon"], 2, "'klingon'"),
        (["say", ""], 2, "Invalid value for 'text': must have at least one word (got '')."),
        (["say", "[pause:2s] [pause:1s]"], 2, "Invalid value for 'text': has only pauses"),
        (
            ["say", "hi", "--lexicon", "a.txt"],
            2,
            "'--lexicon': cannot be read: No such file or directory",
        ),
        (["say", "hi", "--file", "a.txt"], 2, "cannot be combined with a text"),
        (["say", "--file", "a.txt"], 2, "No such file"),
        (["say", "hi", "--speed", "9"], 2, "Invalid value for 'speed': must be between 0.25 and 4 (got 9.0)."),
        (["say", "hi", "-o", "a.ulaw", "--rate", "44100"], 2, "'--rate': must be one of 8000 for ulaw (got 44100)."),
        (["say", "hi", "--subtitles", "a.txt"], 2, "must end in .srt or .vtt"),
        (["say", "hi", "--word-times"], 2, "Invalid value for '--word-times': requires --subtitles."),
        (["say", "<think>only thoughts</think>"], 2, "must have at least one word"),
        (["say", "hi", "--seed", "-1"], 2, "(got -1)"),
        (["say", "hi", "-o", "a.exe"], 2, "'--output': must end in one of .wav, .wave, .flac, .mp3, .opus, .ogg,"),
        (["say", "hi", "-o", "nowhere/a.wav"], 2, "the folder does not exist"),
        (["say", "hi", "--voice", "[/]"], 2, "got '[/]'"),
        (["say", "hi", "--voice", "[bold]x"], 2, "got '[bold]x'"),
        (["say", "hi", "--model", "nowhere"], 1, "neither a folder nor a hub id"),
        (["say", "hi", "--model", "."], 1, "config.json is missing"),
        (["say", "hi", "--device", "tpu"], 2, "must be auto, cpu, cuda or cuda:N (got 'tpu')"),
        (["say", "hi", "--dtype", "int4"], 2, "got 'int4'"),
        (["serve", "--lexicon", "nowhere.txt", "--port", "0"], 2, "Invalid value for 'lexicon'"),
        (["serve", "--port", "abc"], 2, "'port': must be an integer between 0 and 65535 (got 'abc')."),
        (["serve", "--keep-alive-timeout", "x"], 2, "'keep_alive_timeout': must be a number (got 'x')."),
        (
            ["voice", "design", "old", "--name", "anna"],
            2,
            "Missing option '--model': a VoiceDesign checkpoint",
        ),
        (["bench", "serve"], 2, "Give one of --base-url URL and --in-process."),
        (["bench", "serve", "--concurrency", "1,0"], 2, "'--concurrency': must be a positive integer (got 0)."),
        (["bench", "serve", "--rate", "x"], 2, "'--rate': must be comma-separated numbers, such as 1,2,4 (got 'x')."),
        (["bench", "compare", "a", "b"], 2, "'file': cannot be read: No such file or directory (got 'a')."),
        (["serve", "--host", "256.0.0.1"], 2, "Invalid value for 'host'"),
        (["serve", "--memory", "0"], 2, "Invalid value for 'memory_gb'"),
        (["serve", "--api-keys", "", "--port", "0"], 2, "Invalid value for 'api_keys': must not be empty"),
        (["serve", "--weight-dtype", "int4"], 2, "Invalid value for 'weight_dtype'"),
        (["bench", "engine", "--weight-dtype", "int4"], 2, "Invalid value for 'weight_dtype'"),
        (["serve", "--host", "192.0.2.1"], 2, "got '192.0.2.1:8000'"),
        (["say", "hi", "--model", "a--b/c"], 1, "neither a folder nor a hub id"),
        (["say", "hi", "--model", "~nobody123/x"], 1, "neither a folder nor a hub id"),
        (["say", "hi", "--model", "foo/.."], 1, "neither a folder nor a hub id"),
        (["say", "hi", "--model", ""], 1, "neither a folder nor a hub id"),
    ],
)
def test_an_error_is_one_line_on_stderr(
    arguments: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert polyvox(monkeypatch, *arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert "left out" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["corrupt weights", "another model", "NaN weights"])
def test_an_invalid_checkpoint_is_reported_in_one_line(
    damage: str,
    checkpoints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(checkpoints / "custom_voice", tmp_path / "checkpoint")
    weights = folder / "model.safetensors"
    if damage == "corrupt weights":
        weights.write_bytes(weights.read_bytes()[:1000])
        message = "model.safetensors is damaged"
    elif damage == "another model":
        (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
        message = 'config.json: model_type is "llama"; supported is "qwen3_tts"'
    else:
        tensors = load_file(weights)
        tensors["talker.model.norm.weight"][3] = float("nan")
        save_file(tensors, weights)
        message = "talker.model.norm.weight has NaN"
    assert polyvox(monkeypatch, "say", "hi", "-o", str(tmp_path / "a.wav"), "--model", str(folder)) == 1
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_full_disk_is_reported() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "polyvox", "say", "Hello.", "-o", "-"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: Cannot write to stdout: No space left on device."
    assert "Traceback" not in done.stderr


def test_a_reader_that_ends_early_ends_the_command_without_an_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        command = [sys.executable, "-m", "polyvox", "say", "Hello.", "-o", "-"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 141
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["Loaded"]


def test_help_lists_the_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert polyvox(monkeypatch, "--help") == 0
    output = capsys.readouterr().out
    assert "say" in output
    assert "serve" in output


def test_no_help_text_is_changed_by_markup() -> None:
    def check(command: Any) -> None:
        for text in (command.help, *(getattr(each, "help", None) for each in command.params)):
            assert render(text or "").plain == (text or "")
        for each in getattr(command, "commands", {}).values():
            check(each)

    check(typer.main.get_command(build_app()))


def test_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert polyvox(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"polyvox {__version__}\n"


@pytest.mark.parametrize(("command", "default"), [("say", "speech.wav"), ("serve", "127.0.0.1")])
def test_help_shows_the_defaults(
    command: str, default: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert polyvox(monkeypatch, command, "--help") == 0
    assert default in capsys.readouterr().out
