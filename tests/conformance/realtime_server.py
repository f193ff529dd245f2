# SPDX-License-Identifier: Apache-2.0
"""A server with a scripted LLM and a scripted STT server, and speech as the input of realtime sessions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.server_process import ServerProcess, run_server
from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.audio.samples import Samples
from server.scripted_llm import Script, ScriptedLLM, scripted_llm
from server.scripted_stt import ScriptedSTT, TranscriptScript, scripted_stt

QUESTION = "What time is it in Berlin now?"
ANSWER = "It is noon. Shall I tell you more?"
TOOL_NAME, TOOL_RESULT = "get_time", "noon"
LONG_ANSWER = [f"This is sentence number {index}. " for index in range(1, 41)]
SAMPLE_RATE = 24_000
CHUNK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RealtimeServer:
    process: ServerProcess
    llm: ScriptedLLM
    stt: ScriptedSTT

    @property
    def websocket_url(self) -> str:
        """With the version, as the clients of OpenAI take it."""
        return f"{self.process.url.replace('http', 'ws', 1)}/v1"

    def reset(self) -> None:
        self.llm.reset()
        self.stt.reset()
        self.llm.script = _answer()
        self.stt.script = TranscriptScript([QUESTION])

    def is_idle(self) -> bool:
        """Whether the engine runs no stream."""
        return self.process.metric(r"polyvox_engine_streams(?:\{[^}]*\})?") == 0

    def script_tool_call(self) -> None:
        """The LLM calls a tool first, then it answers."""
        function = {"name": TOOL_NAME, "arguments": '{"city": "Berlin"}'}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        self.llm.script = Script([{"tool_calls": [call]}], finish_reason="tool_calls", after_tool=_answer())

    def question(self) -> bytes:
        """A spoken question between silences, as 16-bit samples at 24 kHz."""
        speech: Samples = self.process.one_shot(QUESTION, seed=1)
        silence = np.zeros(SAMPLE_RATE, np.float32)
        return pcm_bytes(to_pcm(np.concatenate([silence[: SAMPLE_RATE // 2], speech, silence])))

    def question_chunks(self) -> list[bytes]:
        size = round(SAMPLE_RATE * CHUNK_SECONDS) * 2
        data = self.question()
        return [data[start : start + size] for start in range(0, len(data), size)]


def _answer() -> Script:
    return Script([f"{word} " for word in ANSWER.split()])


@contextmanager
def run_realtime_server(voices: Path, *more: str) -> Iterator[RealtimeServer]:
    with scripted_llm() as llm, scripted_stt() as stt:
        options = ("--llm", llm.url, "--llm-model", "scripted-1", "--stt", stt.url, "--stt-model", "whisper-1")
        with run_server(voices, *options, *more) as process:
            yield RealtimeServer(process, llm, stt)
