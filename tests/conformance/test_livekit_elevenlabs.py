"""LiveKit's ElevenLabs plugin: by HTTP, and by WebSocket with text as it is written and interruptions."""

import asyncio

import aiohttp
import pytest
from livekit.plugins import elevenlabs

from conformance.hearing import RATE, TEXT, Hearing
from conformance.serve import TIMEOUT, Served

WHOLE_FRAMES = 0.02  # the plugin fills its last frame
ENCODINGS = [("pcm_24000", 24_000), ("mp3_22050_32", 22_050)]


def speech(server: Served, session: aiohttp.ClientSession, encoding: str) -> elevenlabs.TTS:
    return elevenlabs.TTS(
        voice_id="heart", encoding=encoding, api_key="none", base_url=f"{server.url}/v1", http_session=session
    )


@pytest.mark.parametrize(("encoding", "rate"), ENCODINGS)
def test_an_utterance_begins_early_and_is_the_whole(encoding: str, rate: int, server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = speech(server, session, encoding)
            async for event in service.synthesize(TEXT):
                assert (event.frame.sample_rate, event.frame.num_channels) == (rate, 1)
                hearing.hear(bytes(event.frame.data))
            await service.aclose()

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(lossy=encoding.startswith("mp3"), sample_rate=rate, padding=WHOLE_FRAMES, voice="heart")


@pytest.mark.parametrize(("encoding", "rate"), ENCODINGS)
def test_text_that_is_still_written_is_said_early_and_as_the_whole(encoding: str, rate: int, server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = speech(server, session, encoding)
            async with service.stream() as stream:
                for word in TEXT.split(" "):
                    stream.push_text(f"{word} ")
                stream.end_input()
                async for event in stream:
                    hearing.hear(bytes(event.frame.data))
            await service.aclose()

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(lossy=encoding.startswith("mp3"), sample_rate=rate, padding=WHOLE_FRAMES, voice="heart")


def test_an_interruption_ends_the_utterance(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
            service = speech(server, session, "pcm_24000")
            async with service.stream() as stream:
                stream.push_text(TEXT)
                stream.end_input()
                async for event in stream:
                    hearing.hear(bytes(event.frame.data))
                    break
            await service.aclose()

    with Hearing(server, end="cancelled") as hearing:
        asyncio.run(run(hearing))
    assert server.said()[-1]["audio_seconds"] < 0.9 * len(server.one_shot(TEXT, hearing.seed, voice="heart")) / RATE
