# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` on a checkpoint that contains an LLM starts it as a process, restarts it, and ends it."""

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ipc.engine_processes import QUICK_RESTARTS, eventually
from polyvox.cli import thinker_process
from polyvox.cli.thinker_process import ThinkerSupervisor
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import serving
from server.test_chat import PATH, body

# Writes its process id and waits for the end of stdin, as `polyvox think --stop-with-stdin` does.
CHILD = "import os, sys; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); sys.stdin.read()"


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


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_checkpoint_with_a_thinker_gets_its_own_llm(tmp_path: Path, started: list[list[str]]) -> None:
    model = write_config(tmp_path, model_type="qwen3_omni_moe", thinker_config={})
    with thinker_process.thinker_process(Settings(model=model, device="cpu")) as settings:
        assert settings.llm is not None
        assert settings.llm_is_supervised
        eventually(lambda: bool(started))
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


def test_a_thinker_that_ends_is_restarted_and_ends_with_its_supervisor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pids"
    with closing(ThinkerSupervisor([sys.executable, "-c", CHILD, str(file)], QUICK_RESTARTS)):
        eventually(lambda: len(pids(file)) == 1)
        os.kill(pids(file)[0], signal.SIGKILL)
        eventually(lambda: len(pids(file)) == 2)
        [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert line.getMessage() == "thinker restarting"
        assert (vars(line)["reason"], vars(line)["failures"]) == ("exit code -9", 1)
    assert not any(map(is_running, pids(file)))


def test_a_thinker_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = f"""
import sys, time
from polyvox.cli.thinker_process import ThinkerSupervisor
from polyvox.engine.lifecycle import RestartPolicy
ThinkerSupervisor([sys.executable, "-c", {CHILD!r}, {str(file)!r}], RestartPolicy())
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as server:
        eventually(lambda: len(pids(file)) == 1)
        server.kill()
    eventually(lambda: not is_running(pids(file)[0]))


def test_chat_is_rejected_while_the_thinker_starts_and_speech_is_not() -> None:
    settings = Settings().with_supervised_llm("http://127.0.0.1:1/v1")
    with closing(PausableEngine()) as engine, serving(engine, settings) as server, server.client() as client:
        for fields in ({}, {"stream": True}, {"modalities": ["text"]}):
            response = client.post(PATH, json=body(**fields))
            assert (response.status_code, response.json()["error"]["code"]) == (503, "llm_starting")
            assert response.headers["retry-after"] == "5"
        assert client.get("/readyz").status_code == 200
        assert server.speak(client).status_code == 200
