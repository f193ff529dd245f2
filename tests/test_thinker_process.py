# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` on a checkpoint that contains an LLM starts it as a process, and ends it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from polyvox.cli import thinker_process
from polyvox.server.settings import Settings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are started, each of which waits instead."""
    commands: list[list[str]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return popen(["cat"], **options)

    monkeypatch.setattr("polyvox.cli.thinker_process.subprocess.Popen", start)
    monkeypatch.setattr(thinker_process, "find_spec", lambda _: True)
    return commands


def write_config(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_checkpoint_with_a_thinker_gets_its_own_llm(tmp_path: Path, started: list[list[str]]) -> None:
    model = write_config(tmp_path, model_type="qwen3_omni_moe", thinker_config={})
    with thinker_process.thinker_process(Settings(model=model, device="cpu")) as settings:
        assert settings.llm is not None
        ((*_, device, dtype, flag),) = started
        assert started[0][2:6] == ["polyvox", "think", "--model", model]
        assert settings.llm == f"http://127.0.0.1:{started[0][7]}/v1"
        assert (device, dtype, flag) == ("--dtype", "auto", "--stop-with-stdin")


def test_other_models_and_a_configured_llm_start_nothing(tmp_path: Path, started: list[list[str]]) -> None:
    speech = write_config(tmp_path, model_type="qwen3_tts")
    other = tmp_path / "omni"
    other.mkdir()
    omni = write_config(other, thinker_config={})
    url = "http://127.0.0.1:1/v1"
    for settings in (Settings(), Settings(model=speech), Settings(model=omni, llm=url), Settings(model="/nowhere")):
        with thinker_process.thinker_process(settings) as found:
            assert found == settings
    assert not started
