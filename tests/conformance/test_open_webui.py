# SPDX-License-Identifier: Apache-2.0
"""The requests of Open WebUI, field by field, as it has no client package."""

import json
from collections.abc import Iterator

import httpx
import pytest

from conformance.capture import TEXT, StreamCapture
from conformance.server_process import ServerProcess, run_server

KEY = "a key that is hard to guess"


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that requires a key for speech and none for the lists, which Open WebUI requests without one."""
    folder = tmp_path_factory.mktemp("protected")
    config = folder / "polyvox.yaml"
    config.write_text(json.dumps({"api_keys": [KEY], "public": ["voices", "models"]}))
    with run_server(folder / "voices", "--config", str(config)) as running:
        yield running


def test_speech_without_a_format_is_mp3_and_starts_early(server: ServerProcess) -> None:
    body = {"model": "tts-1", "input": TEXT, "voice": "alloy"}
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    headers |= {"x-openwebui-user-name": "Anna", "x-openwebui-user-id": "7", "x-openwebui-user-role": "user"}
    with (
        StreamCapture(server) as capture,
        server.client() as client,
        client.stream("POST", "/v1/audio/speech", content=json.dumps(body), headers=headers) as response,
    ):
        assert response.headers["content-type"] == "audio/mpeg"
        for chunk in response.iter_bytes():
            capture.add(chunk)
    capture.check(format="mp3", voice="heart")


def test_parameters_of_the_administrator_are_accepted(server: ServerProcess) -> None:
    body = {"model": "tts-1", "input": "Hello.", "voice": "echo", "language": "english", "seed": 5, "speed": 1.5}
    with server.client() as client:
        response = client.post("/v1/audio/speech", json=body)
    assert (response.status_code, response.headers["x-seed"]) == (200, "5")
    assert "x-polyvox-ignored" not in response.headers


def test_lists_need_no_key_and_speech_does(protected: ServerProcess) -> None:
    with protected.client() as client:
        voices = client.get("/v1/audio/voices").raise_for_status().json()["voices"]
        assert {voice["id"]: voice["name"] for voice in voices} == {"heart": "heart", "michael": "michael"}
        models = client.get("/v1/audio/models").raise_for_status().json()["models"]
        assert [model["id"] for model in models] == [
            model["id"] for model in client.get("/v1/models").raise_for_status().json()["data"]
        ]
        body = {"model": "tts-1", "input": "Hello.", "voice": "alloy"}
        assert client.post("/v1/audio/speech", json=body).status_code == httpx.codes.UNAUTHORIZED
        response = client.post("/v1/audio/speech", json=body, headers={"authorization": f"Bearer {KEY}"})
        assert response.headers["content-type"] == "audio/mpeg"
