# SPDX-License-Identifier: Apache-2.0
"""LiveKit's realtime model of the OpenAI plugin: replies, speech, tools and interruptions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins import openai

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
from ipc.engine_processes import eventually
from server.scripted_llm import Script


@llm.function_tool  # type: ignore[untyped-decorator]
async def get_time(city: str) -> str:
    """The time of a city"""
    assert city
    return TOOL_RESULT


def run(realtime: RealtimeServer, use: Callable[[Any, list[Any]], Awaitable[None]]) -> None:
    async def main() -> None:
        errors: list[Any] = []
        async with asyncio.timeout(TIMEOUT), aiohttp.ClientSession() as http:
            model = openai.realtime.RealtimeModel(
                base_url=f"{realtime.process.url}/v1", api_key="none", model="gpt-realtime", http_session=http
            )
            session = model.session()
            session.on("error", errors.append)
            try:
                await session.update_instructions("Answer shortly.")
                await use(session, errors)
            finally:
                await session.aclose()
                await model.aclose()
        assert errors == []

    asyncio.run(main())


async def read(generation: Any) -> tuple[str, int, list[Any]]:
    """The transcript, the number of samples and the tool calls of a reply."""
    text, num_samples = "", 0
    async for message in generation.message_stream:

        async def read_text(stream: AsyncIterator[str]) -> str:
            return "".join([str(part) async for part in stream])

        async def read_audio(stream: AsyncIterator[Any]) -> int:
            return sum([frame.samples_per_channel async for frame in stream])

        part, count = await asyncio.gather(read_text(message.text_stream), read_audio(message.audio_stream))
        text, num_samples = text + part, num_samples + count
    return text, num_samples, [call async for call in generation.function_stream]


async def push(session: Any, realtime: RealtimeServer) -> None:
    for chunk in realtime.question_chunks():
        session.push_audio(rtc.AudioFrame(chunk, SAMPLE_RATE, 1, len(chunk) // 2))
        await asyncio.sleep(0)


def test_a_reply_has_text_and_speech(realtime: RealtimeServer) -> None:
    async def use(session: Any, _: list[Any]) -> None:
        context = llm.ChatContext.empty()
        context.add_message(role="user", content="Hi!")
        await session.update_chat_ctx(context)
        text, num_samples, _calls = await read(await session.generate_reply())
        assert text.strip() == ANSWER
        assert num_samples > SAMPLE_RATE

    run(realtime, use)
    messages = realtime.llm.requests[0]["messages"]
    assert messages == [{"role": "system", "content": "Answer shortly."}, {"role": "user", "content": "Hi!"}]


def test_speech_starts_a_reply(realtime: RealtimeServer) -> None:
    async def use(session: Any, _: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        created, transcript, started = loop.create_future(), loop.create_future(), loop.create_future()
        session.on("generation_created", created.set_result)
        session.on("input_audio_transcription_completed", transcript.set_result)
        session.on("input_speech_started", started.set_result)
        await push(session, realtime)
        await started
        assert (await transcript).transcript == QUESTION
        text, num_samples, _calls = await read(await created)
        assert text.strip() == ANSWER
        assert num_samples > SAMPLE_RATE

    run(realtime, use)


def test_a_tool_is_called_and_its_result_is_spoken(realtime: RealtimeServer) -> None:
    realtime.script_tool_call()

    async def use(session: Any, _: list[Any]) -> None:
        await session.update_tools([get_time])
        context = llm.ChatContext.empty()
        context.add_message(role="user", content=QUESTION)
        await session.update_chat_ctx(context)
        _text, _samples, (call,) = await read(await session.generate_reply())
        assert (call.name, call.arguments) == (TOOL_NAME, '{"city": "Berlin"}')
        context = session.chat_ctx.copy()
        result = llm.FunctionCallOutput(name=call.name, call_id=call.call_id, output=TOOL_RESULT, is_error=False)
        context.insert(result)
        await session.update_chat_ctx(context)
        text, num_samples, _calls = await read(await session.generate_reply())
        assert text.strip() == ANSWER
        assert num_samples > SAMPLE_RATE

    run(realtime, use)
    assert realtime.llm.requests[1]["messages"][-1]["content"] == TOOL_RESULT


def test_an_interrupted_reply_is_cut_at_what_was_played(realtime: RealtimeServer) -> None:
    realtime.llm.script = Script(LONG_ANSWER)

    async def use(session: Any, _: list[Any]) -> None:
        context = llm.ChatContext.empty()
        context.add_message(role="user", content="Tell me everything.")
        await session.update_chat_ctx(context)
        generation = await session.generate_reply()
        async for message in generation.message_stream:
            async for _frame in message.audio_stream:
                break
            session.interrupt()
            session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=1500)
            break
        realtime.reset()
        await asyncio.to_thread(eventually, realtime.is_idle)  # the CPU may have capacity for one stream only
        text, _samples, _calls = await read(await session.generate_reply(instructions="Go on."))
        assert text.strip() == ANSWER

    run(realtime, use)
    said = [message for message in realtime.llm.requests[0]["messages"] if message["role"] == "assistant"]
    assert len(said) == 1
    assert "".join(LONG_ANSWER).startswith(said[0]["content"].strip())
    assert len(said[0]["content"]) < len("".join(LONG_ANSWER[:3]))
