"""LiveKit's OpenAI plugin: mp3 as events by default, as a stream for tts-1, and the formats that it can be told."""

import asyncio

import pytest
from livekit.plugins import openai

from conformance.hearing import RATE, TEXT, Hearing
from conformance.serve import Served

WHOLE_FRAMES = 0.02  # the plugin fills its last frame
DROPPED = {"flac": 0.01}  # its decoder throws away the packets that it has looked at (nobuffer): one of our blocks


@pytest.mark.parametrize(
    ("model", "format"),
    [
        ("gpt-4o-mini-tts", "mp3"),
        ("tts-1", "mp3"),
        ("tts-1", "opus"),
        ("tts-1", "aac"),
        ("tts-1", "flac"),
        ("tts-1", "wav"),
        ("tts-1", "pcm"),
    ],
)
def test_an_utterance_begins_early_and_is_the_whole(model: str, format: str, server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        speech = openai.TTS(
            model=model, voice="alloy", response_format=format, base_url=f"{server.url}/v1", api_key="none"
        )
        speech.prewarm()
        try:
            async for event in speech.synthesize(TEXT):
                assert (event.frame.sample_rate, event.frame.num_channels) == (RATE, 1)
                hearing.hear(bytes(event.frame.data))
        finally:
            await speech.aclose()

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    lossy = format not in ("flac", "wav", "pcm")
    hearing.check(lossy=lossy, dropped=DROPPED.get(format, 0.0), padding=WHOLE_FRAMES, voice="heart")
