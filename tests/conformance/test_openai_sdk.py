"""OpenAI's own package: whole answers, streams, events, voices, errors."""

import base64
import json
from collections.abc import Iterator

import openai
import pytest

from audio.signals import decoded, speech
from conformance.hearing import RATE, TEXT, Hearing, same_samples
from conformance.serve import Served
from polyvox.audio import encode

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")  # those that the package names
FRAMES = 20  # the tiny checkpoint has no end of speech
WORDS = "What is said in the recording."


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


@pytest.fixture
def cloner(cloning: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cloning.url}/v1", api_key="none") as client:
        yield client


@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_begins_early_and_is_the_whole(format: str, server: Served, client: openai.OpenAI) -> None:
    create = client.audio.speech.with_streaming_response.create
    with (
        Hearing(server) as hearing,
        create(model="tts-1", voice="alloy", input=TEXT, response_format=format, extra_body={"seed": 3}) as answer,
    ):
        assert answer.headers["x-seed"] == "3"
        for part in answer.iter_bytes():
            hearing.hear(part)
    hearing.check(format=format, voice="heart")


@pytest.mark.parametrize("format", FORMATS)
def test_events_begin_early_and_are_the_whole(format: str, server: Served, client: openai.OpenAI) -> None:
    create = client.audio.speech.with_streaming_response.create
    with (
        Hearing(server) as hearing,
        create(
            model="gpt-4o-mini-tts",
            voice="alloy",
            input=TEXT,
            response_format=format,
            stream_format="sse",
            extra_body={"seed": 3},
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = []
        for line in answer.iter_lines():
            if line:
                events.append(json.loads(line.removeprefix("data: ")))
                hearing.hear(base64.b64decode(events[-1].get("audio", "")))
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert events[-1]["type"] == "speech.audio.done"
    assert set(events[-1]["usage"]) == {"input_tokens", "output_tokens", "total_tokens"}
    hearing.check(format=format, voice="heart")


def test_create_gives_the_whole_sound(server: Served, client: openai.OpenAI) -> None:
    with Hearing(server, early=False) as hearing:
        hearing.hear(client.audio.speech.create(model="tts-1", voice="ash", input=TEXT, response_format="pcm").read())
    hearing.check(voice="michael")


def test_errors_are_the_kinds_that_the_package_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="heart"):
        client.audio.speech.create(model="tts-1", voice="bob", input="Hello.")
    with pytest.raises(openai.UnprocessableEntityError, match="speed"):
        client.audio.speech.create(model="tts-1", voice="alloy", input="Hello.", speed=9)
    with pytest.raises(openai.BadRequestError, match="input") as refused:
        client.audio.speech.create(model="tts-1", voice="alloy", input=" ")
    assert refused.value.param == "input"
    assert refused.value.request_id
    assert [model.owned_by for model in client.models.list()] == ["polyvox"]


@pytest.mark.parametrize("words", [None, WORDS])
def test_an_uploaded_voice_speaks_and_is_taken_away(words: str | None, cloning: Served, cloner: openai.OpenAI) -> None:
    sample = encode(speech(3.0, RATE), RATE, "mp3")
    kept = cloner.audio.voices.create(
        name="Anna",
        consent="by letter",
        audio_sample=("anna.mp3", sample, "audio/mpeg"),
        extra_body=None if words is None else {"ref_text": words},
    )
    try:
        assert (kept.object, kept.name, kept.type) == ("audio.voice", "Anna", "audio_sample")
        said = cloner.audio.speech.create(
            model="any",
            voice={"id": kept.id},
            input="Hello.",
            response_format="pcm",
            extra_body={"seed": 4, "max_new_tokens": FRAMES},
        ).read()
        heard, _ = decoded(said, "pcm")
        assert len(heard) > FRAMES
        recording = base64.b64encode(sample).decode()
        same_samples(heard, cloning.one_shot("Hello.", 4, max_new_tokens=FRAMES, ref_audio=recording, ref_text=words))
    finally:
        cloner.audio.voices.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        cloner.audio.speech.create(model="any", voice="Anna", input="Hello.")
