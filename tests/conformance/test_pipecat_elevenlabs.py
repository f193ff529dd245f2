# SPDX-License-Identifier: Apache-2.0
"""Pipecat's ElevenLabs services: WebSocket with streamed text and interruptions, and HTTP."""

import asyncio
from typing import Any

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

from conformance.capture import SAMPLE_RATE, TEXT, StreamCapture
from conformance.pipeline import run_pipeline
from conformance.server_process import ServerProcess


def websocket_service(
    server: ServerProcess, mode: TextAggregationMode = TextAggregationMode.SENTENCE
) -> ElevenLabsTTSService:
    settings = ElevenLabsTTSService.Settings(voice="heart")
    url = server.url.replace("http://", "ws://")
    return ElevenLabsTTSService(api_key="none", url=url, settings=settings, text_aggregation_mode=mode)


def llm_frames() -> list[Frame]:
    """The text as a language model streams it."""
    words = [LLMTextFrame(word if first == 0 else f" {word}") for first, word in enumerate(TEXT.split(" "))]
    return [LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()]


def test_an_utterance_starts_early_and_is_complete(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        await run_pipeline(websocket_service(server), capture, [TTSSpeakFrame(TEXT)])

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(voice="heart")


def test_words_have_times_in_the_audio(server: ServerProcess) -> None:
    service, words = websocket_service(server), list[tuple[str, float]]()
    add = service.add_word_timestamps

    async def record(word_times: list[tuple[str, float]], *rest: Any, **options: Any) -> None:
        words.extend(word_times)
        await add(word_times, *rest, **options)

    async def run(capture: StreamCapture) -> None:
        service.add_word_timestamps = record
        await run_pipeline(service, capture, [TTSSpeakFrame(TEXT)])

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    spoken = TEXT.split()
    assert [word for word, _ in words][: len(spoken) - 1] == spoken[:-1]  # the last word has no space after it
    times = [time for _, time in words]
    assert times == sorted(times)
    seconds = len(server.one_shot(TEXT, capture.seed, voice="heart")) / SAMPLE_RATE
    assert 0.4 * seconds < times[len(spoken) - 2] < seconds


def test_a_streamed_response_sent_by_sentence_is_one_utterance(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        await run_pipeline(websocket_service(server), capture, llm_frames())

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(voice="heart")


def test_a_streamed_response_sent_by_token_is_one_utterance(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        await run_pipeline(websocket_service(server, TextAggregationMode.TOKEN), capture, llm_frames())

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(voice="heart")


def test_an_interruption_ends_the_utterance(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        await run_pipeline(websocket_service(server), capture, [TTSSpeakFrame(TEXT)], on_audio=InterruptionFrame())

    with StreamCapture(server, finish_reason="cancelled") as capture:
        asyncio.run(run(capture))
    interrupted = server.finished_requests()[-1]["audio_seconds"]
    complete = len(server.one_shot(TEXT, capture.seed, voice="heart")) / SAMPLE_RATE
    assert interrupted < 0.9 * complete


def test_an_utterance_over_http_starts_early_and_is_complete(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        async with aiohttp.ClientSession() as session:
            settings = ElevenLabsHttpTTSService.Settings(voice="heart")
            service = ElevenLabsHttpTTSService(
                api_key="none", base_url=server.url, aiohttp_session=session, settings=settings
            )
            await run_pipeline(service, capture, [TTSSpeakFrame(TEXT)])

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(voice="heart")
