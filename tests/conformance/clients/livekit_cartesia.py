# SPDX-License-Identifier: Apache-2.0
"""LiveKit's Cartesia plugin with its defaults: streamed text."""

import asyncio
import sys

import aiohttp
from livekit.plugins import cartesia
from measurement import Measurement, words


async def main():
    async with aiohttp.ClientSession() as session, asyncio.timeout(100):
        service = cartesia.TTS(api_key="none", base_url=sys.argv[1], http_session=session)
        measurement = Measurement()
        async with service.stream() as stream:
            for word in words():
                stream.push_text(word)
            stream.end_input()
            async for event in stream:
                measurement.add(bytes(event.frame.data))
        await service.aclose()
        measurement.report("livekit-plugins-cartesia")


asyncio.run(main())
