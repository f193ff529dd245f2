import io
import threading
import wave
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from polyvox.errors import Overloaded
from polyvox.server.app import Turn, create_app
from polyvox.tts import TTS


@pytest.fixture
def client(embedded: TTS) -> Iterator[TestClient]:
    with TestClient(create_app(embedded)) as client:
        yield client


def test_a_text_comes_back_as_the_wav_that_say_gives(client: TestClient, embedded: TTS) -> None:
    response = client.post("/say", json={"text": "Hello.", "voice": "michael", "seed": 5})
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    assert response.headers["x-seed"] == "5"
    assert response.headers["x-finish-reason"] == "stop"
    assert response.content == embedded.say("Hello.", "michael", seed=5).wav()
    with wave.open(io.BytesIO(response.content)) as file:
        assert file.getframerate() == 24_000


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"text": ""}, 400, "text"),
        ({"text": "hi", "voice": "bob"}, 400, "heart, michael"),
        ({"text": "hi", "language": "klingon"}, 400, "auto, english"),
        ({"text": "x" * 100_000}, 400, "10,000"),
        ({"text": "hi", "instructions": "slowly"}, 400, "VoiceDesign"),
        ({"text": "hi", "pitch": 2}, 422, "pitch"),
        ({"text": "hi", "seed": "x"}, 422, "seed"),
        ({}, 422, "text"),
        ([], 422, "dictionary"),
    ],
)
def test_bad_input_is_named(body: object, status: int, told: str, client: TestClient) -> None:
    response = client.post("/say", json=body)
    assert response.status_code == status
    assert told in response.text


def test_the_root_tells_what_to_do(client: TestClient) -> None:
    assert "POST /say" in client.get("/").text


def test_one_speaks_a_few_wait_and_the_rest_are_refused(embedded: TTS) -> None:
    turn = Turn(waiting=1, seconds=60)
    waiting = threading.Event()
    heard = []

    def wait() -> None:
        waiting.set()
        with turn.take():
            heard.append("waited")

    with turn.take():
        other = threading.Thread(target=wait)
        other.start()
        assert waiting.wait(10)
        while turn._places._value:  # the other thread holds the last place
            pass
        with TestClient(create_app(embedded, turn)) as client:
            response = client.post("/say", json={"text": "Hello."})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert heard == []
    other.join(10)
    assert heard == ["waited"]
    with turn.take():
        pass


def test_a_wait_ends() -> None:
    turn = Turn(waiting=1, seconds=0.01)
    with turn.take(), pytest.raises(Overloaded, match="no turn"), turn.take():
        pass
    with turn.take():
        pass
