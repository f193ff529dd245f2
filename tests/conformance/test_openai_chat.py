# SPDX-License-Identifier: Apache-2.0
"""The openai package: chat completions with audio, and the example that uses them."""

import base64
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from conformance.capture import SAMPLE_RATE
from conformance.client_runs import ENVIRONMENTS, HERE, NODE
from conformance.server_process import TIMEOUT, ServerProcess, run_server
from polyvox.audio import read_audio
from server.scripted_llm import Script, ScriptedLLM
from server.scripted_server import Action

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWER = "Hello there. How are you?"
MESSAGES: list[Any] = [{"role": "user", "content": "Hi!"}]
AUDIO: Any = {"voice": "alloy", "format": "pcm16"}
MODALITIES: Any = ["text", "audio"]


@pytest.fixture(scope="module")
def chat_server(shared_llm: ScriptedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--llm", shared_llm.url, "--llm-model", "scripted-1", "--llm-token-timeout", "1")
    with run_server(tmp_path_factory.mktemp("voices"), *options) as running:
        yield running


@pytest.fixture
def client(chat_server: ServerProcess, llm: ScriptedLLM) -> Iterator[openai.OpenAI]:  # noqa: ARG001
    with openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
def test_a_whole_answer_has_text_and_a_file(format: str, client: openai.OpenAI) -> None:
    audio: Any = {"voice": "alloy", "format": format}
    answer = client.chat.completions.create(model="any", modalities=MODALITIES, audio=audio, messages=MESSAGES)
    message = answer.choices[0].message
    assert message.audio is not None
    assert message.audio.transcript == message.content == ANSWER
    data = base64.b64decode(message.audio.data)
    num_samples = len(data) // 2 if format == "pcm16" else len(read_audio(io.BytesIO(data), SAMPLE_RATE))
    assert num_samples > SAMPLE_RATE
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.audio_tokens


def test_a_streamed_answer_has_text_audio_and_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any",
        modalities=MODALITIES,
        audio=AUDIO,
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
    )
    data, transcript, reasons, usage = b"", "", [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            if choice.delta.audio is not None:
                data += base64.b64decode(choice.delta.audio.data or "")
                transcript += choice.delta.audio.transcript or ""
    assert transcript == ANSWER
    assert reasons[-1] == "stop"
    assert not any(reasons[:-1])
    assert np.abs(np.frombuffer(data, "<i2")).max() > 1000
    assert len(data) > 2 * SAMPLE_RATE
    assert usage is not None


def test_the_history_may_refer_to_audio_by_its_id(client: openai.OpenAI, llm: ScriptedLLM) -> None:
    create = client.chat.completions.create
    first = create(model="any", modalities=MODALITIES, audio=AUDIO, messages=MESSAGES).choices[0].message
    assert first.audio is not None
    reference: Any = {"role": "assistant", "audio": {"id": first.audio.id}}
    create(model="any", messages=[*MESSAGES, reference, *MESSAGES])
    assert llm.requests[-1]["messages"][1]["content"] == ANSWER


def test_errors_are_those_of_the_package(client: openai.OpenAI, llm: ScriptedLLM) -> None:
    create = client.chat.completions.create
    voice: Any = {"voice": "nobody", "format": "wav"}
    with pytest.raises(openai.BadRequestError, match="heart"):
        create(model="any", modalities=MODALITIES, audio=voice, messages=MESSAGES)
    llm.script = Script(status=429, error={"error": {"message": "slow down"}})
    with pytest.raises(openai.RateLimitError, match="slow down"):
        create(model="any", modalities=MODALITIES, audio=AUDIO, messages=MESSAGES)
    llm.script = Script(["One two", Action.WAIT])
    stream = create(model="any", modalities=MODALITIES, audio=AUDIO, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="llm_token_timeout"):
        list(stream)


def test_without_audio_the_llm_answers_in_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=MESSAGES)
    assert answer.choices[0].message.content == ANSWER
    stream = client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == ANSWER


def test_the_talking_assistant_answers_each_line(chat_server: ServerProcess, llm: ScriptedLLM, tmp_path: Path) -> None:
    output = tmp_path / "answer.pcm"
    command = [
        sys.executable,
        str(EXAMPLES / "talking_assistant.py"),
        "--url",
        chat_server.url,
        "--output",
        str(output),
    ]
    done = subprocess.run(command, input="Hi!\nAnd?\n", capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ANSWER}\n{ANSWER}\n"
    assert output.stat().st_size > 4 * SAMPLE_RATE
    assert [message["role"] for message in llm.requests[-1]["messages"]] == ["system", "user", "assistant", "user"]


def test_the_package_for_node_receives_text_audio_and_errors(chat_server: ServerProcess, llm: ScriptedLLM) -> None:  # noqa: ARG001
    script = shutil.copy(HERE / NODE / "openai_chat.mjs", ENVIRONMENTS / NODE)  # modules are found beside a script only
    command = ["node", str(script), chat_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    received = json.loads(done.stdout)
    assert received["content"] == received["streamed"]["transcript"] == ANSWER
    assert received["numBytes"] > 2 * SAMPLE_RATE
    assert received["streamed"]["numBytes"] > 2 * SAMPLE_RATE
    assert received["streamed"]["finishReason"] == "stop"
    assert received["streamed"]["usage"]["completion_tokens_details"]["audio_tokens"] > 0
    assert received["error"] == {"status": 400, "param": "audio.voice"}
