# SPDX-License-Identifier: Apache-2.0
"""WS /v1/audio/speech/stream: what is said while its text is written, and how it is stopped."""

import base64
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from uvicorn import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.exceptions import InvalidStatus

from ipc.engine_processes import eventually
from ipc.fake_engine import ABOUT, LENGTH
from polyvox.audio import encode, read_audio
from polyvox.server.middleware.connection import AbortableWebSocketProtocol
from polyvox.server.settings import Settings
from polyvox.tts import load
from server.fakes import MAX_STREAMS, PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import WebSocketClient, connect_websocket

pytestmark = pytest.mark.slow

PATH = "/v1/audio/speech/stream"
CHUNK = 960  # bytes
TEXT = "Dr. Lee has 3 cats, and one of them is old. [pause:0.3s] Is it? Yes!\n\nAnother paragraph ends here."


@contextmanager
def session(server: RunningServer, **config: Any) -> Iterator[WebSocketClient]:
    with connect_websocket(server, PATH) as websocket:
        websocket.send(type="session.config", **{"response_format": "pcm", "stream_audio": True, "seed": 7, **config})
        yield websocket


def one_shot(server: RunningServer, text: str, **fields: Any) -> bytes:
    with server.client() as client:
        answer = server.speak(client, text, seed=7, **fields)
        assert answer.status_code == 200
        return answer.content


def pieces(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    positions = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(40)))
    return [text[start:end] for start, end in zip([0, *positions], [*positions, len(text)], strict=True)]


def test_a_recording_that_was_cut_is_reported_with_the_first_audio() -> None:
    info = replace(ABOUT, max_reference_seconds=3.0)
    recording = base64.b64encode(encode(np.full(4 * 24_000, 0.1, np.float32), 24_000, "flac")).decode()
    with (
        closing(PausableEngine(info)) as engine,
        serving(engine, Settings()) as server,
        session(server, ref_audio=recording, split_granularity="sentence") as websocket,
    ):
        websocket.send(type="input.text", text="One is here. Two is here.")
        websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
    starts = [message for message in messages if message["type"] == "audio.start"]
    assert starts[0]["notice"].endswith("its best 3.0 s are used.")
    assert "notice" not in starts[1]


@pytest.mark.parametrize("granularity", ["none", "sentence", "clause"])
def test_messages_are_sent_in_the_order_of_the_protocol(granularity: str, server: RunningServer) -> None:
    with session(server, split_granularity=granularity) as websocket:
        for index in range(2):
            websocket.send(type="input.text", text="This is the first part, here. And ")
            websocket.send(type="input.text", text="two.")
            websocket.send(type="input.done")
            messages, sound = websocket.until("session.done")
            texts = {
                "none": ["This is the first part, here. And two."],
                "sentence": ["This is the first part, here.", "And two."],
                "clause": ["This is the first part,", "here.", "And two."],
            }[granularity]
            assert [message["type"] for message in messages] == ["audio.start", "audio.done"] * len(texts) + [
                "session.done"
            ]
            starts, dones = messages[0:-1:2], messages[1:-1:2]
            assert [start["sentence_text"] for start in starts] == texts
            assert {(start["format"], start["sample_rate"]) for start in starts} == {("pcm", 24000)}
            for kind in (starts, dones):
                assert [message["sentence_index"] for message in kind] == list(range(len(texts)))
                assert {message["utterance_index"] for message in kind} == {index}
            assert sum(done["total_bytes"] for done in dones) == len(sound)
            assert not any(done["error"] for done in dones)
            end = messages[-1]
            assert (end["utterance_index"], end["total_sentences"], end["seed"]) == (index, len(texts), 7)
        websocket.send(type="session.close")
        assert websocket.closed() == 1000


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("granularity", ["none", "sentence"])
def test_text_in_any_pieces_gives_the_same_audio_as_one_request(
    granularity: str, seed: int, server: RunningServer
) -> None:
    with session(server, split_granularity=granularity) as websocket:
        for piece in pieces(TEXT, seed):
            websocket.send(type="input.text", text=piece)
        websocket.send(type="input.done")
        assert websocket.until("session.done")[1] == one_shot(server, TEXT)


def test_audio_is_sent_while_text_arrives(server: RunningServer, engine: PausableEngine) -> None:
    with session(server, split_granularity="sentence") as websocket:
        websocket.send(type="input.text", text="Hello there. How are ")
        assert websocket.receive_json()["sentence_text"] == "Hello there."
        assert isinstance(websocket.receive(), bytes)
        assert [asked.text for asked in engine.requests] == ["Hello there."]
        websocket.send(type="input.text", text="you?")
        websocket.send(type="input.done")
        assert websocket.until("session.done")[0][-1]["total_sentences"] == 2


def test_with_token_granularity_a_sentence_starts_with_its_first_words(
    server: RunningServer, engine: PausableEngine
) -> None:
    with session(server, split_granularity="token") as websocket:
        websocket.send(type="input.text", text="Hello there my ")
        assert websocket.receive_json()["sentence_text"].startswith("Hello")
        assert isinstance(websocket.receive(), bytes)
        assert engine.requests[-1].live
        websocket.send(type="input.text", text="friend. And")
        websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
        assert messages[-1]["usage"]["output_tokens"] == 5  # a word is a frame of this engine
        assert messages[-1]["total_sentences"] == 2


def test_with_token_granularity_a_model_gives_the_same_audio(checkpoints: Path) -> None:
    text = "Hello there, my friend. And you?"
    with load(str(checkpoints / "custom_voice"), "cpu", "float32") as tts, serving(tts.engine) as running:
        limit = {"max_new_tokens": 12, "voice": running.state.info.voices[0]}
        whole = np.frombuffer(one_shot(running, text, non_streaming_mode=False, **limit), "<i2").astype(int)
        for seed in range(3):
            with session(running, split_granularity="token", **limit) as websocket:
                for piece in pieces(text, seed):
                    websocket.send(type="input.text", text=piece)
                websocket.send(type="input.done")
                received = np.frombuffer(websocket.until("session.done")[1], "<i2").astype(int)
            assert len(received) == len(whole) > 7000
            # In float32 the size of a codec chunk may move a sample by the last of its 16 bits.
            assert np.abs(received - whole).max() <= 1


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus"])
@pytest.mark.parametrize("streamed", [False, True])
def test_every_sentence_is_a_file_of_its_own(format: str, streamed: bool, server: RunningServer) -> None:
    config = {"response_format": format, "stream_audio": streamed, "split_granularity": "sentence"}
    with session(server, **config) as websocket:
        websocket.send(type="input.text", text="One. Two.")
        websocket.send(type="input.done")
        for _ in range(2):
            assert websocket.receive_json()["type"] == "audio.start"
            sound, frames = b"", 0
            while isinstance(found := websocket.receive(), bytes):
                sound, frames = sound + found, frames + 1
            assert (found["type"], found["total_bytes"]) == ("audio.done", len(sound))
            assert streamed or frames == 1
            assert len(read_audio(sound, 24_000)) >= LENGTH * 480 * 0.9


def test_the_default_is_one_wav_file_at_the_end(server: RunningServer) -> None:
    with connect_websocket(server, PATH) as websocket:
        websocket.send(type="session.config")
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        messages, sound = websocket.until("session.done")
        assert messages[0]["format"] == "wav"
        assert int.from_bytes(sound[40:44], "little") == len(sound) - 44


@pytest.mark.parametrize("granularity", ["sentence", "clause", "token"])
def test_cancel_stops_at_once_and_frees_the_slot(
    granularity: str, server: RunningServer, engine: PausableEngine
) -> None:
    engine.resume(3)
    with session(server, split_granularity=granularity, max_new_tokens=1000) as websocket:
        websocket.send(type="input.text", text="This is never said to its end. Nor is this.")
        websocket.send(type="input.done")
        websocket.send(type="input.text", text="Nor this, which waits.")
        assert isinstance(websocket.receive_json() and websocket.receive(), bytes)
        assert engine.streams
        websocket.send(type="input.cancel")
        messages, sound = websocket.until("audio.cancelled")
        assert [message["type"] for message in messages] == ["audio.done", "audio.cancelled"]
        assert len(sound) <= 3 * CHUNK
        assert messages[-1]["finish_reason"] == "cancelled"
        assert websocket.receive_json() == {"type": "audio.cancelled", "utterance_index": 1, "total_sentences": 0}
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
        engine.resume()
        websocket.send(type="input.text", text="But this.")
        websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
        assert (messages[-1]["utterance_index"], messages[-1]["finish_reason"]) == (2, "stop")
        websocket.send(type="input.cancel")
        assert websocket.receive_json() == {"type": "audio.cancelled", "utterance_index": None, "total_sentences": 0}
        with server.client() as client:
            assert client.get(f"/v1/audio/speech/{messages[-1]['request_id']}").json()["finish_reason"] == "stop"
            assert 'polyvox_aborts_total{reason="cancel"}' in client.get("/metrics").text


def test_a_disconnect_frees_the_slot(server: RunningServer, engine: PausableEngine) -> None:
    engine.resume(3)
    before = _aborts(server)
    for close in (True, False):
        with session(server, split_granularity="sentence", max_new_tokens=1000) as websocket:
            websocket.send(type="input.text", text="This is never said to its end. And so on")
            assert isinstance(websocket.receive_json() and websocket.receive(), bytes)
            if not close:
                websocket.connection.socket.shutdown(2)
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
    assert _aborts(server) == before + 2


def test_a_client_that_does_not_read_delays_no_other_client(server: RunningServer, engine: PausableEngine) -> None:
    with session(server, max_new_tokens=100_000) as slow:
        slow.send(type="input.text", text="Hello.")
        slow.send(type="input.done")
        assert slow.receive_json()["type"] == "audio.start"
        for _ in range(3):
            with session(server) as websocket:
                websocket.send(type="input.text", text="Hello.")
                websocket.send(type="input.done")
                assert len(websocket.until("session.done")[1]) == LENGTH * CHUNK
        assert engine.streams == 1
        slow.send(type="input.cancel")  # is read although nothing is
        eventually(lambda: engine.streams == 0)


def _aborts(server: RunningServer) -> float:
    found: float = server.state.metrics.aborts.labels("disconnect")._value.get()
    return found


BAD = [
    "{",
    "[]",
    "7",
    b"bytes",
    '{"type": 7}',
    "{}",
    '{"type": "input.text", "text": 7}',
    '{"type": "input.text", "text": "' + "x" * 200_000 + '"}',
    '{"type": "input.text", "text": "' + "x" * 6000 + '"}',
    '{"type": "session.config", "voice": "nobody-of-this-name"}',
    '{"type": "session.config", "speed": 99}',
    '{"type": "session.config", "timestamp_granularities": ["letter"]}',
    '{"type": "session.config", "split_granularity": "word"}',
    '{"type": "session.config", "split_granularity": "token", "non_streaming_mode": true}',
    '{"type": "session.config", "response_format": "pcm", "sample_rate": 7}',
    '{"type": "session.config", "ref_audio": "data:,x"}',
    '{"a": ' * 5000,
]


@pytest.mark.parametrize("message", BAD)
def test_an_invalid_message_is_answered_and_has_no_effect(message: str | bytes, server: RunningServer) -> None:
    with session(server) as websocket:
        websocket.connection.send(message)
        error = websocket.receive_json()
        assert error["type"] == "error"
        assert error["message"]
        assert error["code"]
        websocket.send(type="input.cancel")
        websocket.until("audio.cancelled")
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        assert websocket.until("session.done")[1] == one_shot(server, "Hello.")


WRONG = '{"type": "session.config", "voice": "%s"}' % ("名" * 200)


@pytest.mark.parametrize("message", [*BAD[:6], '{"type": "input.text", "text": "Hi."}', BAD[9], WRONG])
def test_a_session_without_a_configuration_is_closed(message: str | bytes, server: RunningServer) -> None:
    with connect_websocket(server, PATH) as websocket:
        websocket.connection.send(message)
        error = websocket.receive_json()
        assert error["type"] == "error"
        assert websocket.closed() == 1008
        assert websocket.connection.close_reason
        assert error["message"].startswith(websocket.connection.close_reason)  # of which a frame may not hold all


def test_a_new_configuration_requires_the_end_of_the_text(server: RunningServer) -> None:
    with session(server) as websocket:
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="session.config", response_format="wav")
        assert "in progress" in websocket.receive_json()["message"]
        websocket.send(type="input.done")
        websocket.send(type="session.config", response_format="wav")
        assert websocket.until("session.done")[0][0]["format"] == "pcm"
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        assert websocket.until("session.done")[0][0]["format"] == "wav"


def test_an_utterance_without_words_finishes_at_once(server: RunningServer, engine: PausableEngine) -> None:
    with session(server, split_granularity="sentence") as websocket:
        for text in ("", "  ", "<think>hm</think>"):
            websocket.send(type="input.text", text=text)
            websocket.send(type="input.done")
            assert websocket.receive_json()["total_sentences"] == 0
    assert engine.requests == []


def test_too_many_pending_utterances_are_rejected(server: RunningServer, engine: PausableEngine) -> None:
    engine.resume(0)
    with session(server) as websocket:
        for _ in range(33):
            websocket.send(type="input.text", text="Hello.")
            websocket.send(type="input.done")
        assert "at most 32 utterances" in websocket.until("error")[0][-1]["message"]


def test_a_rejection_has_a_retry_time(server: RunningServer, engine: PausableEngine) -> None:
    engine.max_streams = 0
    with session(server, split_granularity="sentence") as websocket:
        websocket.send(type="input.text", text="Hello there. And more. ")
        error = websocket.receive_json()
        assert (error["type"], error["code"], error["utterance_index"]) == ("error", "overloaded", 0)
        assert error["retry_after"] == 2.5
        engine.max_streams = MAX_STREAMS
        server.state.synthesis._rejections.clear()
        websocket.send(type="input.text", text="This belongs to it still. ")
        websocket.send(type="input.done")
        assert websocket.receive_json()["type"] == "session.done"
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        assert websocket.until("session.done")[1]


def test_a_failed_utterance_is_reported_and_the_session_continues(server: RunningServer) -> None:
    with session(server, split_granularity="sentence") as websocket:
        websocket.send(type="input.text", text="expires")
        websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
        kinds = [message["type"] for message in messages]
        assert kinds == ["audio.start", "error", "audio.done", "session.done"]
        assert messages[2]["error"]


def test_an_error_of_the_engine_is_reported_and_the_session_continues(server: RunningServer) -> None:
    with session(server) as websocket:
        for text in ("bug", "Hello."):
            websocket.send(type="input.text", text=text)
            websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
        assert messages[0]["type"] == "error"
        assert websocket.until("session.done")[1]


def test_an_internal_error_closes_only_its_own_socket(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with session(server) as websocket, session(server) as other:
        other.send(type="input.cancel")  # after its configuration
        other.until("audio.cancelled")
        websocket.send(type="input.cancel")
        websocket.until("audio.cancelled")
        monkeypatch.setattr(server.state.synthesis, "prepare", fail)
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        assert websocket.closed() == 1011
        monkeypatch.undo()
        other.send(type="input.text", text="Hello.")
        other.send(type="input.done")
        assert other.until("session.done")[1]


def test_an_idle_session_is_closed_but_a_speaking_one_is_not(engine: PausableEngine) -> None:
    with serving(engine, Settings(websocket_idle_timeout=0.6)) as quick:
        engine.resume(1)
        with session(quick, max_new_tokens=1000) as websocket:
            websocket.send(type="input.text", text="Hello.")
            websocket.send(type="input.done")
            websocket.receive_json()
            quick_one = quick.client()
            with quick_one:
                for _ in range(40):
                    assert quick_one.get("/livez").status_code == 200
            assert engine.streams == 1
            websocket.send(type="input.cancel")
            websocket.until("audio.cancelled")
            assert websocket.receive_json()["code"] == "timeout"
            assert websocket.closed() == 1008
        with session(quick, split_granularity="sentence") as websocket:
            websocket.send(type="input.text", text="This has no end")
            assert websocket.until("error")[0][-1]["code"] == "timeout"
            assert websocket.closed() == 1008
            eventually(lambda: not quick.state.synthesis.active)
        engine.max_streams = 0
        with session(quick, split_granularity="sentence") as websocket:  # one that failed is not spoken on
            websocket.send(type="input.text", text="There is no place for this. It stays open.")
            assert websocket.until("error")[0][-1]["code"] == "overloaded"
            engine.max_streams = MAX_STREAMS
            assert websocket.until("error")[0][-1]["code"] == "timeout"
            assert websocket.closed() == 1008


def test_a_websocket_requires_a_key_when_keys_are_configured(engine: PausableEngine) -> None:
    settings = Settings(api_keys=["right"], max_streams_per_key=1, cors_origins=["https://good.example"])
    with serving(engine, settings) as guarded:
        for path, headers in ((PATH, {}), (f"{PATH}?api_key=wrong", {}), (PATH, {"authorization": "Bearer no"})):
            with pytest.raises(InvalidStatus) as rejected, connect_websocket(guarded, path, additional_headers=headers):
                pass
            assert rejected.value.response.status_code == 401
            assert b"invalid_api_key" in (rejected.value.response.body or b"")
        ways: list[tuple[str, dict[str, str]]] = [(f"{PATH}?api_key=right", {})]
        ways += [(PATH, {"authorization": "Bearer right"}), (PATH, {"xi-api-key": "right"})]
        for path, headers in ways:
            with connect_websocket(guarded, path, additional_headers=headers) as websocket:
                websocket.send(type="session.config", response_format="pcm")
                websocket.send(type="input.text", text="Hello.")
                websocket.send(type="input.done")
                websocket.until("session.done")
        engine.resume(1)
        with (
            connect_websocket(guarded, f"{PATH}?api_key=right") as one,
            connect_websocket(guarded, f"{PATH}?api_key=right") as two,
        ):
            for websocket in (one, two):
                websocket.send(type="session.config", response_format="pcm", stream_audio=True, max_new_tokens=500)
                websocket.send(type="input.text", text="Hello.")
                websocket.send(type="input.done")
                if websocket is one:
                    assert websocket.receive_json()["type"] == "audio.start"
            error = two.receive_json()
            assert (error["code"], error["retry_after"]) == ("too_many_requests", 1)
        for origin, allowed in (("https://bad.example", False), ("https://good.example", True)):
            origin_of: dict[str, Any] = {"origin": origin}
            if allowed:
                with connect_websocket(guarded, f"{PATH}?api_key=right", **origin_of):
                    continue
            with (
                pytest.raises(InvalidStatus) as rejected,
                connect_websocket(guarded, f"{PATH}?api_key=right", **origin_of),
            ):
                pass
            assert rejected.value.response.status_code == 403


def test_a_draining_server_finishes_utterances_of_websockets(engine: PausableEngine) -> None:
    with serving(engine) as stopping:
        engine.resume(1)
        with session(stopping, max_new_tokens=20) as websocket:
            websocket.send(type="input.text", text="Hello.")
            websocket.send(type="input.done")
            assert isinstance(websocket.receive_json() and websocket.receive(), bytes)
            stopping.state.synthesis.draining = True
            stopping.server.should_exit = True
            engine.resume()
            messages, sound = websocket.until("session.done")
            assert messages[-1]["finish_reason"] == "stop"
            assert len(sound) >= 18 * CHUNK
            assert websocket.closed() in (1001, 1012)


def test_the_websocket_path_accepts_no_http_requests(server: RunningServer) -> None:
    with server.client() as client:
        assert client.post(PATH, json={}).status_code == 405
        found: httpx.Response = client.get(PATH)
        assert found.status_code == 404


@pytest.mark.anyio
async def test_a_message_after_uvicorn_has_closed_the_connection_means_that_the_client_has_disconnected() -> None:
    protocol = AbortableWebSocketProtocol(Config(FastAPI(), log_config=None), ServerState(), {})
    protocol.transport = mock.Mock(is_closing=lambda: False)
    protocol.handshake_complete = True
    protocol.keepalive_timeout()  # the client has sent no pong
    for message in ({"type": "websocket.send", "text": "late"}, {"type": "websocket.close", "code": 1000}):
        with pytest.raises(ClientDisconnected):
            await protocol.send(message)
