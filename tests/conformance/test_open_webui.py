"""What Open WebUI sends, field by field: it has no package that could be used, so its requests are made here."""

import json
from collections.abc import Iterator

import httpx
import pytest

from conformance.hearing import TEXT, Hearing
from conformance.serve import Served, served

KEY = "one that nobody guesses"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a key for speech, and lists that need none, as Open WebUI asks for them without."""
    folder = tmp_path_factory.mktemp("guarded")
    config = folder / "polyvox.yaml"
    config.write_text(json.dumps({"api_keys": [KEY], "public": ["voices", "models"]}))
    with served(folder / "voices", "--config", str(config)) as running:
        yield running


def test_speech_without_a_format_is_mp3_that_begins_early(server: Served) -> None:
    body = {"model": "tts-1", "input": TEXT, "voice": "alloy"}
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    headers |= {"x-openwebui-user-name": "Anna", "x-openwebui-user-id": "7", "x-openwebui-user-role": "user"}
    with (
        Hearing(server) as hearing,
        server.client() as client,
        client.stream("POST", "/v1/audio/speech", content=json.dumps(body), headers=headers) as answer,
    ):
        assert answer.headers["content-type"] == "audio/mpeg"
        for part in answer.iter_bytes():
            hearing.hear(part)
    hearing.check(format="mp3", voice="heart")


def test_parameters_of_the_administrator_are_merged_in(server: Served) -> None:
    body = {"model": "tts-1", "input": "Hello.", "voice": "echo", "language": "english", "seed": 5, "speed": 1.5}
    with server.client() as client:
        answer = client.post("/v1/audio/speech", json=body)
    assert (answer.status_code, answer.headers["x-seed"]) == (200, "5")
    assert "x-polyvox-ignored" not in answer.headers


def test_lists_need_no_key_and_speech_does(guarded: Served) -> None:
    with guarded.client() as client:
        voices = client.get("/v1/audio/voices").raise_for_status().json()["voices"]
        assert {voice["id"]: voice["name"] for voice in voices} == {"heart": "heart", "michael": "michael"}
        models = client.get("/v1/audio/models").raise_for_status().json()["models"]
        assert [model["id"] for model in models] == [
            model["id"] for model in client.get("/v1/models").raise_for_status().json()["data"]
        ]
        body = {"model": "tts-1", "input": "Hello.", "voice": "alloy"}
        assert client.post("/v1/audio/speech", json=body).status_code == httpx.codes.UNAUTHORIZED
        spoken = client.post("/v1/audio/speech", json=body, headers={"authorization": f"Bearer {KEY}"})
        assert spoken.headers["content-type"] == "audio/mpeg"
