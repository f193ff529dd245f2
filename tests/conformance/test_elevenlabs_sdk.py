"""ElevenLabs' own package: whole answers, streams, text that is still being written, its lists."""

import base64
from collections.abc import Iterator

import pytest
from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core import ApiError

from conformance.hearing import TEXT, Hearing
from conformance.serve import Served

# What is asked for, what a decoder is told, the rate.
FORMATS = [
    ("pcm_24000", "pcm", 24_000),
    ("pcm_16000", "pcm", 16_000),
    ("ulaw_8000", "ulaw", 8_000),
    ("mp3_44100_128", "mp3", 44_100),
    ("opus_48000_64", "opus", 48_000),
]


@pytest.fixture
def client(server: Served) -> ElevenLabs:
    client = ElevenLabs(base_url=server.url, api_key="none")
    # The package takes wss whatever the address is, and we leave TLS to a proxy.
    client.text_to_speech._ws_base_url = server.url.replace("http://", "ws://")
    return client


def words() -> Iterator[str]:
    """The text as a language model writes it."""
    for word in TEXT.split(" "):
        yield f"{word} "


@pytest.mark.parametrize(("name", "format", "rate"), FORMATS)
def test_a_stream_begins_early_and_is_the_whole(
    name: str, format: str, rate: int, server: Served, client: ElevenLabs
) -> None:
    with Hearing(server) as hearing:
        for part in client.text_to_speech.stream("heart", text=TEXT, output_format=name, seed=3):
            hearing.hear(part)
    assert hearing.seed == 3
    hearing.check(format=format, sample_rate=rate, voice="heart")


def test_a_file_is_the_whole(server: Served, client: ElevenLabs) -> None:
    with Hearing(server, early=False) as hearing:
        for part in client.text_to_speech.convert("heart", text=TEXT, output_format="pcm_24000", seed=3):
            hearing.hear(part)
    hearing.check(voice="heart")


def test_sound_with_times_begins_early_and_invents_none(server: Served, client: ElevenLabs) -> None:
    with Hearing(server) as hearing:
        ask = client.text_to_speech.stream_with_timestamps
        for part in ask("heart", text=TEXT, output_format="pcm_24000", seed=3):
            assert part.alignment is part.normalized_alignment is None
            hearing.hear(base64.b64decode(part.audio_base_64))
    hearing.check(voice="heart")
    whole = client.text_to_speech.convert_with_timestamps("heart", text="Hello.", output_format="pcm_24000", seed=3)
    assert base64.b64decode(whole.audio_base_64)


@pytest.mark.parametrize(("name", "format", "rate"), FORMATS)
def test_words_that_come_one_by_one_are_said_early_and_as_the_whole(
    name: str, format: str, rate: int, server: Served, client: ElevenLabs
) -> None:
    settings = VoiceSettings(stability=0.5, similarity_boost=0.8)
    with Hearing(server) as hearing:
        speak = client.text_to_speech.convert_realtime
        for part in speak("heart", text=words(), model_id="any", output_format=name, voice_settings=settings):
            hearing.hear(part)
    hearing.check(format=format, sample_rate=rate, voice="heart")


def test_lists_and_errors_are_what_the_package_reads(client: ElevenLabs) -> None:
    voices = client.voices.get_all().voices
    assert [voice.voice_id for voice in voices] == ["heart", "michael"]
    assert client.voices.get("michael").name == "michael"
    assert [voice.voice_id for voice in client.voices.search().voices] == ["heart", "michael"]
    with pytest.raises(ApiError) as refused:
        list(client.text_to_speech.stream("bob", text="Hello."))
    assert refused.value.status_code == 404
    with pytest.raises(ApiError) as refused:
        list(client.text_to_speech.stream("heart", text=" "))
    assert refused.value.status_code == 400
