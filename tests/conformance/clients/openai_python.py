# SPDX-License-Identifier: Apache-2.0
"""OpenAI's package for Python, with the voice of its examples."""

import sys

from measurement import TEXT, Measurement
from openai import OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
measurement = Measurement()
speech = client.audio.speech.with_streaming_response
with speech.create(
    model="gpt-4o-mini-tts", voice="alloy", input=TEXT, instructions="Speak in a cheerful tone.", response_format="pcm"
) as response:
    for chunk in response.iter_bytes(4096):
        measurement.add(chunk)
measurement.report("openai", "`instructions` is ignored by the embedded voice")
