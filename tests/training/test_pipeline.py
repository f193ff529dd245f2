# SPDX-License-Identifier: Apache-2.0
"""The stages of a training, and of one that continues from a checkpoint."""

import subprocess
import sys
from pathlib import Path

import pytest

from polyvox.tts import EMBEDDED_VOICE
from training.pipeline import STAGES, main


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Commands of stages by their module, which are recorded instead of run."""
    found: dict[str, list[str]] = {}

    def record(command: list[str], check: bool) -> None:
        assert check
        module, *rest = command[2:]
        found[module.removeprefix("training.")] = rest

    monkeypatch.setattr(subprocess, "run", record)
    return found


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> None:
    given = ["--work", str(folder / "work"), "--teacher", str(folder), "--out", str(folder / "out"), *arguments]
    monkeypatch.setattr(sys, "argv", ["pipeline", *given])
    (folder / "work").mkdir(exist_ok=True)
    main()


def test_a_voice_is_restored_once_and_its_vocoder_starts_with_discriminators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: dict[str, list[str]]
) -> None:
    run(monkeypatch, tmp_path, "--from-checkpoint", "--only", "codec", "--minutes", "vocoder=7")
    assert commands["codec"][-2:] == ["--minutes", "0.0"]
    assert (tmp_path / "work/tokens/vocab.json").read_bytes() == (EMBEDDED_VOICE / "vocab.json").read_bytes()
    decoder = tmp_path / "work/codec/decoder-0.safetensors"
    assert (tmp_path / "out" / decoder.name).read_bytes() == decoder.read_bytes()
    decoder.write_bytes(b"trained further")
    run(monkeypatch, tmp_path, "--from-checkpoint", str(EMBEDDED_VOICE), "--minutes", "vocoder=7")
    assert commands["vocoder"][-3:] == ["--minutes", "7.0", "--spectral-steps=0"]
    assert decoder.read_bytes() == b"trained further"
    assert "finetune" in commands
    assert not {"talker", "pool"} & set(commands)


def test_a_stage_that_ends_with_the_run_continues_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: dict[str, list[str]]
) -> None:
    log = tmp_path / "work/codec/vocoder.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"phase": "saved"}\n')
    given = ("--only", "codec,vocoder,pool", "--run-minutes")
    run(monkeypatch, tmp_path, *given, "1")
    assert set(commands) == {"codec"}  # the vocoder would not get beyond its start
    run(monkeypatch, tmp_path, *given, "9")
    assert set(commands) == {"codec", "vocoder"}
    at = commands["vocoder"].index("--run-minutes")
    assert 8 < float(commands["vocoder"][at + 1]) < 9
    commands.clear()
    log.write_text(log.read_text() + '{"phase": "done"}\n')
    run(monkeypatch, tmp_path, *given, "9")
    assert set(commands) == {"vocoder", "pool"}
    assert "--run-minutes" not in commands["pool"]


def test_completed_stages_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: dict[str, list[str]]
) -> None:
    run(monkeypatch, tmp_path, "--only", "durations,codec")
    assert set(commands) == {"corpus", "codec"}
    commands.clear()
    run(monkeypatch, tmp_path)
    assert set(commands) == {"corpus", *STAGES} - {"durations", "speech", "codec"}
    assert commands["corpus"][0] == "speech"
    assert "--spectral-steps=0" not in commands["vocoder"]
    assert not (tmp_path / "work/tokens").exists()
