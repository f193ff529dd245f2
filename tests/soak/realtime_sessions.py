# SPDX-License-Identifier: Apache-2.0
"""Realtime sessions at once, on a real server with a simulated GPU and a scripted LLM.

    python -m soak.realtime_sessions --sessions 50 --turns 4 --rate 75

Each session is one WebSocket of /v1/realtime: it sends a message, plays the answer as it arrives, pauses and sends the
next. Prints the same line as soak.chat_sessions.
"""

import asyncio
import base64
import random
import time
from typing import Any

import aiohttp

from soak.chat_sessions import BYTES_PER_SECOND, MAX_GAP, MAX_PAUSE, TURN_TIMEOUT, Results, main

MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And then?"}]}
MAX_NEW_TOKENS = 400  # as in soak.chat_sessions


async def run_sessions(url: str, num_sessions: int, num_turns: int) -> Results:
    results = Results()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=num_sessions)) as client:
        sessions = [
            _run_session(client, url, num_turns, random.Random(index), results) for index in range(num_sessions)
        ]
        await asyncio.gather(*sessions)
    return results


async def _run_session(
    client: aiohttp.ClientSession, url: str, num_turns: int, rng: random.Random, results: Results
) -> None:
    try:
        async with client.ws_connect(f"{url}/v1/realtime") as socket:
            audio = {"output": {"max_new_tokens": MAX_NEW_TOKENS}}
            await socket.send_json({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
            for _ in range(num_turns):
                await asyncio.sleep(rng.uniform(0, MAX_PAUSE))
                await socket.send_json({"type": "conversation.item.create", "item": MESSAGE})
                await socket.send_json({"type": "response.create"})
                async with asyncio.timeout(TURN_TIMEOUT):
                    await _play_answer(socket, results)
    except (aiohttp.ClientError, TimeoutError, RuntimeError) as error:
        results.failures.append(repr(error))


async def _play_answer(socket: aiohttp.ClientWebSocketResponse, results: Results) -> None:
    """Plays one answer to its end."""
    first_text = first_audio = played_to = 0.0
    while True:
        event: dict[str, Any] = await socket.receive_json()
        now = time.monotonic()
        match event["type"]:
            case "response.output_audio_transcript.delta":
                first_text = first_text or now
            case "response.output_audio.delta":
                seconds = len(base64.b64decode(event["delta"])) / BYTES_PER_SECOND
                if not first_audio:
                    first_audio = played_to = now
                elif now - played_to > MAX_GAP:
                    results.gaps.append(now - played_to)
                played_to = max(played_to, now) + seconds
                results.seconds += seconds
            case "response.done":
                if event["response"]["status"] != "completed" or not first_audio:
                    raise RuntimeError(str(event["response"]["status_details"]))
                results.first_audio.append(first_audio - first_text)
                await asyncio.sleep(max(0.0, played_to - time.monotonic()))
                return
            case "error":
                raise RuntimeError(event["error"]["message"])


if __name__ == "__main__":
    main(__doc__, run_sessions)
