# SPDX-License-Identifier: Apache-2.0
"""LiteLLM, through its OpenAI and its ElevenLabs provider."""

import sys

import litellm
from measurement import TEXT, Measurement

litellm.telemetry = False
eleven = litellm.speech(
    model="elevenlabs/eleven_multilingual_v2", voice="alloy", input="Hello.", api_base=sys.argv[1], api_key="none"
)
assert eleven.content
measurement = Measurement()
response = litellm.speech(
    model="openai/tts-1",
    voice="alloy",
    input=TEXT,
    response_format="pcm",
    api_base=f"{sys.argv[1]}/v1",
    api_key="none",
)
for chunk in response.iter_bytes(4096):
    measurement.add(chunk)
measurement.report("litellm", "`speech` returns the whole file; the proxy streams")
