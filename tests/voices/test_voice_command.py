# SPDX-License-Identifier: Apache-2.0
"""polyvox voice on the command line."""

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from rich.console import Console

from polyvox.audio.samples import Samples
from polyvox.cli import terminal
from polyvox.cli.main import main
from polyvox.errors import InvalidRequest
from polyvox.models.request import ClonedVoice
from polyvox.tts import TTS
from polyvox.voices import VoiceLibrary
from voices.factories import MODEL, add

pytestmark = pytest.mark.slow


class Shell:
    """Runs commands in a folder with its own voice library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checkpoints: Path) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.base, self.custom = str(checkpoints / "base"), str(checkpoints / "custom_voice")
        self.designer = str(checkpoints / "voice_design")
        self.status, self.out, self.err = 0, "", ""

    def run(self, *arguments: str) -> None:
        self._monkeypatch.setattr(sys, "argv", ["polyvox", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        assert isinstance(caught.value.code, int)
        self.status = caught.value.code
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err

    def ok(self, *arguments: str) -> None:
        self.run(*arguments)
        assert self.status == 0, self.err

    def fails(self, message: str, *arguments: str, status: int = 2) -> None:
        self.run(*arguments)
        assert self.status == status, self.err
        assert self.out == ""
        assert message in self.err


@pytest.fixture
def shell(
    tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("POLYVOX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TTS, "clone", clone_or_fake, raising=False)
    for number, name in enumerate(("anna.wav", "bob.wav")):
        with wave.open(str(tmp_path / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(24000)
            file.writeframes(np.random.default_rng(number).integers(-9999, 9999, 48000, np.int16).tobytes())
    return Shell(monkeypatch, capsys, checkpoints)


clone = TTS.clone


def clone_or_fake(tts: TTS, recording: Path | Samples, text: str | None = None) -> ClonedVoice:
    """Clones arrays. Files, which random models end within a second, give a voice derived from their bytes."""
    if isinstance(recording, np.ndarray):
        return clone(tts, recording, text)
    rng = np.random.default_rng(list(hashlib.sha256(Path(recording).read_bytes()).digest()))
    vector = rng.standard_normal(tts.model.generator.hidden_size).astype(np.float32)
    codes = rng.integers(0, 64, (25, tts.model.generator.num_codebooks))
    return ClonedVoice(vector) if text is None else ClonedVoice(vector, codes, text)


def test_an_added_voice_can_be_used(shell: Shell, tmp_path: Path) -> None:
    shell.ok(
        "voice", "add", "Anna", "anna.wav", "--text", " Hello\n there. ", "--consent", "yes", "--model", shell.base
    )
    assert shell.out == ""
    for part in ("Loaded", "Added Anna (speaker embedding and recording, for base", "Try: polyvox say", "--voice Anna"):
        assert part in shell.err
    voice = VoiceLibrary(tmp_path / "home/voices").get("anna")
    assert (voice.transcript, voice.consent, voice.source) == ("Hello there.", "yes", "anna.wav")
    assert voice.seconds == 2.0
    shell.ok("say", "Hello.", "--voice", "anna", "--model", shell.base, "-o", "said.wav")
    with wave.open("said.wav") as file:
        assert file.getnframes() > 0
    shell.fails("Invalid value for 'voice': must be one of Anna", "say", "x", "-v", "carl", "-m", shell.base)


def test_without_a_transcript_a_tip_is_printed(shell: Shell, tmp_path: Path) -> None:
    shell.ok("voice", "add", "anna", "anna.wav", "--model", shell.base)
    assert "a transcript (--text)" in shell.err
    assert "--consent" in shell.err
    voice = VoiceLibrary(tmp_path / "home/voices").get("anna")
    assert (voice.codes, voice.seconds) == (None, 2.0)
    Path("said.txt").write_text("\ufeffGuten Tag.\n", encoding="utf-8")
    shell.ok("voice", "add", "anna", "bob.wav", "--text-file", "said.txt", "--replace", "--model", shell.base)
    assert VoiceLibrary(tmp_path / "home/voices").get("anna").transcript == "Guten Tag."


def test_invalid_arguments_are_rejected_before_the_model_is_loaded(shell: Shell, tmp_path: Path) -> None:
    add(VoiceLibrary(tmp_path / "home/voices"), "bob", 1)
    Path("empty.txt").write_text(" ")
    Path("binary.txt").write_bytes(b"\xff\xfe\xff")
    texts = ["anna", "anna.wav", "--text-file"]
    cases = {
        "Invalid value for 'name': must be up to 60 bytes": ["../x", "anna.wav"],
        "Invalid value for 'name': a voice with this name exists (got 'Bob')": ["Bob", "anna.wav"],
        "must be an existing audio file (got 'nowhere.wav')": ["anna", "nowhere.wav"],
        "Invalid value for '--text-file': cannot be combined with --text": [*texts, "said.txt", "--text", "x"],
        "Invalid value for '--text-file': must be a UTF-8 text file: [Errno 2]": [*texts, "said.txt"],
        "Invalid value for '--text-file': must be a UTF-8 text file: 'utf-8'": [*texts, "binary.txt"],
        "Invalid value for '--text': must not be empty": [*texts, "empty.txt"],
        "Missing option '--model': a Base checkpoint, such as Qwen/": ["anna", "anna.wav"],
        "Qwen/Qwen3-TTS-12Hz-1.7B-Base": ["anna", "anna.wav", "--model", shell.custom],
    }  # fmt: skip
    for message, arguments in cases.items():
        shell.fails(message, "voice", "add", *arguments)
        assert "Loaded" not in shell.err
    shell.fails("neither a folder", "voice", "add", "anna", "anna.wav", "--model", "nowhere", status=1)


def test_a_recording_that_cannot_be_cloned_adds_nothing(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(_: TTS, path: Path, __: str | None = None) -> ClonedVoice:
        raise InvalidRequest("recording", str(path), "must have speech")

    monkeypatch.setattr(TTS, "clone", reject, raising=False)
    shell.fails("must have speech", "voice", "add", "anna", "anna.wav", "--model", shell.base)
    assert not (tmp_path / "home").exists()


def test_list_prints_tab_separated_lines_to_a_pipe_or_json(shell: Shell, tmp_path: Path) -> None:
    shell.ok("voice", "list")
    assert shell.out == ""
    assert "The voice library is empty. Add a voice with: polyvox voice add" in shell.err
    library = VoiceLibrary(tmp_path / "home/voices")
    add(library, "Anna", 1)
    library.add("bob", ClonedVoice(np.ones(4, np.float32)), MODEL, consent="a\nb\tc")
    add(library, "carl", 3)
    (library.folder / "carl.safetensors").write_bytes(b"junk")
    shell.ok("voice", "list")
    rows = [line.split("\t") for line in shell.out.splitlines()]
    assert [row[:4] for row in rows] == [
        ["Anna", "Small-Base", "in context", "1.0"],
        ["bob", "Small-Base", "vector", "–"],
    ]
    assert rows[1][-1] == "a b c"
    assert "voice 'carl' is damaged" in shell.err
    shell.ok("voice", "list", "--json")
    listed = json.loads(shell.out)
    assert [voice["name"] for voice in listed["voices"]] == ["Anna", "bob"]
    assert listed["voices"][0]["id"] == library.get("anna").id
    assert [voice["name"] for voice in listed["damaged"]] == ["carl"]
    shell.ok("voice", "show", "ANNA")
    assert "fingerprint\tbase-48-6x64-0123456789ab" in shell.out
    shell.ok("voice", "show", "bob", "--json")
    assert json.loads(shell.out)["consent"] == "a\nb\tc"
    shell.fails("'carl' cannot be read", "voice", "show", "carl", status=1)
    shell.fails("must be one of Anna, bob", "voice", "show", "dora")


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(terminal, "Console", lambda **_: Console(file=out, width=60, highlight=False, markup=False))
    terminal.show_rows(("name", "model"), [("[bold]anna", "x")])
    assert "name" in out.getvalue()
    assert "[bold]anna" in out.getvalue()
    assert "\t" not in out.getvalue()


def test_voices_can_be_exported_imported_and_removed(shell: Shell, tmp_path: Path) -> None:
    library = VoiceLibrary(tmp_path / "home/voices")
    kept = add(library, "Anna", 1)
    shell.ok("voice", "export", "anna", "out.safetensors")
    assert "polyvox voice import out.safetensors" in shell.err
    shell.fails("exists", "voice", "import", "out.safetensors")
    shell.ok("voice", "import", "out.safetensors", "--name", "bob")
    assert "Added bob" in shell.err
    assert library.get("bob").id == kept.id
    shell.ok("voice", "rm", "anna")
    assert "Removed anna" in shell.err
    shell.fails("must be one of bob", "voice", "rm", "anna")
    shell.ok("voice", "import", "out.safetensors")
    assert library.get("anna").info() == kept.info()
    shell.fails("must be a file from `polyvox voice export`", "voice", "import", "anna.wav")
    shell.fails("cannot be read", "voice", "import", "nowhere")
    shell.fails("cannot be written", "voice", "export", "bob", "nowhere/out")


def test_a_designed_voice_is_added_if_a_base_model_is_given(shell: Shell, tmp_path: Path) -> None:
    arguments = ["voice", "design", "a warm old narrator", "--name", "anna", "--model", shell.designer]
    arguments += ["--say", "Hello there.", "--seed", "7"]
    shell.ok(*arguments)
    assert "anna.wav: " in shell.err
    assert "was not added to the library" in shell.err
    assert "--seed 7" in shell.err
    assert not (tmp_path / "home").exists()
    first = Path("anna.wav").read_bytes()
    shell.ok(*arguments, "--base", shell.base, "-o", "sample.wav")
    assert Path("sample.wav").read_bytes() == first
    voice = VoiceLibrary(tmp_path / "home/voices").get("anna")
    assert (voice.description, voice.transcript, voice.source) == ("a warm old narrator", "Hello there.", "sample.wav")
    assert "Try: polyvox say" in shell.err
    shell.fails("a voice with this name exists", *arguments)
    other = [*arguments[:4], "bob", *arguments[5:]]
    shell.fails("must be a Base checkpoint", *other, "--base", shell.custom)
    shell.fails("must end in .wav", *other, "-o", "x.mp3")
    other[other.index(shell.designer)] = shell.base
    shell.fails("must be a VoiceDesign checkpoint", *other)


def test_processes_share_the_library(tmp_path: Path) -> None:
    library = VoiceLibrary(tmp_path / "home/voices")
    add(library, "Anna", 1)
    environment = os.environ | {"POLYVOX_HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "polyvox", "voice", *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    listed = run("list")
    assert listed.returncode == 0
    assert 'polyvox say "Hello there." --voice Anna --model MODEL' in listed.stderr
    assert listed.stdout.startswith("Anna\tSmall-Base\t")
    assert run("export", "anna", "a.safetensors").returncode == 0
    assert run("import", "a.safetensors", "--name", "Bob").returncode == 0
    assert [voice.name for voice in library.list()] == ["Anna", "Bob"]
    assert run("rm", "dora").returncode == 2


def test_the_commands_of_the_voices_page_work(
    shell: Shell, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/voices.md").read_text()
    for kind, name in (("base", "Base"), ("voice_design", "VoiceDesign")):
        cache = tmp_path / "hub" / f"models--Qwen--Qwen3-TTS-12Hz-1.7B-{name}"
        shutil.copytree(checkpoints / kind, cache / "snapshots" / ("0" * 40))
        (cache / "refs").mkdir()
        (cache / "refs/main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commands = [line for text in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) for line in text.splitlines()]
    assert len(commands) == 8
    for command in commands:
        arguments = shlex.split(command)
        assert arguments[0] == "polyvox"
        shell.ok(*arguments[1:])
        if arguments[1:3] == ["voice", "list"]:
            assert [line.split("\t")[0] for line in shell.out.splitlines()] == ["anna", "grandpa"]
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    exec(snippet, {})
    assert (tmp_path / "morning.wav").exists()
