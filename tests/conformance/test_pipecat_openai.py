# SPDX-License-Identifier: Apache-2.0
"""Pipecat's OpenAI service: pcm without a streaming field."""

import asyncio

from pipecat.frames.frames import TTSSpeakFrame
from pipecat.services.openai.tts import OpenAITTSService

from conformance.capture import TEXT, StreamCapture
from conformance.pipeline import run_pipeline
from conformance.server_process import ServerProcess


def test_an_utterance_starts_early_and_is_complete(server: ServerProcess) -> None:
    async def run(capture: StreamCapture) -> None:
        settings = OpenAITTSService.Settings(voice="ash")
        service = OpenAITTSService(api_key="none", base_url=f"{server.url}/v1", settings=settings)
        await run_pipeline(service, capture, [TTSSpeakFrame(TEXT)])

    with StreamCapture(server) as capture:
        asyncio.run(run(capture))
    capture.check(voice="michael")
