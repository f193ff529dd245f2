# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Agents SDK in its own environment: messages, speech, tools and interruptions in a realtime session."""

import json
import subprocess
from pathlib import Path
from typing import Any

from conformance.client_runs import ENVIRONMENTS, HERE
from conformance.realtime_server import (
    ANSWER,
    LONG_ANSWER,
    QUESTION,
    SAMPLE_RATE,
    TOOL_NAME,
    TOOL_RESULT,
    RealtimeServer,
)
from conformance.server_process import TIMEOUT
from server.scripted_llm import Script

PYTHON = ENVIRONMENTS / "openai-agents/bin/python"


def run_session(realtime: RealtimeServer, *arguments: str) -> dict[str, Any]:
    command = [str(PYTHON), str(HERE / "clients/openai_agents_realtime.py"), realtime.websocket_url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["errors"] == []
    return found


def test_a_message_is_answered_with_speech(realtime: RealtimeServer) -> None:
    found = run_session(realtime)
    assert found["audio_bytes"] > 2 * SAMPLE_RATE
    assert found["user"] == [QUESTION]
    assert ANSWER.startswith(found["assistant"][-1].strip())


def test_speech_is_transcribed_and_answered(realtime: RealtimeServer, tmp_path: Path) -> None:
    (tmp_path / "question.pcm").write_bytes(realtime.question())
    found = run_session(realtime, str(tmp_path / "question.pcm"))
    assert found["audio_bytes"] > SAMPLE_RATE
    assert realtime.llm.requests[0]["messages"][-1]["content"] == QUESTION


def test_a_tool_runs_and_its_result_is_spoken(realtime: RealtimeServer) -> None:
    realtime.script_tool_call()
    found = run_session(realtime)
    assert found["tools"] == [[TOOL_NAME, TOOL_RESULT]]
    assert found["audio_bytes"] > SAMPLE_RATE


def test_speech_interrupts_an_answer(realtime: RealtimeServer, tmp_path: Path) -> None:
    realtime.llm.script = Script(LONG_ANSWER)
    (tmp_path / "question.pcm").write_bytes(realtime.question())
    found = run_session(realtime, str(tmp_path / "question.pcm"), "interrupt")
    assert "audio_interrupted" in found["kinds"]
