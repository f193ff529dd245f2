# SPDX-License-Identifier: Apache-2.0
"""The openai package: whole files, streams, events, voices, errors."""

import base64
import json
from collections.abc import Iterator

import openai
import pytest

from audio.signals import decoded, speech
from conformance.capture import SAMPLE_RATE, TEXT, StreamCapture, assert_same_samples
from conformance.server_process import ServerProcess
from polyvox.audio import encode

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")  # those of the package
FRAMES = 20  # the tiny checkpoint never generates end of speech
TRANSCRIPT = "What is said in the recording."


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


@pytest.fixture
def cloner(cloning: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cloning.url}/v1", api_key="none") as client:
        yield client


@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_starts_early_and_is_complete(format: str, server: ServerProcess, client: openai.OpenAI) -> None:
    create = client.audio.speech.with_streaming_response.create
    with (
        StreamCapture(server) as capture,
        create(model="tts-1", voice="alloy", input=TEXT, response_format=format, extra_body={"seed": 3}) as response,
    ):
        assert response.headers["x-seed"] == "3"
        for chunk in response.iter_bytes():
            capture.add(chunk)
    capture.check(format=format, voice="heart")


@pytest.mark.parametrize("format", FORMATS)
def test_events_start_early_and_are_complete(format: str, server: ServerProcess, client: openai.OpenAI) -> None:
    create = client.audio.speech.with_streaming_response.create
    with (
        StreamCapture(server) as capture,
        create(
            model="gpt-4o-mini-tts",
            voice="alloy",
            input=TEXT,
            response_format=format,
            stream_format="sse",
            extra_body={"seed": 3},
        ) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        events = []
        for line in response.iter_lines():
            if line:
                events.append(json.loads(line.removeprefix("data: ")))
                capture.add(base64.b64decode(events[-1].get("audio", "")))
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert events[-1]["type"] == "speech.audio.done"
    assert set(events[-1]["usage"]) == {"input_tokens", "output_tokens", "total_tokens"}
    capture.check(format=format, voice="heart")


def test_create_returns_the_whole_audio(server: ServerProcess, client: openai.OpenAI) -> None:
    with StreamCapture(server, early=False) as capture:
        capture.add(client.audio.speech.create(model="tts-1", voice="ash", input=TEXT, response_format="pcm").read())
    capture.check(voice="michael")


def test_errors_map_to_the_exceptions_of_the_package(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="heart"):
        client.audio.speech.create(model="tts-1", voice="bob", input="Hello.")
    with pytest.raises(openai.UnprocessableEntityError, match="speed"):
        client.audio.speech.create(model="tts-1", voice="alloy", input="Hello.", speed=9)
    with pytest.raises(openai.BadRequestError, match="input") as rejected:
        client.audio.speech.create(model="tts-1", voice="alloy", input=" ")
    assert rejected.value.param == "input"
    assert rejected.value.request_id
    assert [model.owned_by for model in client.models.list()] == ["polyvox"]


@pytest.mark.parametrize("transcript", [None, TRANSCRIPT])
def test_an_uploaded_voice_speaks_and_can_be_deleted(
    transcript: str | None, cloning: ServerProcess, cloner: openai.OpenAI
) -> None:
    sample = encode(speech(3.0, SAMPLE_RATE), SAMPLE_RATE, "mp3")
    voice = cloner.audio.voices.create(
        name="Anna",
        consent="by letter",
        audio_sample=("anna.mp3", sample, "audio/mpeg"),
        extra_body=None if transcript is None else {"ref_text": transcript},
    )
    try:
        assert (voice.object, voice.name, voice.type) == ("audio.voice", "Anna", "audio_sample")
        audio = cloner.audio.speech.create(
            model="any",
            voice={"id": voice.id},
            input="Hello.",
            response_format="pcm",
            extra_body={"seed": 4, "max_new_tokens": FRAMES},
        ).read()
        received, _ = decoded(audio, "pcm")
        assert len(received) > FRAMES
        recording = base64.b64encode(sample).decode()
        assert_same_samples(
            received, cloning.one_shot("Hello.", 4, max_new_tokens=FRAMES, ref_audio=recording, ref_text=transcript)
        )
    finally:
        cloner.audio.voices.delete(voice.id)
    with pytest.raises(openai.NotFoundError):
        cloner.audio.speech.create(model="any", voice="Anna", input="Hello.")
