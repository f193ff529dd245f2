# SPDX-License-Identifier: Apache-2.0
"""A phone bot: media streams of a telephone provider on one side, a realtime session of Polyvox on the other.

polyvox serve --llm http://localhost:11434/v1 --llm-model llama3.2 --stt http://localhost:8001/v1 --stt-model whisper-1
python phone_bot.py [--url ws://127.0.0.1:8000] [--port 8765]

The provider (Twilio's <Stream>, and others with its messages) connects to ws://HOST:8765 for each call and sends JSON:
`start`, then `media` with 20 ms of μ-law at 8 kHz in base64, then `stop`. The bot answers with `media`. When the caller
speaks, `clear` drops the audio that the provider has not played yet.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

PCMU = {"format": {"type": "audio/pcmu"}}
SESSION = {
    "type": "realtime",
    "instructions": "You answer the phone of a bakery. Speak in short sentences.",
    "output_modalities": ["audio"],
    "audio": {"input": {**PCMU, "turn_detection": {"type": "server_vad"}}, "output": {**PCMU, "voice": "alloy"}},
}
BYTES_PER_MS = 8
MAX_SECONDS = 3600  # of a call
MAX_MESSAGE = 16_000_000  # bytes


async def answer_call(call: ServerConnection, url: str) -> None:
    async with asyncio.timeout(MAX_SECONDS), connect(f"{url}/v1/realtime?model=any", max_size=MAX_MESSAGE) as bot:
        await bot.send(json.dumps({"type": "session.update", "session": SESSION}))
        player = Player(call)
        tasks = [asyncio.create_task(hear(call, bot, player)), asyncio.create_task(speak(bot, player))]
        try:  # the call ends when one side hangs up
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):
                    print(f"call failed error={error!r}")


class Player:
    """The provider plays what it is sent, in order and in real time."""

    def __init__(self, call: ServerConnection) -> None:
        self._call = call
        self.stream_id = ""
        self._item_id, self._start, self._sent_ms = "", 0.0, 0.0

    async def play(self, item_id: str, audio: str) -> None:
        if item_id != self._item_id:
            self._item_id, self._start, self._sent_ms = item_id, time.monotonic(), 0.0
        self._sent_ms += len(audio) * 3 / 4 / BYTES_PER_MS
        await self._send({"event": "media", "media": {"payload": audio}})

    async def stop(self) -> dict[str, Any] | None:
        """Stops at once; the event that says how much of the last answer was played."""
        if not self._item_id:
            return None
        played = min((time.monotonic() - self._start) * 1000, self._sent_ms)
        await self._send({"event": "clear"})
        item_id, self._item_id = self._item_id, ""
        return {
            "type": "conversation.item.truncate",
            "item_id": item_id,
            "content_index": 0,
            "audio_end_ms": round(played),
        }

    async def _send(self, message: dict[str, Any]) -> None:
        await self._call.send(json.dumps({**message, "streamSid": self.stream_id}))


async def hear(call: ServerConnection, bot: Any, player: Player) -> None:
    async for text in call:
        message = json.loads(text)
        if message["event"] == "start":
            player.stream_id = message["streamSid"]
            await bot.send(json.dumps({"type": "response.create", "response": {"instructions": "Greet the caller."}}))
        elif message["event"] == "media":
            audio = message["media"]["payload"]
            await bot.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        elif message["event"] == "stop":
            return


async def speak(bot: Any, player: Player) -> None:
    async for text in bot:
        event = json.loads(text)
        if event["type"] == "response.output_audio.delta":
            await player.play(event["item_id"], event["delta"])
        elif event["type"] == "input_audio_buffer.speech_started":
            if (truncate := await player.stop()) is not None:
                await bot.send(json.dumps(truncate))
        elif event["type"] == "error":
            print(f"session error message={event['error']['message']!r}")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args()
    async with serve(lambda call: answer_call(call, options.url), "127.0.0.1", options.port) as server:
        print(f"listening on port {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
