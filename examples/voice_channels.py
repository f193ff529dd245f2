# SPDX-License-Identifier: Apache-2.0
"""Channels in which a bot speaks: all listeners of a channel hear the same speech, which is synthesised once.

polyvox serve
python voice_channels.py [--url http://127.0.0.1:8000] [--port 8766]

A listener opens ws://HOST:8766/CHANNEL and gets 16-bit samples at 24 kHz as binary messages. Text that a listener sends
is spoken to the whole channel, one utterance after the other; a JSON message before and after each one has its text. A
listener that does not keep up loses audio and delays no other.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass, field

import aiohttp
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

MAX_TEXTS = 20  # that wait in a channel
MAX_BUFFERED = 250  # messages of a listener: 20 s of speech
TIMEOUT = aiohttp.ClientTimeout(total=300, sock_read=60)

Message = str | bytes


@dataclass(eq=False)
class Channel:
    texts: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(MAX_TEXTS))
    listeners: set[asyncio.Queue[Message]] = field(default_factory=set)

    def send(self, message: Message) -> None:
        for listener in self.listeners:
            if not listener.full():
                listener.put_nowait(message)

    async def speak(self, http: aiohttp.ClientSession, url: str) -> None:
        """Speaks the texts in turn, until it is cancelled."""
        while True:
            text = await self.texts.get()
            self.send(json.dumps({"event": "start", "text": text}))
            body = {"input": text, "response_format": "pcm", "stream": True}
            try:
                async with http.post(f"{url}/v1/audio/speech", json=body, timeout=TIMEOUT) as response:
                    response.raise_for_status()
                    async for part in response.content.iter_any():
                        self.send(part)
                self.send(json.dumps({"event": "end", "text": text}))
            except (aiohttp.ClientError, TimeoutError) as error:
                self.send(json.dumps({"event": "error", "text": text, "message": str(error)}))


class ChannelServer:
    """A channel exists while it has listeners."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url
        self._channels: dict[str, tuple[Channel, asyncio.Task[None]]] = {}

    async def join(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        name = connection.request.path
        if name not in self._channels:
            channel = Channel()
            self._channels[name] = channel, asyncio.create_task(channel.speak(self._http, self._url))
        channel, speaking = self._channels[name]
        messages: asyncio.Queue[Message] = asyncio.Queue(MAX_BUFFERED)
        channel.listeners.add(messages)
        sending = asyncio.create_task(self._send(connection, messages))
        try:
            async for text in connection:
                if isinstance(text, str) and not channel.texts.full():
                    channel.texts.put_nowait(text)
        except ConnectionClosed:
            pass
        finally:
            sending.cancel()
            channel.listeners.discard(messages)
            if not channel.listeners:
                speaking.cancel()  # also ends the synthesis in progress
                del self._channels[name]

    async def _send(self, connection: ServerConnection, messages: asyncio.Queue[Message]) -> None:
        while True:
            await connection.send(await messages.get())


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--port", type=int, default=8766)
    options = parser.parse_args()
    async with aiohttp.ClientSession() as http:
        channels = ChannelServer(http, options.url)
        async with serve(channels.join, "127.0.0.1", options.port) as server:
            print(f"listening on port {server.sockets[0].getsockname()[1]}", flush=True)
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
