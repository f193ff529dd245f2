# SPDX-License-Identifier: Apache-2.0
"""The openai package's realtime client: text, speech, a tool, an interruption. Every event has the type it declares."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from conformance.realtime_server import (
    ANSWER,
    LONG_ANSWER,
    QUESTION,
    SAMPLE_RATE,
    TOOL_NAME,
    TOOL_RESULT,
    RealtimeServer,
    run_realtime_server,
)
from conformance.server_process import TIMEOUT
from server.scripted_llm import Script

SESSION: dict[str, Any] = {
    "type": "realtime",
    "instructions": "Answer shortly.",
    "output_modalities": ["audio"],
    "audio": {
        "input": {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}},
        "output": {"voice": "alloy"},
    },
}
TOOL = {
    "type": "function",
    "name": TOOL_NAME,
    "description": "The time of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
Events = list[Any]


class Recorder:
    """The events of a session, in order."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: Events = []

    async def until(self, kind: str) -> Any:
        """The next event of a kind."""
        while True:
            data = json.loads(await self.connection.recv_bytes())
            event = EVENT.validate_python(data)  # strict about its type, unlike the client itself
            self.events.append(event)
            assert event.type != "error", event
            if event.type == kind:
                return event

    def audio(self) -> bytes:
        return b"".join(
            base64.b64decode(event.delta) for event in self.events if event.type == "response.output_audio.delta"
        )

    def text(self, kind: str = "response.output_audio_transcript.delta") -> str:
        return "".join(event.delta for event in self.events if event.type == kind)


def run(realtime: RealtimeServer, use: Callable[[Recorder], Awaitable[None]], **session: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT), connect(realtime) as connection:
            recorder = Recorder(connection)
            assert (await recorder.until("session.created")).session.type == "realtime"
            await connection.session.update(session={**SESSION, **session})
            await recorder.until("session.updated")
            await use(recorder)

    asyncio.run(main())


@asynccontextmanager
async def connect(realtime: RealtimeServer) -> AsyncIterator[AsyncRealtimeConnection]:
    async with (
        openai.AsyncOpenAI(api_key="none", websocket_base_url=realtime.websocket_url) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        yield connection


async def say(recorder: Recorder, text: str) -> None:
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await recorder.connection.conversation.item.create(item=item)
    await recorder.connection.response.create()


def test_a_typed_turn_is_answered_with_speech(realtime: RealtimeServer) -> None:
    async def use(recorder: Recorder) -> None:
        await say(recorder, "Hi!")
        done = await recorder.until("response.done")
        assert done.response.status == "completed"
        assert recorder.text().strip() == ANSWER
        assert len(recorder.audio()) > 2 * SAMPLE_RATE
        assert done.response.usage.output_token_details.audio_tokens > 0
        (item,) = done.response.output
        assert item.content[0].transcript.strip() == ANSWER

    run(realtime, use)
    messages = realtime.llm.requests[0]["messages"]
    assert messages == [{"role": "system", "content": "Answer shortly."}, {"role": "user", "content": "Hi!"}]


def test_a_text_session_has_no_audio(realtime: RealtimeServer) -> None:
    async def use(recorder: Recorder) -> None:
        await say(recorder, "Hi!")
        await recorder.until("response.done")
        assert recorder.text("response.output_text.delta").strip() == ANSWER
        assert recorder.audio() == b""

    run(realtime, use, output_modalities=["text"])


def test_a_spoken_turn_is_found_transcribed_and_answered(realtime: RealtimeServer) -> None:
    async def use(recorder: Recorder) -> None:
        for chunk in realtime.question_chunks():
            await recorder.connection.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())
        started = await recorder.until("input_audio_buffer.speech_started")
        stopped = await recorder.until("input_audio_buffer.speech_stopped")
        assert 0 <= started.audio_start_ms < 700
        assert stopped.audio_end_ms > started.audio_start_ms + 1000
        transcript = await recorder.until("conversation.item.input_audio_transcription.completed")
        assert (transcript.transcript, transcript.item_id) == (QUESTION, started.item_id)
        assert (await recorder.until("response.done")).response.status == "completed"
        assert len(recorder.audio()) > SAMPLE_RATE

    run(realtime, use)
    assert realtime.llm.requests[0]["messages"][-1] == {"role": "user", "content": QUESTION}
    assert realtime.stt.requests[0].file[:4] == b"RIFF"


def test_a_tool_is_called_and_its_result_is_spoken(realtime: RealtimeServer) -> None:
    realtime.script_tool_call()

    async def use(recorder: Recorder) -> None:
        await say(recorder, QUESTION)
        called = await recorder.until("response.function_call_arguments.done")
        assert json.loads(called.arguments) == {"city": "Berlin"}
        (item,) = (await recorder.until("response.done")).response.output
        assert (item.type, item.name, item.call_id) == ("function_call", TOOL_NAME, called.call_id)
        output: Any = {"type": "function_call_output", "call_id": called.call_id, "output": TOOL_RESULT}
        await recorder.connection.conversation.item.create(item=output)
        await recorder.connection.response.create()
        await recorder.until("response.done")
        assert recorder.text().strip() == ANSWER

    run(realtime, use, tools=[TOOL])
    result = realtime.llm.requests[1]["messages"][-1]
    assert (result["role"], result["content"]) == ("tool", TOOL_RESULT)


def test_speech_interrupts_the_answer_and_the_transcript_is_cut(realtime: RealtimeServer) -> None:
    realtime.llm.script = Script(LONG_ANSWER)

    async def use(recorder: Recorder) -> None:
        await say(recorder, "Tell me everything.")
        first = await recorder.until("response.output_audio.delta")
        for chunk in realtime.question_chunks():
            await recorder.connection.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())
        await recorder.until("input_audio_buffer.speech_started")
        done = await recorder.until("response.done")
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "turn_detected"
        await recorder.connection.conversation.item.truncate(item_id=first.item_id, content_index=0, audio_end_ms=1500)
        while (await recorder.until("conversation.item.truncated")).audio_end_ms != 1500:
            pass
        realtime.reset()
        await recorder.connection.conversation.item.retrieve(item_id=first.item_id)
        item = (await recorder.until("conversation.item.retrieved")).item
        played = item.content[0].transcript
        assert played
        assert "".join(LONG_ANSWER).startswith(played)
        assert len(played) < len("".join(LONG_ANSWER[:3]))

    run(realtime, use)


def test_a_server_with_one_stream_answers_right_after_a_cancelled_response(tmp_path: Path) -> None:
    async def use(recorder: Recorder) -> None:
        for _ in range(5):
            await say(recorder, "Tell me everything.")
            await recorder.until("response.output_audio.delta")
            await recorder.connection.response.cancel()
            assert (await recorder.until("response.done")).response.status == "cancelled"
        server.reset()
        await say(recorder, "Only the time.")
        done = await recorder.until("response.done")
        assert done.response.status == "completed", done.response.status_details

    with run_realtime_server(tmp_path, "--max-streams", "1") as server:
        server.llm.script = Script(LONG_ANSWER)
        run(server, use)
