# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Agents SDK: the speech model of its voice pipeline."""

import asyncio
import sys

from agents.voice import TTSModelSettings
from agents.voice.models.openai_tts import OpenAITTSModel
from measurement import TEXT, Measurement
from openai import AsyncOpenAI


async def main():
    model = OpenAITTSModel("gpt-4o-mini-tts", AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none"))
    measurement = Measurement()
    async for chunk in model.run(TEXT, TTSModelSettings()):
        measurement.add(chunk)
    measurement.report("openai-agents", "always sends `instructions`, which the embedded voice ignores")


asyncio.run(main())
