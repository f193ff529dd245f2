# SPDX-License-Identifier: Apache-2.0
"""LiveKit's OpenAI plugin with its defaults."""

import asyncio
import sys

from livekit.plugins import openai
from measurement import TEXT, Measurement


async def main():
    service = openai.TTS(api_key="none", base_url=f"{sys.argv[1]}/v1")
    measurement = Measurement()
    async with asyncio.timeout(100):
        async for event in service.synthesize(TEXT):
            measurement.add(bytes(event.frame.data))
        await service.aclose()
    measurement.report("livekit-plugins-openai", "one request per sentence in an agent")


asyncio.run(main())
