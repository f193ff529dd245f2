# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/conversation.md, on the embedded voice with a scripted LLM and a scripted STT server."""

import base64
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from polyvox.audio import read_audio
from server.scripted_llm import scripted_llm
from server.scripted_stt import scripted_stt

pytestmark = pytest.mark.slow  # it loads the embedded voice

PAGE = (Path(__file__).parents[2] / "docs/conversation.md").read_text()
ANSWER = "Hello there. How are you?"


def test_the_commands_of_the_documentation_give_an_llm_a_voice(tmp_path: Path) -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    (serve, serve_with_stt), curls = (
        [line for line in lines if line.startswith("polyvox serve ")],
        lines[1:4] + lines[5:],
    )
    assert serve_with_stt.startswith(f"{serve} --stt ")
    (tmp_path / "question.wav").write_bytes(b"RIFF")
    with scripted_llm() as llm, scripted_stt() as stt:
        addresses = {"http://127.0.0.1:11434/v1": llm.url, "http://127.0.0.1:8001/v1": stt.url}
        words = [addresses.get(word, word) for word in shlex.split(serve_with_stt)]
        command = [sys.executable, "-m", *words, "--port", "0", "--device", "cpu"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                found = next(filter(None, (re.search(r"Listening on (\S+)", line) for line in server.stderr)))
                for line in curls:
                    request = shlex.split(line.replace("http://127.0.0.1:8000", found[1]))
                    subprocess.run([*request, "--fail", "--silent"], cwd=tmp_path, check=True, timeout=60)
            finally:
                server.terminate()
                server.communicate(timeout=20)
    assert all(line.startswith("curl ") for line in curls)
    assert json.loads((tmp_path / "question.json").read_text())["text"] == "hello there"
    assert dict(stt.requests[0].fields)["model"] == "whisper-1"
    assert {request["model"] for request in llm.requests} == {"llama3.2"}
    message = json.loads((tmp_path / "answer.json").read_text())["choices"][0]["message"]
    assert message["audio"]["transcript"] == ANSWER
    assert len(read_audio(io.BytesIO(base64.b64decode(message["audio"]["data"])), 24_000)) > 24_000
    events = (tmp_path / "answer.txt").read_text().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert sum('"data"' in event for event in events) >= 2
    assert json.loads((tmp_path / "text.json").read_text())["choices"][0]["message"]["content"] == ANSWER
