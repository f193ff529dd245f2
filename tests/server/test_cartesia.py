# SPDX-License-Identifier: Apache-2.0
"""Cartesia's protocol as LiveKit and Pipecat speak it."""

import base64
from typing import Any

import httpx
import pytest

from polyvox.server.api.live_session import MAX_UTTERANCES
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import WebSocketClient, connect_websocket

SOCKET = "/tts/websocket?cartesia_version=2025-04-16"
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
KATIE = "f786b574-daa5-4673-aa0c-cbe3e8534c02"


def say(websocket: WebSocketClient, context: str, transcript: str, more: bool, voice: str = KATIE) -> None:
    fields: dict[str, Any] = {"continue": more, "voice": {"mode": "id", "id": voice}, "output_format": RAW}
    websocket.send(context_id=context, transcript=transcript, model_id="sonic-3", add_timestamps=True, **fields)


def until_done(websocket: WebSocketClient, context: str) -> tuple[list[str], bytes]:
    """The types of the messages of a context, and its audio."""
    types, audio = [], b""
    while True:
        message = websocket.receive_json()
        if message["context_id"] == context:
            types.append(message["type"])
            audio += base64.b64decode(message.get("data", ""))
            if message["done"]:
                return types, audio


def test_a_request_is_spoken_in_the_requested_format(client: httpx.Client, engine: PausableEngine) -> None:
    body = {"transcript": "Hello.", "voice": {"mode": "id", "id": "michael"}, "output_format": RAW, "language": "en"}
    assert client.post("/tts/bytes", json=body).headers["content-type"] == "audio/pcm;rate=24000;channels=1"
    assert (engine.requests[-1].voice, engine.requests[-1].language) == ("michael", "english")
    wav = {**body, "output_format": {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16_000}}
    assert client.post("/tts/bytes", json=wav).content.startswith(b"RIFF")
    telephone = {**body, "output_format": {"container": "wav", "encoding": "pcm_mulaw", "sample_rate": 8_000}}
    rejected = client.post("/tts/bytes", json=telephone)
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "output_format.encoding")
    empty = client.post("/tts/bytes", json={**body, "transcript": " "})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "transcript")
    floats = {**body, "output_format": {**RAW, "encoding": "pcm_f32le"}}
    assert client.post("/tts/bytes", json=floats).status_code == 422


def test_the_pieces_of_a_context_are_one_utterance(server: RunningServer, engine: PausableEngine) -> None:
    with connect_websocket(server, SOCKET) as websocket:
        for piece in ("Hello ", "there. ", "How are you? "):
            say(websocket, "a", piece, more=True)
        say(websocket, "a", "", more=False)
        types, audio = until_done(websocket, "a")
        assert (set(types[:-1]), types[-1]) == ({"chunk", "timestamps"}, "done")
        assert audio
    assert [request.text for request in engine.requests] == ["Hello there.", "How are you?"]


def test_words_have_times(server: RunningServer) -> None:
    words, starts = [], []
    with connect_websocket(server, SOCKET) as websocket:
        say(websocket, "a", "Hello there. How are you?", more=False)
        while not (message := websocket.receive_json())["done"]:
            if message["type"] == "timestamps":
                words += message["word_timestamps"]["words"]
                starts += message["word_timestamps"]["start"]
    assert words == ["Hello", "there.", "How", "are", "you?"]
    assert starts == sorted(starts)


def test_contexts_are_independent_and_can_be_cancelled(server: RunningServer, engine: PausableEngine) -> None:
    engine.resume(max_chunks=1)
    with connect_websocket(server, SOCKET) as websocket:
        say(websocket, "a", "Hello there. ", more=False)
        assert websocket.receive_json()["context_id"] == "a"
        websocket.send(context_id="a", cancel=True)
        say(websocket, "b", "How are you? ", more=False)
        engine.resume()
        assert until_done(websocket, "b")[0][-1] == "done"


def test_errors_name_their_context_and_the_socket_stays_open(server: RunningServer) -> None:
    with connect_websocket(server, SOCKET) as websocket:
        say(websocket, "a", "Hello. ", more=False, voice="nobody")
        error = websocket.receive_json()
        assert (error["type"], error["context_id"], error["status_code"]) == ("error", "a", 404)
        websocket.send(transcript="Without a context.")
        assert websocket.receive_json()["type"] == "error"
        say(websocket, "b", "Hello. ", more=False)
        assert until_done(websocket, "b")[0][-1] == "done"


def test_a_context_whose_text_is_too_long_is_ended(engine: PausableEngine) -> None:
    with (
        serving(engine, Settings(max_text_chars=10)) as server,
        connect_websocket(server, SOCKET) as websocket,
    ):
        for index in range(MAX_UTTERANCES + 1):
            say(websocket, f"long {index}", "More than ten characters.", more=True)
            assert "at most 10 characters" in websocket.receive_json()["error"]
        say(websocket, "short", "Hello. ", more=False)
        assert until_done(websocket, "short")[0][-1] == "done"


@pytest.mark.parametrize("message", [{"context_id": 7}, {"context_id": "a", "transcript": 7}])
def test_an_invalid_message_is_an_error(message: dict[str, Any], server: RunningServer) -> None:
    with connect_websocket(server, SOCKET) as websocket:
        websocket.send(**message)
        assert websocket.receive_json()["type"] == "error"


def test_a_key_is_accepted_in_the_header_of_cartesia(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["secret"])) as server, server.client() as client:
        body = {"transcript": "Hi."}
        assert client.post("/tts/bytes", json=body).status_code == 401
        assert client.post("/tts/bytes", json=body, headers={"x-api-key": "secret"}).status_code == 200
