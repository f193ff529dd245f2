import io
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

import polyvox
from polyvox.audio import Audio
from polyvox.engine.config import EngineConfig
from polyvox.server.app import create_app
from polyvox.tts import TTS


@pytest.fixture
def client(embedded: TTS) -> Iterator[TestClient]:
    with TestClient(create_app(embedded)) as client:
        yield client


def spoken(tts: TTS, voice: str) -> Audio:
    """What the server is to give: it begins with the first sound."""
    stream = tts.stream("Hello.", voice, seed=5, trim_silence=True)
    return stream.audio(list(stream))


def test_a_text_comes_back_as_the_wav_that_a_stream_gives(client: TestClient, embedded: TTS) -> None:
    response = client.post("/say", json={"text": "Hello.", "voice": "michael", "seed": 5})
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    assert response.headers["x-seed"] == "5"
    assert response.headers["x-finish-reason"] == "stop"
    expected = spoken(embedded, "michael")
    with wave.open(io.BytesIO(response.content)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() == len(expected.samples)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"text": ""}, 400, "text"),
        ({"text": "hi", "voice": "bob"}, 404, "heart, michael"),
        ({"text": "hi", "language": "klingon"}, 400, "auto, english"),
        ({"text": "x" * 100_000}, 400, "10,000"),
        ({"text": "hi", "instructions": "slowly"}, 400, "VoiceDesign"),
        ({"text": "hi", "pitch": 2}, 422, "pitch"),
        ({"text": "hi", "seed": "x"}, 422, "seed"),
        ({}, 422, "text"),
        ({"text": "hi", "seed": "7"}, 422, "seed"),
        ({"text": "hi", "seed": True}, 422, "seed"),
        ([], 422, "body"),
    ],
)
def test_bad_input_is_named(body: object, status: int, told: str, client: TestClient) -> None:
    response = client.post("/say", json=body)
    assert response.status_code == status
    assert told in response.text


@pytest.mark.parametrize(
    "body", ['{"text": "hi", "seed": NaN}', '{"text": "hi", "\\ud800": 1}', "{", '{"text": "\\ud800"}']
)
def test_what_cannot_be_echoed_is_still_refused_politely(body: str, client: TestClient) -> None:
    response = client.post("/say", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


def test_the_root_tells_what_to_do(client: TestClient) -> None:
    assert "POST /say" in client.get("/").text


def test_a_full_engine_says_when_to_come_back() -> None:
    with polyvox.load(device="cpu", config=EngineConfig(slots=1, queue=0)) as tts:
        held = tts.stream("Hello", live=True)
        with TestClient(create_app(tts)) as client:
            held.append(" there, my friend.")
            response = client.post("/say", json={"text": "Hello."})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            held.cancel()


def test_requests_at_the_same_time_get_their_own_speech(client: TestClient, embedded: TTS) -> None:
    alone = {voice: spoken(embedded, voice).seconds for voice in embedded.voices}
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            (voice, pool.submit(client.post, "/say", json={"text": "Hello.", "voice": voice, "seed": 5}))
            for voice in embedded.voices * 2
        ]
        for voice, job in jobs:
            with wave.open(io.BytesIO(job.result().content)) as file:
                assert file.getnframes() / file.getframerate() == pytest.approx(alone[voice], abs=0.01)
