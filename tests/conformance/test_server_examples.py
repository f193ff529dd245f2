# SPDX-License-Identifier: Apache-2.0
"""The examples that are servers themselves: the phone bot and the channels."""

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from conformance.realtime_server import QUESTION, SAMPLE_RATE, RealtimeServer
from conformance.server_process import TIMEOUT, ServerProcess
from polyvox.audio.g711 import ulaw_bytes, ulaw_samples
from polyvox.audio.pcm import to_pcm
from polyvox.audio.resample import resample
from server.scripted_llm import Script

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAME = 160  # bytes of 20 ms of μ-law
SILENCE = b"\xff" * FRAME


@contextmanager
def run_example(name: str, url: str) -> Iterator[str]:
    """Its WebSocket address."""
    command = [sys.executable, str(EXAMPLES / name), "--url", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"listening on port (\d+)", process.stdout.readline())
            assert found
            yield f"ws://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait(TIMEOUT)


async def receive(connection: Any, event: str) -> dict[str, Any]:
    """The next JSON message of a kind."""
    while True:
        message = await connection.recv()
        if isinstance(message, str) and json.loads(message)["event"] == event:
            found: dict[str, Any] = json.loads(message)
            return found


def test_the_phone_bot_greets_hears_and_is_interrupted(realtime: RealtimeServer) -> None:
    realtime.llm.script = Script([f"Sentence number {index}. " for index in range(40)])
    question = ulaw_bytes(to_pcm(resample(realtime.process.one_shot(QUESTION, seed=1), SAMPLE_RATE, 8000)))

    async def call(url: str) -> None:
        async with asyncio.timeout(TIMEOUT), connect(url) as phone:
            await phone.send(json.dumps({"event": "start", "streamSid": "MZ1"}))
            media = await receive(phone, "media")  # the greeting
            assert media["streamSid"] == "MZ1"
            assert len(ulaw_samples(base64.b64decode(media["media"]["payload"]))) > 0
            for start in range(0, len(question), FRAME):
                await phone.send(json.dumps(frame(question[start : start + FRAME])))
            await receive(phone, "clear")  # the caller interrupts
            for _ in range(60):
                await phone.send(json.dumps(frame(SILENCE)))
            while len(realtime.llm.requests) < 2:
                await asyncio.sleep(0.05)
            await phone.send(json.dumps({"event": "stop"}))
            await phone.wait_closed()

    with run_example("phone_bot.py", realtime.websocket_url.removesuffix("/v1")) as url:
        asyncio.run(call(url))
    messages = realtime.llm.requests[1]["messages"]
    assert messages[-1] == {"role": "user", "content": QUESTION}
    assert realtime.stt.requests[0].file[24:28] == (8000).to_bytes(4, "little")  # the rate of the telephone


def frame(audio: bytes) -> dict[str, Any]:
    return {"event": "media", "streamSid": "MZ1", "media": {"payload": base64.b64encode(audio).decode()}}


def test_all_listeners_of_a_channel_receive_one_synthesis(server: ServerProcess) -> None:
    finished = len(server.finished_requests())

    async def read(listener: Any) -> bytes:
        audio = b""
        while True:
            message = await listener.recv()
            if isinstance(message, bytes):
                audio += message
            elif json.loads(message)["event"] == "end":
                return audio
            else:
                assert json.loads(message) == {"event": "start", "text": "Hello, channel."}

    async def visit(url: str) -> tuple[bytes, bytes]:
        async with (
            asyncio.timeout(TIMEOUT),
            connect(f"{url}/lounge") as first,
            connect(f"{url}/lounge") as second,
            connect(f"{url}/garden") as other,
        ):
            await other.ping()
            await (await second.ping())  # both are in the channel
            await first.send("Hello, channel.")
            return await asyncio.gather(read(first), read(second))

    with run_example("voice_channels.py", server.url) as url:
        first, second = asyncio.run(visit(url))
    assert first == second
    assert len(first) > SAMPLE_RATE // 2
    assert len(server.finished_requests()) == finished + 1
