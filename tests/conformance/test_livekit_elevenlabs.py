# SPDX-License-Identifier: Apache-2.0
"""LiveKit's ElevenLabs plugin: HTTP, and WebSocket with streamed text and interruptions."""

import asyncio

import aiohttp
import pytest
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString
from livekit.plugins import elevenlabs

from conformance.capture import SAMPLE_RATE, TEXT, StreamCapture
from conformance.server_process import TIMEOUT, ServerProcess

PADDING = 0.02  # seconds: the plugin pads its last frame
ENCODINGS = [("pcm_24000", 24_000), ("mp3_22050_32", 22_050)]


def service_for(server: ServerProcess, session: aiohttp.ClientSession, encoding: str) -> elevenlabs.TTS:
    return elevenlabs.TTS(
        voice_id="heart", encoding=encoding, api_key="none", base_url=f"{server.url}/v1", http_session=session
    )


@pytest.mark.parametrize(("encoding", "rate"), ENCODINGS)
def test_an_utterance_starts_early_and_is_complete(encoding: str, rate: int, server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = service_for(server, session, encoding)
            async for event in service.synthesize(TEXT):
                assert (event.frame.sample_rate, event.frame.num_channels) == (rate, 1)
                capture.add(bytes(event.frame.data))
            await service.aclose()

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(lossy=encoding.startswith("mp3"), sample_rate=rate, padding=PADDING, voice="heart")


@pytest.mark.parametrize(("encoding", "rate"), ENCODINGS)
def test_streamed_text_starts_early_and_is_complete(encoding: str, rate: int, server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = service_for(server, session, encoding)
            async with service.stream() as stream:
                for word in TEXT.split(" "):
                    stream.push_text(f"{word} ")
                stream.end_input()
                async for event in stream:
                    capture.add(bytes(event.frame.data))
            await service.aclose()

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(lossy=encoding.startswith("mp3"), sample_rate=rate, padding=PADDING, voice="heart")


def test_words_have_times_in_the_audio(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> list[TimedString]:
        words: list[TimedString] = []
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = service_for(server, session, "pcm_24000")
            async with service.stream() as stream:
                stream.push_text(TEXT)
                stream.end_input()
                async for event in stream:
                    capture.add(bytes(event.frame.data))
                    words += event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
            await service.aclose()
        return words

    with StreamCapture(server) as capture:
        words = asyncio.run(run(capture))
    assert "".join(words).split() == TEXT.split()
    times = [float(word.start_time) for word in words]
    assert times == sorted(times)
    seconds = len(server.one_shot(TEXT, capture.seed, voice="heart")) / SAMPLE_RATE
    assert 0.4 * seconds < times[-1] < seconds


def test_an_interruption_ends_the_utterance(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = service_for(server, session, "pcm_24000")
            async with service.stream() as stream:
                stream.push_text(TEXT)
                stream.end_input()
                async for event in stream:
                    capture.add(bytes(event.frame.data))
                    break
            await service.aclose()

    with StreamCapture(server, finish_reason="cancelled") as capture:
        asyncio.run(run(capture))
    interrupted = server.finished_requests()[-1]["audio_seconds"]
    complete = len(server.one_shot(TEXT, capture.seed, voice="heart")) / SAMPLE_RATE
    assert interrupted < 0.9 * complete
