# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' package for Python: its default voice, text in pieces, a dictionary, search and the account."""

import sys

from elevenlabs import VoiceSettings, environment
from elevenlabs.client import ElevenLabs
from measurement import TEXT, Measurement, words

RACHEL = "21m00Tcm4TlvDq8ikWAM"
URL, WS_URL = sys.argv[1], sys.argv[1].replace("http", "ws")
if hasattr(environment.ElevenLabsEnvironment.PRODUCTION, "base"):  # 1.x: base_url would be changed to https
    client = ElevenLabs(environment=environment.ElevenLabsEnvironment(base=URL, wss=WS_URL), api_key="none")
else:
    client = ElevenLabs(base_url=URL, api_key="none")
speech = client.text_to_speech
speech._ws_base_url = WS_URL  # the package always uses wss

stream = getattr(speech, "convert_as_stream", None) or speech.stream
assert b"".join(stream(RACHEL, text="Hello there.", output_format="pcm_24000"))
assert client.voices.get_all().voices
assert client.user.get().subscription.character_limit

settings = VoiceSettings(stability=0.5, similarity_boost=0.8)
measurement = Measurement()
for chunk in speech.convert_realtime(
    RACHEL, text=words(), model_id="any", output_format="pcm_24000", voice_settings=settings
):
    measurement.add(chunk)

if hasattr(client, "text_to_dialogue"):
    turns = [{"text": "Hello.", "voice_id": RACHEL}, {"text": "Good evening.", "voice_id": "pNInz6obpgDQGcFmaJgB"}]
    assert b"".join(client.text_to_dialogue.stream(inputs=turns, output_format="pcm_24000"))
if hasattr(client, "pronunciation_dictionaries"):
    rule = {"string_to_replace": "ferry", "type": "alias", "alias": "boat"}
    made = client.pronunciation_dictionaries.create_from_rules(name="Terms", rules=[rule])
    locator = {"pronunciation_dictionary_id": made.id, "version_id": made.version_id}
    assert b"".join(stream(RACHEL, text=TEXT[:40], pronunciation_dictionary_locators=[locator]))
    client.pronunciation_dictionaries.rules.remove(made.id, rule_strings=["ferry"])
measurement.report("elevenlabs", "the socket needs TLS or `_ws_base_url`: the package always uses wss")
