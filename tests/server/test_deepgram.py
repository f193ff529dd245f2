# SPDX-License-Identifier: Apache-2.0
"""Deepgram's protocol as LiveKit and Pipecat speak it."""

import httpx
import pytest

from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import connect_websocket

SOCKET = "/v1/speak?model=aura-2-andromeda-en&encoding=linear16&sample_rate=24000&mip_opt_out=false"


def test_a_request_is_spoken_in_the_requested_encoding(client: httpx.Client, engine: PausableEngine) -> None:
    query = "model=michael&encoding=linear16&sample_rate=16000&container=none"
    raw = client.post(f"/v1/speak?{query}", json={"text": "Hello."})
    assert raw.headers["content-type"] == "audio/pcm;rate=16000;channels=1"
    assert engine.requests[-1].voice == "michael"
    assert client.post("/v1/speak?model=aura-asteria-en", json={"text": "Hi."}).headers["content-type"] == "audio/mpeg"
    for query in ("encoding=midi", "sample_rate=x", f"sample_rate={'9' * 5000}", "speed=x", "speed=9", "model=nobody"):
        assert client.post(f"/v1/speak?{query}", json={"text": "Hi."}).status_code in (400, 404), query


@pytest.mark.parametrize(
    ("query", "content_type", "start"),
    [
        ("encoding=linear16", "audio/wav", b"RIFF"),
        ("encoding=linear16&container=wav", "audio/wav", b"RIFF"),
        ("encoding=linear16&container=none", "audio/pcm;rate=24000;channels=1", b""),
        ("encoding=mulaw&container=none", "audio/basic", b""),
        ("encoding=mulaw", "audio/basic", b""),
        ("encoding=opus&container=ogg", "audio/ogg", b"OggS"),
    ],
)
def test_a_response_has_the_requested_container(
    query: str, content_type: str, start: bytes, client: httpx.Client
) -> None:
    response = client.post(f"/v1/speak?{query}", json={"text": "Hi."})
    assert response.headers["content-type"] == content_type
    assert response.content.startswith(start)
    assert len(response.content) > 100


def test_the_bit_rate_of_mp3_is_honoured(client: httpx.Client) -> None:
    sizes = [
        len(client.post(f"/v1/speak?encoding=mp3&bit_rate={rate}", json={"text": "Hello there."}).content)
        for rate in (32_000, 64_000)
    ]
    assert sizes[1] > 1.5 * sizes[0]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("encoding=mulaw&container=wav", "container"),
        ("encoding=opus&container=wav", "container"),
        ("encoding=mp3&container=wav", "container"),
        ("encoding=linear16&container=ogg", "container"),
        ("encoding=linear16&bit_rate=48000", "bit_rate"),
        ("encoding=linear16&container=none&bit_rate=48000", "bit_rate"),
        ("encoding=mp3&bit_rate=7", "bit_rate"),
        ("encoding=mp3&bit_rate=x", "bit_rate"),
        ("encoding=linear16&container=none&sample_rate=7", "sample_rate"),
    ],
)
def test_an_unsupported_combination_is_rejected(query: str, param: str, client: httpx.Client) -> None:
    rejected = client.post(f"/v1/speak?{query}", json={"text": "Hi."})
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("query", "text", "param"), [("", " ", "text"), ("model=nobody", "Hi.", "model")])
def test_an_error_names_the_parameter_of_deepgram(query: str, text: str, param: str, client: httpx.Client) -> None:
    rejected = client.post(f"/v1/speak?{query}", json={"text": text})
    assert (rejected.status_code // 100, rejected.json()["error"]["param"]) == (4, param)


def test_text_is_spoken_until_each_flush_in_order(server: RunningServer, engine: PausableEngine) -> None:
    with connect_websocket(server, SOCKET) as websocket:
        for text in ("Hello ", "there. "):
            websocket.send(type="Speak", text=text)
        websocket.send(type="Flush")
        websocket.send(type="Speak", text="How are you?")
        websocket.send(type="Flush")
        first = websocket.until("Flushed")
        second = websocket.until("Flushed")
        assert len(first[1]) == len(second[1]) > 0
        assert [first[0][-1]["sequence_id"], second[0][-1]["sequence_id"]] == [0, 1]
        websocket.send(type="Flush")  # with nothing to say
        assert websocket.until("Flushed")[1] == b""
        websocket.send(type="Close")
        assert websocket.closed() == 1000
    assert [request.text for request in engine.requests] == ["Hello there.", "How are you?"]


def test_clear_ends_the_speech_at_once(server: RunningServer, engine: PausableEngine) -> None:
    engine.resume(max_chunks=1)
    with connect_websocket(server, SOCKET) as websocket:
        websocket.send(type="Speak", text="Hello there. ")
        websocket.send(type="Flush")
        assert isinstance(websocket.receive(), bytes)
        websocket.send(type="Clear")
        assert websocket.until("Cleared")[0][-1]["type"] == "Cleared"
        engine.resume()
        websocket.send(type="Speak", text="Again.")
        websocket.send(type="Flush")
        assert [message["type"] for message in websocket.until("Flushed")[0]] == ["Flushed"]


@pytest.mark.parametrize("query", ["model=nobody", "encoding=midi", "encoding=linear16&container=wav"])
def test_an_invalid_query_closes_the_socket_with_an_error(query: str, server: RunningServer) -> None:
    with connect_websocket(server, f"/v1/speak?{query}") as websocket:
        assert websocket.receive_json()["type"] == "Error"
        assert websocket.closed() == 1008


def test_an_invalid_message_and_a_rejection_are_errors(server: RunningServer, engine: PausableEngine) -> None:
    with connect_websocket(server, SOCKET) as websocket:
        for message in ({"type": "Sing"}, {"type": "Speak", "text": 7}):
            websocket.send(**message)
            assert websocket.receive_json()["type"] == "Error"
        engine.max_streams = 0
        websocket.send(type="Speak", text="Hello. ")
        websocket.send(type="Flush")
        assert websocket.receive_json()["code"] == "overloaded"


def test_a_key_is_accepted_as_a_token(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["secret"])) as server, server.client() as client:
        headers = {"authorization": "Token secret"}
        assert client.post("/v1/speak", json={"text": "Hi."}).status_code == 401
        assert client.post("/v1/speak", json={"text": "Hi."}, headers=headers).status_code == 200
