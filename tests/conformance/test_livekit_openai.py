# SPDX-License-Identifier: Apache-2.0
"""LiveKit's OpenAI plugin: mp3 as events by default, as a stream for tts-1, and every format it can request."""

import asyncio

import pytest
from livekit.plugins import openai

from conformance.capture import SAMPLE_RATE, TEXT, StreamCapture
from conformance.server_process import ServerProcess

PADDING = 0.02  # seconds: the plugin pads its last frame
DROPPED = {"flac": 0.01}  # seconds: its decoder (nobuffer) discards the packets it probed, one of our blocks


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
def test_an_utterance_starts_early_and_is_complete(model: str, format: str, server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        speech = openai.TTS(
            model=model, voice="alloy", response_format=format, base_url=f"{server.url}/v1", api_key="none"
        )
        speech.prewarm()
        try:
            async for event in speech.synthesize(TEXT):
                assert (event.frame.sample_rate, event.frame.num_channels) == (SAMPLE_RATE, 1)
                capture.add(bytes(event.frame.data))
        finally:
            await speech.aclose()

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    lossy = format not in ("flac", "wav", "pcm")
    capture.check(lossy=lossy, dropped=DROPPED.get(format, 0.0), padding=PADDING, voice="heart")
