# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Agents SDK: a realtime session. Arguments: the WebSocket URL, and a file with speech instead of a message.

Prints what the session reported as JSON. With a third argument the speech interrupts the answer to a message.
"""

import asyncio
import json
import sys

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

CHUNK = 4800  # bytes: 100 ms


@function_tool
def get_time(city: str) -> str:
    """The time of a city"""
    assert city
    return "noon"


async def speak(session, path):
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            await session.send_audio(chunk)


def texts(history, role):
    """The texts of the messages of a role."""
    parts = [part for item in history if item.type == "message" and item.role == role for part in item.content]
    return [getattr(part, "transcript", None) or getattr(part, "text", None) for part in parts]


async def main():
    url, *rest = sys.argv[1:]
    agent = RealtimeAgent(name="Assistant", instructions="Answer shortly.", tools=[get_time])
    settings = {
        "model_name": "gpt-realtime",
        "voice": "alloy",
        "modalities": ["audio"],
        "input_audio_transcription": {"model": "whisper-1"},
        "turn_detection": {"type": "server_vad", "interrupt_response": True},
    }
    runner = RealtimeRunner(agent, config={"model_settings": settings, "tracing_disabled": True})
    session = await runner.run(model_config={"url": f"{url}/realtime?model=gpt-realtime", "api_key": "none"})
    found = {"audio_bytes": 0, "tools": [], "errors": [], "kinds": []}
    history, num_answers, speaking = [], 0, None
    async with asyncio.timeout(100), session:
        if len(rest) == 1:
            await speak(session, rest[0])
        else:
            await session.send_message("What time is it in Berlin now?")
        async for event in session:
            found["kinds"].append(event.type)
            if event.type == "audio":
                found["audio_bytes"] += len(event.audio.data)
                if len(rest) == 2 and speaking is None:
                    speaking = asyncio.create_task(speak(session, rest[0]))
            elif event.type == "tool_end":
                found["tools"].append([event.tool.name, event.output])
            elif event.type == "error":
                found["errors"].append(str(event.error))
            elif event.type == "history_updated":
                history = event.history
            elif event.type == "history_added":
                history = [*history, event.item]
            elif event.type == "audio_interrupted" and len(rest) == 2:
                break
            elif event.type == "agent_end":
                num_answers += 1
                if found["audio_bytes"]:
                    break
        if speaking is not None:
            await speaking
    found["user"], found["assistant"] = texts(history, "user"), texts(history, "assistant")
    found["kinds"] = sorted(set(found["kinds"]))
    sys.stdout.write(f"{json.dumps(found)}\n")


asyncio.run(main())
