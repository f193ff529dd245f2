"""Pipecat's ElevenLabs services: by WebSocket, with text as it is written and interruptions, and by HTTP."""

import asyncio

import aiohttp
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSSpeakFrame,
)
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.tts_service import TextAggregationMode

from conformance.hearing import TEXT, Hearing
from conformance.pipeline import speak
from conformance.serve import Served


def by_socket(server: Served, mode: TextAggregationMode = TextAggregationMode.SENTENCE) -> ElevenLabsTTSService:
    settings = ElevenLabsTTSService.Settings(voice="heart")
    address = server.url.replace("http://", "ws://")
    return ElevenLabsTTSService(api_key="none", url=address, settings=settings, text_aggregation_mode=mode)


def written() -> list[Frame]:
    """The text as a language model writes it."""
    words = [LLMTextFrame(word if first == 0 else f" {word}") for first, word in enumerate(TEXT.split(" "))]
    return [LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()]


def test_an_utterance_begins_early_and_is_the_whole(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        await speak(by_socket(server), hearing, [TTSSpeakFrame(TEXT)])

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(voice="heart")


def test_sentences_of_an_answer_that_is_still_written_are_one_utterance(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        await speak(by_socket(server), hearing, written())

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(voice="heart")


def test_words_of_an_answer_that_is_still_written_are_one_utterance(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        await speak(by_socket(server, TextAggregationMode.TOKEN), hearing, written())

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(voice="heart")


def test_an_interruption_ends_the_utterance(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        await speak(by_socket(server), hearing, [TTSSpeakFrame(TEXT)], then=InterruptionFrame())

    with Hearing(server, end="cancelled") as hearing:
        asyncio.run(run(hearing))
    assert server.said()[-1]["audio_seconds"] < 0.9 * len(server.one_shot(TEXT, hearing.seed, voice="heart")) / 24_000


def test_by_http_an_utterance_begins_early_and_is_the_whole(server: Served) -> None:
    async def run(hearing: Hearing) -> None:
        async with aiohttp.ClientSession() as session:
            settings = ElevenLabsHttpTTSService.Settings(voice="heart")
            service = ElevenLabsHttpTTSService(
                api_key="none", base_url=server.url, aiohttp_session=session, settings=settings
            )
            await speak(service, hearing, [TTSSpeakFrame(TEXT)])

    with Hearing(server) as hearing:
        asyncio.run(run(hearing))
    hearing.check(voice="heart")
