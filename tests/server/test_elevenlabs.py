"""ElevenLabs' routes and sockets: what its clients send and read, and how they interrupt."""

import base64
import json
import random
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from ipc.engine_processes import eventually
from ipc.fake_engine import LENGTH
from polyvox.audio import read_audio
from polyvox.server.api.elevenlabs import OUTPUT_FORMATS
from polyvox.server.settings import Settings
from server.fakes import MAX_STREAMS, PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import WebSocketClient, connect_websocket

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
        assert len(read_audio(answer.content, int(rate))) >= samples * 0.9


@pytest.mark.parametrize("path", ["stream/with-timestamps", "with-timestamps"])
def test_sound_with_times_is_in_lines_and_has_none(path: str, client: httpx.Client) -> None:
    body = {"text": TEXT, "seed": 7}
    answer = client.post(f"{SPEECH}/{path}?output_format=pcm_24000", json=body)
    assert answer.headers["content-type"] == "application/json"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert (len(lines) > 1) == path.startswith("stream")
    assert all(line["alignment"] is line["normalized_alignment"] is None for line in lines)
    assert b"".join(base64.b64decode(line["audio_base64"]) for line in lines) == one_shot(client)
    refused = client.post(f"{SPEECH}/{path}", json={"text": " "})
    assert refused.status_code == 400


def test_a_bit_rate_is_kept(client: httpx.Client) -> None:
    sizes = []
    for rate in (32, 128):
        answer = client.post(f"{SPEECH}?output_format=mp3_44100_{rate}", json={"text": "Hello. " * 20, "seed": 1})
        sizes.append(len(answer.content))
        assert answer.headers["content-length"] == str(sizes[-1])  # a whole file
    assert sizes[1] == pytest.approx(4 * sizes[0], rel=0.1)


def test_fields_are_those_of_their_sdk(client: httpx.Client, engine: PausableEngine) -> None:
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
    ("path", "body", "status", "told"),
    [
        (f"{SPEECH}?output_format=mp3_1_2", {"text": "hi"}, 400, "mp3_44100_128"),
        (SPEECH, {"text": "hi", "language_code": "tlh"}, 400, "en, zh"),
        (SPEECH, {"text": " "}, 400, "must have something to say"),
        (SPEECH, {}, 422, "text"),
        (SPEECH, {"text": 7}, 422, "text"),
        (SPEECH, {"text": "hi", "voice_settings": {"speed": 9}}, 422, "voice_settings"),
        ("/v1/text-to-speech/nobody", {"text": "hi"}, 404, "heart, michael"),
        (SPEECH, {"text": "overloaded"}, 503, "in use"),
    ],
)
def test_what_is_wrong_is_named(path: str, body: Any, status: int, told: str, client: httpx.Client) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_voices_and_models_have_the_shapes_that_their_clients_read(client: httpx.Client) -> None:
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
def test_text_in_any_pieces_sounds_as_in_one_go(seed: int, server: RunningServer, client: httpx.Client) -> None:
    chance = random.Random(seed)
    with connect_websocket(server, ONE) as talk:
        talk.tell(
            text=" ",
            try_trigger_generation=True,
            voice_settings=None,
            generation_config={"chunk_length_schedule": [50]},
        )
        at = 0
        while at < len(TEXT):
            size = chance.randrange(1, 9)
            talk.tell(text=TEXT[at : at + size], try_trigger_generation=True)
            at += size
        talk.tell(text="")
        messages, sound = talk.final()
        assert all({"audio", "isFinal", *NOTHING} == set(message) for message in messages)
        assert all(message["isFinal"] is None for message in messages[:-1])
        assert messages[-1] == {"audio": None, "isFinal": True, **NOTHING}
        assert talk.closed() == 1000
    assert sound == one_shot(client)


def test_a_flush_says_what_is_there(server: RunningServer, engine: PausableEngine) -> None:
    with connect_websocket(server, ONE) as talk:
        talk.tell(text=" ")
        talk.tell(text="No end yet ", flush=True)
        heard = 0
        while heard < LENGTH * 960:
            message = talk.hear()
            assert isinstance(message, dict)
            heard += len(base64.b64decode(message["audio"]))
        assert [asked.text for asked in engine.requests] == ["No end yet"]
        talk.tell(text="")
        assert talk.final()[0][-1]["isFinal"]


def test_what_the_query_asks_for_is_checked_at_once(server: RunningServer) -> None:
    wrong = [("nobody/stream-input", "voice"), ("heart/stream-input?output_format=x", "output_format")]
    wrong += [("heart/multi-stream-input?language_code=xx", "language_code"), ("heart/stream-input?seed=-1", "seed")]
    wrong += [("heart/stream-input?inactivity_timeout=soon", "inactivity_timeout")]
    for path, told in wrong:
        with connect_websocket(server, f"/v1/text-to-speech/{path}") as talk:
            error = talk.told()
            assert told in error["message"]
            assert error["error"]
            assert talk.closed() == error["code"] == 1008


# multi-stream-input


def begin(talk: WebSocketClient, name: str, text: str = TEXT) -> None:
    talk.tell(text=" ", context_id=name, voice_settings={})
    talk.tell(text=text, context_id=name)


def test_contexts_are_said_at_once_and_do_not_mix(server: RunningServer, client: httpx.Client) -> None:
    texts = {"one": TEXT, "two": "Another text. It is of its own.", "three": "Short."}
    with connect_websocket(server, SEVERAL) as talk:
        for name, text in texts.items():
            begin(talk, name, text)
        talk.tell(text="")  # keeps the socket open
        talk.tell(text="", context_id="one")
        for name in texts:
            talk.tell(context_id=name, flush=True)
            talk.tell(context_id=name, close_context=True)
        sounds, ended = dict.fromkeys(texts, b""), set[str]()
        while ended != set(texts):
            message = talk.hear()
            assert isinstance(message, dict)
            assert message["contextId"] not in ended
            if message["isFinal"]:
                ended.add(message["contextId"])
            else:
                sounds[message["contextId"]] += base64.b64decode(message["audio"])
        assert sounds == {name: one_shot(client, text) for name, text in texts.items()}
        begin(talk, "one", "Again.")  # the name is free
        talk.tell(close_socket=True)
        assert talk.final("one")[1] == one_shot(client, "Again.")
        assert talk.closed() == 1000


@pytest.mark.parametrize("auto", ["", "&auto_mode=true"])
def test_closing_a_context_in_the_midst_of_its_text_stops_it_at_once(
    auto: str, server: RunningServer, engine: PausableEngine, client: httpx.Client
) -> None:
    """As Pipecat interrupts, and in auto mode LiveKit."""
    engine.resume(3)
    with connect_websocket(server, SEVERAL + auto) as talk:
        talk.tell(text=" ", context_id="a", voice_settings={})
        talk.tell(text="This is said. ", context_id="a", **({"flush": True} if auto else {}))
        talk.tell(text="This is not. ", context_id="a", **({"flush": True} if auto else {}))
        assert "audio" in talk.told()
        talk.tell(context_id="a", close_context=True)
        messages, _ = talk.final("a")
        assert len(messages) <= 4
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
        engine.resume()
        begin(talk, "b")
        talk.tell(text="", context_id="b", flush=True)
        talk.tell(context_id="b", close_context=True)
        assert talk.final("b")[1] == one_shot(client)


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("flush", [{}, {"flush": True}])
def test_in_auto_mode_a_sentence_does_not_wait_for_the_next(
    space: str, flush: dict[str, bool], server: RunningServer, client: httpx.Client
) -> None:
    """As Pipecat sends them, without a space between, and LiveKit, each with a flush."""
    with connect_websocket(server, SEVERAL + "&auto_mode=true") as talk:
        talk.tell(text=" ", context_id="a")
        talk.tell(text="Hello there." + space, context_id="a", **flush)
        first = talk.told()["audio"]
        for text in ("How are you?", "Fine,", "thank you!"):
            talk.tell(text=text + space, context_id="a", **(flush if text != "Fine," else {}))
        talk.tell(context_id="a", flush=True)
        talk.tell(context_id="a", close_context=True)
        assert base64.b64decode(first) + talk.final("a")[1] == one_shot(client)


def test_closing_what_was_flushed_lets_it_end_and_closing_twice_does_not(
    server: RunningServer, engine: PausableEngine
) -> None:
    engine.resume(3)
    with connect_websocket(server, SEVERAL + "&auto_mode=true") as talk:
        for name in ("a", "b"):
            begin(talk, name)
            talk.tell(context_id=name, flush=True)
            talk.tell(context_id=name, close_context=True)
        eventually(lambda: engine.streams == 2)
        talk.tell(context_id="b", close_context=True)
        talk.final("b")
        eventually(lambda: engine.streams == 1)
        engine.resume()
        assert talk.final("a")[0][-1]["isFinal"]
        talk.tell(context_id="nobody", close_context=True)
        talk.tell(close_socket=True)
        assert talk.closed() == 1000


def test_an_error_belongs_to_its_context(server: RunningServer, engine: PausableEngine) -> None:
    engine.max_streams = 0
    with connect_websocket(server, SEVERAL) as talk:
        begin(talk, "a")
        error = talk.told()
        assert (error["contextId"], error["error"], error["retry_after"]) == ("a", "overloaded", 2.5)
        engine.max_streams = MAX_STREAMS
        server.state.synthesis._rejections.clear()
        talk.tell(text="The rest of it is not said, ", context_id="a")
        error = talk.told()
        assert error["contextId"] == "a"
        assert "flush or close it first" in error["message"]
        talk.tell(text="up to its end. ", context_id="a", flush=True)
        begin(talk, "a")
        talk.tell(context_id="a", flush=True)
        talk.tell(context_id="a", close_context=True)
        assert talk.final("a")[1]
        begin(talk, "b")
        talk.tell(context_id="b", flush=True)
        talk.tell(context_id="b", close_context=True)
        assert {message["contextId"] for message in talk.final("b")[0]} == {"b"}
        for index in range(17):
            talk.tell(text=" ", context_id=f"c{index}")
        assert "at most 16 contexts" in talk.told()["message"]


@pytest.mark.parametrize(
    "message",
    ["{", "7", b"bytes", '{"text": 7}', '{"text": "' + "x" * 6000 + '"}', '{"flush": "yes", "context_id": "a"}'],
)
@pytest.mark.parametrize("path", [ONE, SEVERAL])
def test_what_cannot_be_read_is_told_and_changes_nothing(
    path: str, message: str | bytes, server: RunningServer
) -> None:
    with connect_websocket(server, path) as talk:
        talk.connection.send(message)
        error = talk.told()
        assert error["message"]
        assert error["error"]
        talk.tell(text="Hello. ")
        talk.tell(**({"text": ""} if path == ONE else {"close_socket": True}))
        assert talk.final("default" if path == SEVERAL else None)[1]
        assert talk.closed() == 1000


def test_a_client_that_goes_away_frees_all_of_its_places(server: RunningServer, engine: PausableEngine) -> None:
    engine.resume(3)
    with connect_websocket(server, SEVERAL) as talk:
        for name in "abc":
            begin(talk, name)
        eventually(lambda: engine.streams == 3)
    eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)


def test_why_a_socket_is_closed_may_be_longer_than_fits(server: RunningServer) -> None:
    with connect_websocket(server, f"/v1/text-to-speech/{quote('名' * 60)}/stream-input") as talk:
        assert talk.told()["error"] == "voice_not_found"
        assert talk.closed() == 1008


def test_silence_ends_a_socket(server: RunningServer) -> None:
    with connect_websocket(server, SEVERAL + "&inactivity_timeout=1") as talk:
        begin(talk, "a", "This has no end")
        error = talk.told()
        assert error["error"] == "input_timeout_exceeded"
        assert talk.closed() == 1008


def test_a_key_may_come_with_the_first_message(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["right"])) as guarded:
        for key in ({"xi_api_key": "right"}, {"xi-api-key": "right"}, {"authorization": "Bearer right"}):
            with connect_websocket(guarded, ONE) as talk:
                talk.tell(text=" ", **key)
                talk.tell(text="Hello. ")
                talk.tell(text="")
                assert talk.final()[1]
        with connect_websocket(guarded, SEVERAL, additional_headers={"xi-api-key": "right"}) as talk:
            talk.tell(text="Hello. ")
            talk.tell(close_socket=True)
            assert talk.final("default")[1]
        wrong: list[dict[str, Any]] = [{}, {"xi_api_key": "wrong"}, {"authorization": "right"}, {"xi_api_key": 7}]
        for key in wrong:
            with connect_websocket(
                guarded, "/v1/text-to-speech/nobody/stream-input"
            ) as talk:  # whose voices are not told
                talk.tell(text=" ", **key)
                assert talk.told()["error"] == "invalid_api_key"
                assert talk.closed() == 1008
        with (
            pytest.raises(InvalidStatus) as refused,
            connect_websocket(guarded, ONE, additional_headers={"xi-api-key": "wrong"}),
        ):
            pass
        assert refused.value.response.status_code == 401
        with guarded.client() as client:
            assert client.post(SPEECH, json={"text": "Hi."}).status_code == 401
            assert client.get("/v1/voices").status_code == 401
