# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' routes and sockets: what its clients send and read, and how they interrupt."""

import base64
import json
import random
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ipc.engine_processes import eventually
from ipc.fake_engine import LENGTH
from polyvox.audio.decode import decode
from polyvox.server.api.elevenlabs import OUTPUT_FORMATS
from polyvox.server.settings import Settings
from server.fakes import MAX_STREAMS, PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import WebSocketClient, connect_websocket

pytestmark = pytest.mark.slow

SPEECH = "/v1/text-to-speech/heart"
ONE = f"{SPEECH}/stream-input?output_format=pcm_24000&seed=7"
SEVERAL = f"{SPEECH}/multi-stream-input?output_format=pcm_24000&seed=7"
NOTHING = {"normalizedAlignment": None, "alignment": None}
TEXT = "Hello there. How are you? Fine, thank you!"


def one_shot(client: httpx.Client, text: str = TEXT, **fields: Any) -> bytes:
    answer = client.post(f"{SPEECH}/stream?output_format=pcm_24000", json={"text": text, "seed": 7, **fields})
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
def test_every_output_format_is_what_its_name_says(output_format: str, client: httpx.Client) -> None:
    path = f"{SPEECH}/stream?output_format={output_format}&optimize_streaming_latency=4&enable_logging=true"
    answer = client.post(path, json={"text": "Hello.", "seed": 7})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("audio/")
    name, rate, *_ = output_format.split("_")
    samples = LENGTH * 480 * int(rate) / 24_000
    if name in ("pcm", "ulaw", "alaw"):
        assert len(answer.content) == pytest.approx(samples * (2 if name == "pcm" else 1), abs=8)
    else:
        audio, found_rate = decode(answer.content, max_seconds=60)
        assert found_rate == int(rate)
        assert len(audio) >= samples * 0.9


@pytest.mark.parametrize("path", ["stream/with-timestamps", "with-timestamps"])
def test_audio_with_timestamps_is_json_lines(path: str, client: httpx.Client) -> None:
    body = {"text": TEXT, "seed": 7}
    answer = client.post(f"{SPEECH}/{path}?output_format=pcm_24000", json=body)
    content_type = "application/x-ndjson" if path.startswith("stream") else "application/json"
    assert answer.headers["content-type"] == content_type
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert (len(lines) > 1) == path.startswith("stream")
    assert all(line["estimated"] for line in lines)
    assert b"".join(base64.b64decode(line["audio_base64"]) for line in lines) == one_shot(client)
    rejected = client.post(f"{SPEECH}/{path}", json={"text": " "})
    assert rejected.status_code == 400


def test_the_bit_rate_of_the_format_is_used(client: httpx.Client) -> None:
    sizes = []
    for rate in (32, 128):
        answer = client.post(f"{SPEECH}?output_format=mp3_44100_{rate}", json={"text": "Hello. " * 20, "seed": 1})
        sizes.append(len(answer.content))
        assert answer.headers["content-length"] == str(sizes[-1])  # a whole file
    assert sizes[1] == pytest.approx(4 * sizes[0], rel=0.1)


def test_the_fields_of_the_sdk_are_used_and_unknown_ones_reported(client: httpx.Client, engine: PausableEngine) -> None:
    body = {
        "text": "Hello.",
        "model_id": "eleven_flash_v2_5",
        "language_code": "en",
        "seed": 5,
        "voice_settings": {"speed": 2.0, "stability": 0.5},
        "previous_text": "Before.",
        "apply_text_normalization": "auto",
    }
    answer = client.post(f"{SPEECH}/stream?output_format=pcm_24000", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-polyvox-ignored"] == "previous_text, voice_settings.stability"
    assert len(answer.content) == pytest.approx(LENGTH * 960 / 2, rel=0.2)
    assert (engine.requests[-1].seed, engine.requests[-1].language, engine.requests[-1].voice) == (
        5,
        "english",
        "heart",
    )
    assert client.get(f"/v1/audio/speech/{answer.headers['request-id']}").json()["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        (f"{SPEECH}?output_format=mp3_1_2", {"text": "hi"}, 400, "mp3_44100_128"),
        (SPEECH, {"text": "hi", "language_code": "klingon!"}, 400, "english"),
        (SPEECH, {"text": " "}, 400, "must have at least one word"),
        (SPEECH, {}, 422, "text"),
        (SPEECH, {"text": 7}, 422, "text"),
        (SPEECH, {"text": "hi", "voice_settings": {"speed": 9}}, 422, "voice_settings"),
        ("/v1/text-to-speech/nobody", {"text": "hi"}, 404, "heart, michael"),
        (SPEECH, {"text": "overloaded"}, 503, "in use"),
    ],
)
def test_an_invalid_request_is_rejected_with_the_field_and_the_reason(
    path: str, body: Any, status: int, expected: str, client: httpx.Client
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert expected in answer.json()["error"]["message"]


def test_voices_and_models_have_the_format_of_elevenlabs(client: httpx.Client) -> None:
    for path in ("/v1/voices", "/v2/voices"):
        found = client.get(path).json()
        assert [voice["voice_id"] for voice in found["voices"]] == ["heart", "michael"]
        assert {voice["category"] for voice in found["voices"]} == {"premade"}
        assert found["has_more"] is False
    assert client.get("/v1/voices/Heart").json()["name"] == "heart"
    assert client.get("/v1/voices/nobody").status_code == 404
    assert client.get("/v1/models").json()["data"][0]["id"] == "Fake-CustomVoice"
    (model,) = client.get("/v1/models", headers={"xi-api-key": "any"}).json()
    assert model["model_id"] == "Fake-CustomVoice"
    assert model["languages"] == [{"language_id": "en", "name": "English"}]


# stream-input


@pytest.mark.parametrize("seed", range(5))
def test_text_in_any_pieces_gives_the_same_audio_as_one_request(
    seed: int, server: RunningServer, client: httpx.Client
) -> None:
    chance = random.Random(seed)
    with connect_websocket(server, ONE) as websocket:
        websocket.send(
            text=" ",
            try_trigger_generation=True,
            voice_settings=None,
            generation_config={"chunk_length_schedule": [50]},
        )
        at = 0
        while at < len(TEXT):
            size = chance.randrange(1, 9)
            websocket.send(text=TEXT[at : at + size], try_trigger_generation=True)
            at += size
        websocket.send(text="")
        messages, sound = websocket.final()
        assert all({"audio", "isFinal", *NOTHING} == set(message) - {"estimated"} for message in messages)
        assert all(message["isFinal"] is None for message in messages[:-1])
        assert messages[-1] == {"audio": None, "isFinal": True, **NOTHING}
        assert websocket.closed() == 1000
    assert sound == one_shot(client)


def test_a_flush_synthesises_the_text_so_far(server: RunningServer, engine: PausableEngine) -> None:
    with connect_websocket(server, ONE) as websocket:
        websocket.send(text=" ")
        websocket.send(text="No end yet ", flush=True)
        received = 0
        while received < LENGTH * 960:
            message = websocket.receive()
            assert isinstance(message, dict)
            received += len(base64.b64decode(message["audio"]))
        assert [asked.text for asked in engine.requests] == ["No end yet"]
        websocket.send(text="")
        assert websocket.final()[0][-1]["isFinal"]


def test_an_invalid_query_closes_the_socket_at_once(server: RunningServer) -> None:
    wrong = [("nobody/stream-input", "voice"), ("heart/stream-input?output_format=x", "output_format")]
    wrong += [
        ("heart/multi-stream-input?language_code=klingon!", "language_code"),
        ("heart/stream-input?seed=-1", "seed"),
    ]
    wrong += [("heart/stream-input?inactivity_timeout=soon", "inactivity_timeout")]
    for path, expected in wrong:
        with connect_websocket(server, f"/v1/text-to-speech/{path}") as websocket:
            error = websocket.receive_json()
            assert expected in error["message"]
            assert error["error"]
            assert websocket.closed() == error["code"] == 1008


# multi-stream-input


def begin(websocket: WebSocketClient, name: str, text: str = TEXT) -> None:
    websocket.send(text=" ", context_id=name, voice_settings={})
    websocket.send(text=text, context_id=name)


def test_contexts_are_synthesised_concurrently_and_do_not_mix(server: RunningServer, client: httpx.Client) -> None:
    texts = {"one": TEXT, "two": "Another text. It is of its own.", "three": "Short."}
    with connect_websocket(server, SEVERAL) as websocket:
        for name, text in texts.items():
            begin(websocket, name, text)
        websocket.send(text="")  # keeps the socket open
        websocket.send(text="", context_id="one")
        for name in texts:
            websocket.send(context_id=name, flush=True)
            websocket.send(context_id=name, close_context=True)
        sounds, ended = dict.fromkeys(texts, b""), set[str]()
        while ended != set(texts):
            message = websocket.receive()
            assert isinstance(message, dict)
            assert message["contextId"] not in ended
            if message["isFinal"]:
                ended.add(message["contextId"])
            else:
                sounds[message["contextId"]] += base64.b64decode(message["audio"])
        assert sounds == {name: one_shot(client, text) for name, text in texts.items()}
        begin(websocket, "one", "Again.")  # the name is free
        websocket.send(close_socket=True)
        assert websocket.final("one")[1] == one_shot(client, "Again.")
        assert websocket.closed() == 1000


@pytest.mark.parametrize("auto", ["", "&auto_mode=true"])
def test_closing_a_context_with_unflushed_text_cancels_it(
    auto: str, server: RunningServer, engine: PausableEngine, client: httpx.Client
) -> None:
    """As Pipecat interrupts, and in auto mode LiveKit."""
    engine.resume(3)
    with connect_websocket(server, SEVERAL + auto) as websocket:
        websocket.send(text=" ", context_id="a", voice_settings={})
        websocket.send(text="This is said. ", context_id="a", **({"flush": True} if auto else {}))
        websocket.send(text="This is not. ", context_id="a", **({"flush": True} if auto else {}))
        assert "audio" in websocket.receive_json()
        websocket.send(context_id="a", close_context=True)
        messages, _ = websocket.final("a")
        assert len(messages) <= 4
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
        engine.resume()
        begin(websocket, "b")
        websocket.send(text="", context_id="b", flush=True)
        websocket.send(context_id="b", close_context=True)
        assert websocket.final("b")[1] == one_shot(client)


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("flush", [{}, {"flush": True}])
def test_in_auto_mode_a_complete_sentence_is_synthesised_at_once(
    space: str, flush: dict[str, bool], server: RunningServer, client: httpx.Client
) -> None:
    """As Pipecat sends them, without a space between, and LiveKit, each with a flush."""
    with connect_websocket(server, SEVERAL + "&auto_mode=true") as websocket:
        websocket.send(text=" ", context_id="a")
        websocket.send(text="Hello there." + space, context_id="a", **flush)
        first = websocket.receive_json()["audio"]
        for text in ("How are you?", "Fine,", "thank you!"):
            websocket.send(text=text + space, context_id="a", **(flush if text != "Fine," else {}))
        websocket.send(context_id="a", flush=True)
        websocket.send(context_id="a", close_context=True)
        assert base64.b64decode(first) + websocket.final("a")[1] == one_shot(client)


def test_closing_a_flushed_context_finishes_it_and_closing_twice_cancels_it(
    server: RunningServer, engine: PausableEngine
) -> None:
    engine.resume(3)
    with connect_websocket(server, SEVERAL + "&auto_mode=true") as websocket:
        for name in ("a", "b"):
            begin(websocket, name)
            websocket.send(context_id=name, flush=True)
            websocket.send(context_id=name, close_context=True)
        eventually(lambda: engine.streams == 2)
        websocket.send(context_id="b", close_context=True)
        websocket.final("b")
        eventually(lambda: engine.streams == 1)
        engine.resume()
        assert websocket.final("a")[0][-1]["isFinal"]
        websocket.send(context_id="nobody", close_context=True)
        websocket.send(close_socket=True)
        assert websocket.closed() == 1000


@pytest.mark.parametrize("fields", [{}, {"flush": True}])
def test_an_empty_text_for_a_context_that_was_closed_opens_no_other(
    fields: dict[str, bool], server: RunningServer, engine: PausableEngine
) -> None:
    engine.resume(3)
    with connect_websocket(server, SEVERAL) as websocket:
        begin(websocket, "a")
        websocket.send(context_id="a", flush=True)
        websocket.send(context_id="a", close_context=True)
        websocket.send(text="", context_id="a", **fields)
        websocket.send(text=" ", context_id="b")  # handled after it
        websocket.send(context_id="b", close_context=True)
        websocket.final("b")
        engine.resume()
        websocket.final("a")
        websocket.send(close_socket=True)
        with pytest.raises(ConnectionClosed):  # another context would end first
            websocket.receive()


def test_an_error_belongs_to_its_context(server: RunningServer, engine: PausableEngine) -> None:
    engine.max_streams = 0
    with connect_websocket(server, SEVERAL) as websocket:
        begin(websocket, "a")
        error = websocket.receive_json()
        assert (error["contextId"], error["error"], error["retry_after"]) == ("a", "overloaded", 2.5)
        engine.max_streams = MAX_STREAMS
        server.state.synthesis._rejections.clear()
        websocket.send(text="The rest of it is not said, ", context_id="a")
        error = websocket.receive_json()
        assert error["contextId"] == "a"
        assert "flush or close it first" in error["message"]
        websocket.send(text="up to its end. ", context_id="a", flush=True)
        begin(websocket, "a")
        websocket.send(context_id="a", flush=True)
        websocket.send(context_id="a", close_context=True)
        assert websocket.final("a")[1]
        begin(websocket, "b")
        websocket.send(context_id="b", flush=True)
        websocket.send(context_id="b", close_context=True)
        assert {message["contextId"] for message in websocket.final("b")[0]} == {"b"}
        for index in range(17):
            websocket.send(text=" ", context_id=f"c{index}")
        assert "at most 16 contexts" in websocket.receive_json()["message"]


@pytest.mark.parametrize(
    "message",
    ["{", "7", b"bytes", '{"text": 7}', '{"text": "' + "x" * 6000 + '"}', '{"flush": "yes", "context_id": "a"}'],
)
@pytest.mark.parametrize("path", [ONE, SEVERAL])
def test_an_invalid_message_is_answered_and_has_no_effect(
    path: str, message: str | bytes, server: RunningServer
) -> None:
    with connect_websocket(server, path) as websocket:
        websocket.connection.send(message)
        error = websocket.receive_json()
        assert error["message"]
        assert error["error"]
        websocket.send(text="Hello. ")
        websocket.send(**({"text": ""} if path == ONE else {"close_socket": True}))
        assert websocket.final("default" if path == SEVERAL else None)[1]
        assert websocket.closed() == 1000


def test_a_disconnect_frees_all_slots_of_the_client(server: RunningServer, engine: PausableEngine) -> None:
    engine.resume(3)
    with connect_websocket(server, SEVERAL) as websocket:
        for name in "abc":
            begin(websocket, name)
        eventually(lambda: engine.streams == 3)
    eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)


def test_a_close_reason_is_cut_to_the_size_of_a_frame(server: RunningServer) -> None:
    with connect_websocket(server, f"/v1/text-to-speech/{quote('名' * 60)}/stream-input") as websocket:
        assert websocket.receive_json()["error"] == "voice_not_found"
        assert websocket.closed() == 1008


def test_an_idle_socket_is_closed(server: RunningServer) -> None:
    with connect_websocket(server, SEVERAL + "&inactivity_timeout=1") as websocket:
        begin(websocket, "a", "This has no end")
        error = websocket.receive_json()
        assert error["error"] == "input_timeout_exceeded"
        assert websocket.closed() == 1008


def test_the_key_may_be_sent_in_the_first_message(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["right"])) as guarded:
        for key in ({"xi_api_key": "right"}, {"xi-api-key": "right"}, {"authorization": "Bearer right"}):
            with connect_websocket(guarded, ONE) as websocket:
                websocket.send(text=" ", **key)
                websocket.send(text="Hello. ")
                websocket.send(text="")
                assert websocket.final()[1]
        with connect_websocket(guarded, SEVERAL, additional_headers={"xi-api-key": "right"}) as websocket:
            websocket.send(text="Hello. ")
            websocket.send(close_socket=True)
            assert websocket.final("default")[1]
        wrong: list[dict[str, Any]] = [{}, {"xi_api_key": "wrong"}, {"authorization": "right"}, {"xi_api_key": 7}]
        for key in wrong:
            with connect_websocket(
                guarded, "/v1/text-to-speech/nobody/stream-input"
            ) as websocket:  # whose voices are not body
                websocket.send(text=" ", **key)
                assert websocket.receive_json()["error"] == "invalid_api_key"
                assert websocket.closed() == 1008
        with (
            pytest.raises(InvalidStatus) as rejected,
            connect_websocket(guarded, ONE, additional_headers={"xi-api-key": "wrong"}),
        ):
            pass
        assert rejected.value.response.status_code == 401
        with guarded.client() as client:
            assert client.post(SPEECH, json={"text": "Hi."}).status_code == 401
            assert client.get("/v1/voices").status_code == 401
