# SPDX-License-Identifier: Apache-2.0
"""Fields that the loaded model cannot honour are ignored and reported; with strict=1 they are rejected."""

from typing import Any

import httpx
import pytest

from server.fakes import PausableEngine
from server.live_server import RunningServer
from server.websocket_clients import connect_websocket

# Optional fields that the engine of these tests, a CustomVoice model for English, does not support.
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"instructions": "Speak slowly."}, "instructions"),
    ({"task_type": "Base"}, "task_type"),
    ({"language": "French"}, "language"),
    ({"language": "tr-TR"}, "language"),
    ({"ref_text": "Hello."}, "ref_text"),
    ({"x_vector_only_mode": True}, "x_vector_only_mode"),
    ({"pronunciations": {"SQL": {"phonemes": "ˈsiːkwəl"}}}, "pronunciations.SQL"),
]


@pytest.mark.parametrize(("fields", "name"), UNSUPPORTED)
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_a_field_that_the_model_cannot_honour_is_ignored_and_named(
    fields: dict[str, Any], name: str, stream_format: str, server: RunningServer, client: httpx.Client
) -> None:
    response = server.speak(client, stream_format=stream_format, **fields)
    assert (response.status_code, response.headers["x-polyvox-ignored"]) == (200, name)


@pytest.mark.parametrize(("fields", "name"), UNSUPPORTED)
def test_with_strict_it_is_rejected(fields: dict[str, Any], name: str, client: httpx.Client) -> None:
    response = client.post("/v1/audio/speech?strict=1", json={"input": "Hi.", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name.partition(".")[0]


def test_ignored_fields_do_not_reach_the_engine(
    server: RunningServer, client: httpx.Client, engine: PausableEngine
) -> None:
    server.speak(client, instructions="Slowly.", language="fr")
    assert (engine.requests[-1].instructions, engine.requests[-1].language) == (None, "auto")
    response = server.speak(client, language="en-GB")
    assert "x-polyvox-ignored" not in response.headers
    assert engine.requests[-1].language == "english"


def test_a_voice_that_the_model_cannot_have_is_rejected(server: RunningServer, client: httpx.Client) -> None:
    for fields in ({"ref_audio": "AAAA", "ref_text": "Hi."}, {"speaker_embedding": [1.0]}, {"voice": "nobody"}):
        assert server.speak(client, **fields).status_code in (400, 404)


def test_a_batch_names_the_ignored_fields_of_its_items(client: httpx.Client) -> None:
    items = {"items": [{"input": "Hi.", "language": "fr"}, {"input": "Ho."}], "instructions": "Slowly."}
    answer = client.post("/v1/audio/speech/batch", json=items)
    assert (answer.json()["succeeded"], answer.headers["x-polyvox-ignored"]) == (2, "instructions, language")
    strict = client.post("/v1/audio/speech/batch?strict=1", json=items).json()
    assert [result["error"]["param"] for result in strict["results"]] == ["instructions", "instructions"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"stream_format": "sse"}, "stream_format"),
        ({"stream": True}, "stream"),
    ],
)
def test_a_batch_names_the_fields_of_streams(
    fields: dict[str, Any], name: str, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvox.server.synthesis.utterance.SpeechTimeline", None)  # so no words are aligned
    items = {"items": [{"input": "Hi.", "stream": False, **fields}]}
    answer = client.post("/v1/audio/speech/batch", json=items)
    assert (answer.json()["succeeded"], answer.headers.get("x-polyvox-ignored")) == (1, name)
    strict = client.post("/v1/audio/speech/batch?strict=1", json=items).json()
    assert [result["error"]["param"] for result in strict["results"]] == [name]


def test_a_websocket_names_ignored_fields_when_audio_starts(server: RunningServer) -> None:
    config = {"type": "session.config", "instructions": "Slowly.", "pitch": 2, "response_format": "pcm"}
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.send(**config)
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        assert websocket.receive_json()["ignored_fields"] == ["pitch", "instructions"]
        websocket.send(type="session.config")
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        websocket.until("session.done")
        assert "ignored_fields" not in websocket.receive_json()
    with connect_websocket(server, "/v1/audio/speech/stream?strict=1") as websocket:
        websocket.send(type="session.config", instructions="Slowly.")
        assert websocket.receive_json()["param"] == "instructions"
        assert websocket.closed() == 1008


def test_elevenlabs_endpoints_ignore_a_language_that_the_model_does_not_speak(
    server: RunningServer, client: httpx.Client
) -> None:
    path = "/v1/text-to-speech/heart/stream"
    answer = client.post(path, json={"text": "Hi.", "language_code": "tr", "previous_text": "Well."})
    assert (answer.status_code, answer.headers["x-polyvox-ignored"]) == (200, "previous_text, language_code")
    answer = client.post(f"{path}?strict=1", json={"text": "Hi.", "language_code": "tr"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language_code")
    socket = "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000&language_code=tr"
    with connect_websocket(server, socket) as websocket:
        websocket.send(text="Hello. ")
        websocket.send(text="")
        assert websocket.final()[1]
    with connect_websocket(server, f"{socket}&strict=1") as websocket:
        assert websocket.receive_json()["param"] == "language_code"
