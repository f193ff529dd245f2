# SPDX-License-Identifier: Apache-2.0
"""LiveKit's ElevenLabs plugin: streamed text, its default voice, and a voice that does not exist."""

import asyncio
import sys

import aiohttp
from livekit.agents import APIConnectOptions, APIError
from livekit.plugins import elevenlabs
from measurement import Measurement, words

OPTIONS = {"api_key": "none", "base_url": f"{sys.argv[1]}/v1"}


async def speak(service, measurement):
    async with service.stream(conn_options=APIConnectOptions(max_retry=0, timeout=20)) as stream:
        for word in words():
            stream.push_text(word)
        stream.end_input()
        async for event in stream:
            measurement.add(bytes(event.frame.data))
    await service.aclose()


async def main():
    async with aiohttp.ClientSession() as session, asyncio.timeout(100):
        unknown = elevenlabs.TTS(voice_id="nobody", http_session=session, **OPTIONS)
        try:
            async with asyncio.timeout(10):
                await speak(unknown, Measurement())
            sys.exit("an unknown voice was accepted")
        except APIError:
            pass
        measurement = Measurement()
        await speak(elevenlabs.TTS(http_session=session, **OPTIONS), measurement)
        measurement.report("livekit-plugins-elevenlabs", "streams text; an unknown voice is an `APIError`")


asyncio.run(main())
