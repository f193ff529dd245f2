# SPDX-License-Identifier: Apache-2.0
"""The elevenlabs package: whole files, streams, streamed text input, lists."""

import base64
from collections.abc import Iterator

import pytest
from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core import ApiError

from conformance.capture import TEXT, StreamCapture
from conformance.server_process import ServerProcess

# output_format, the decoder's format, sample rate
FORMATS = [
    ("pcm_24000", "pcm", 24_000),
    ("pcm_16000", "pcm", 16_000),
    ("ulaw_8000", "ulaw", 8_000),
    ("mp3_44100_128", "mp3", 44_100),
    ("opus_48000_64", "opus", 48_000),
]


@pytest.fixture
def client(server: ServerProcess) -> ElevenLabs:
    client = ElevenLabs(base_url=server.url, api_key="none")
    # The package always uses wss, and TLS is left to a proxy.
    client.text_to_speech._ws_base_url = server.url.replace("http://", "ws://")
    return client


def words() -> Iterator[str]:
    """The text as a language model streams it."""
    for word in TEXT.split(" "):
        yield f"{word} "


@pytest.mark.parametrize(("name", "format", "rate"), FORMATS)
def test_a_stream_starts_early_and_is_complete(
    name: str, format: str, rate: int, server: ServerProcess, client: ElevenLabs
) -> None:
    with StreamCapture(server) as capture:
        for chunk in client.text_to_speech.stream("heart", text=TEXT, output_format=name, seed=3):
            capture.add(chunk)
    assert capture.seed == 3
    capture.check(format=format, sample_rate=rate, voice="heart")


def test_a_file_is_complete(server: ServerProcess, client: ElevenLabs) -> None:
    with StreamCapture(server, early=False) as capture:
        for chunk in client.text_to_speech.convert("heart", text=TEXT, output_format="pcm_24000", seed=3):
            capture.add(chunk)
    capture.check(voice="heart")


def test_a_stream_with_timestamps_starts_early_and_has_all_characters(
    server: ServerProcess, client: ElevenLabs
) -> None:
    chars, starts = "", list[float]()
    with StreamCapture(server) as capture:
        stream = client.text_to_speech.stream_with_timestamps
        for chunk in stream("heart", text=TEXT, output_format="pcm_24000", seed=3):
            if chunk.alignment is not None:
                chars += "".join(chunk.alignment.characters)
                starts += chunk.alignment.character_start_times_seconds
            capture.add(base64.b64decode(chunk.audio_base_64))
    capture.check(voice="heart")
    assert chars == TEXT
    assert starts == sorted(starts)
    whole = client.text_to_speech.convert_with_timestamps("heart", text="5 km.", output_format="pcm_24000", seed=3)
    seconds = len(base64.b64decode(whole.audio_base_64)) / 48_000
    assert whole.alignment is not None
    assert whole.normalized_alignment is not None
    assert "".join(whole.alignment.characters) == "5 km."
    assert "".join(whole.normalized_alignment.characters) == "Five kilometers."
    assert whole.alignment.character_end_times_seconds[-1] == pytest.approx(seconds, abs=0.001)


@pytest.mark.parametrize(("name", "format", "rate"), FORMATS)
def test_words_sent_one_by_one_start_early_and_are_complete(
    name: str, format: str, rate: int, server: ServerProcess, client: ElevenLabs
) -> None:
    settings = VoiceSettings(stability=0.5, similarity_boost=0.8)
    with StreamCapture(server) as capture:
        speak = client.text_to_speech.convert_realtime
        for chunk in speak("heart", text=words(), model_id="any", output_format=name, voice_settings=settings):
            capture.add(chunk)
    capture.check(format=format, sample_rate=rate, voice="heart")


def test_lists_and_errors_have_the_format_of_the_package(client: ElevenLabs) -> None:
    voices = client.voices.get_all().voices
    assert [voice.voice_id for voice in voices] == ["heart", "michael"]
    assert client.voices.get("michael").name == "michael"
    assert [voice.voice_id for voice in client.voices.search().voices] == ["heart", "michael"]
    with pytest.raises(ApiError) as rejected:
        list(client.text_to_speech.stream("bob", text="Hello."))
    assert rejected.value.status_code == 404
    with pytest.raises(ApiError) as rejected:
        list(client.text_to_speech.stream("heart", text=" "))
    assert rejected.value.status_code == 400
