"""Pipecat's OpenAI service: pcm, with no word about streaming."""

import asyncio

from pipecat.frames.frames import TTSSpeakFrame
from pipecat.services.openai.tts import OpenAITTSService

from conformance.hearing import TEXT, Hearing
from conformance.pipeline import speak
from conformance.serve import Served


def test_an_utterance_begins_early_and_is_the_whole(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        settings = OpenAITTSService.Settings(voice="ash")
        service = OpenAITTSService(api_key="none", base_url=f"{server.url}/v1", settings=settings)
        await speak(service, hearing, [TTSSpeakFrame(TEXT)])

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(voice="michael")
