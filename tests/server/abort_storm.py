# SPDX-License-Identifier: Apache-2.0
"""Clients of every transport that disconnect at random moments, as fast as one event loop can."""

import asyncio
import base64
import json
import os
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

TIMEOUT = 30.0  # seconds of one connection
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends a reset
NUM_SEEDS = 8  # the fake engine counts by seed
TEXTS = ("Hello there.", "One. Two. Three.", "Text of several sentences. It goes on. And on.")
# The transports, with their share of the clients.
TRANSPORTS = {
    "stream": 8,
    "events": 3,
    "whole file": 3,
    "batch": 1,
    "upload": 1,
    "elevenlabs": 2,
    "websocket": 4,
    "context": 4,
}


async def run_storm(port: int, num_clients: int, seed: int = 0, concurrency: int = 24) -> Counter[str]:
    """Returns the number of clients of each transport. The engine must pause every stream before its end."""
    chance = random.Random(seed)
    names = chance.choices([*TRANSPORTS], [*TRANSPORTS.values()], k=num_clients)
    clients = iter(enumerate(names))

    async def run() -> None:
        for number, name in clients:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(TIMEOUT):
                    await _abort_one(port, name, random.Random(seed * 1_000_003 + number))

    await asyncio.gather(*(run() for _ in range(concurrency)))
    return Counter(names)


async def _abort_one(port: int, name: str, chance: random.Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if chance.random() < 0.5:
        connected: socket.socket = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    try:
        if name in ("websocket", "context"):
            await _talk(reader, writer, name, chance)
        else:
            request = _request(name, chance)
            if chance.random() < 0.1:  # before the end of the request
                writer.write(request[: chance.randrange(len(request))])
                await asyncio.sleep(chance.random() * 0.01)
                return
            writer.write(request)
        match chance.randrange(3):
            case 0:
                await asyncio.sleep(chance.random() * 0.02)
            case 1:
                await asyncio.wait_for(reader.read(1), 0.5)  # the headers come with the first audio
            case 2:
                await asyncio.wait_for(reader.readexactly(chance.randrange(1, 4000)), 0.2)
    finally:
        writer.transport.abort()


def _request(name: str, chance: random.Random) -> bytes:
    format = chance.choice(("pcm", "mp3", "opus", "wav"))
    text, common = chance.choice(TEXTS), {"seed": chance.randrange(NUM_SEEDS), "max_new_tokens": 1000}
    path, body = "/v1/audio/speech", {"input": text, "response_format": format, **common}
    match name:
        case "events":
            body["stream_format"] = "sse"
        case "whole file":
            body["stream"] = False
        case "batch":
            path, body = "/v1/audio/speech/batch", {"items": [{"input": text}, {"input": text}], **common}
        case "upload":
            path, body = "/v1/audio/voices", {"name": "a", "audio_sample": "A" * chance.randrange(200_000)}
        case "elevenlabs":
            path, body = "/v1/text-to-speech/heart/stream", {"text": text, "seed": common["seed"]}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def _talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, chance: random.Random) -> None:
    """Opens a WebSocket and sends some text."""
    path = "/v1/audio/speech/stream" if name == "websocket" else "/v1/text-to-speech/heart/stream-input"
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{upgrade}sec-websocket-key: {key}\r\n\r\n".encode())
    if chance.random() < 0.1:
        return
    await reader.readuntil(b"\r\n\r\n")
    text, seed = chance.choice(TEXTS), chance.randrange(NUM_SEEDS)
    if name == "websocket":
        granularity = chance.choice(("sentence", "token"))
        config = {"type": "session.config", "stream_audio": True, "split_granularity": granularity, "seed": seed}
        messages = [config, {"type": "input.text", "text": text}, {"type": "input.done"}]
    else:
        messages = [{"text": " "}, {"text": text}, {"text": "", "flush": True}]
    for message in messages[: chance.randrange(1, 4)]:
        writer.write(_frame(json.dumps(message).encode()))


def _frame(data: bytes) -> bytes:
    """A masked text frame of RFC 6455."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    return b"\x81" + size + bytes(4) + data


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_storm(
    port: int,
    pid: int,
    num_clients: int,
    every: int,
    concurrency: int = 24,
    report: Callable[[int, int], None] = lambda *_: None,
) -> list[tuple[int, int]]:
    """Runs a storm; returns the number of clients and the resident bytes of the server, after every `every` clients."""
    found = []
    for number in range(every, num_clients + 1, every):
        asyncio.run(run_storm(port, every, seed=number, concurrency=concurrency))
        found.append((number, resident_bytes(pid)))
        report(*found[-1])
    return found


def storm_in_process(port: int, num_clients: int, seed: int = 0) -> None:
    """Runs a storm in a process of its own, so that this one has only the objects of the server."""
    command = [sys.executable, __file__, str(port), str(num_clients), str(seed)]
    subprocess.run(command, check=True, timeout=300)


if __name__ == "__main__":
    asyncio.run(run_storm(*map(int, sys.argv[1:])))
