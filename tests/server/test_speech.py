# SPDX-License-Identifier: Apache-2.0
"""POST /v1/audio/speech: what comes back, when it comes, and what is body where it cannot."""

import base64
import io
import json
import socket
import wave
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audio.signals import decoded
from ipc.fake_engine import CHUNK_SAMPLES, LENGTH, SAMPLE_RATE, chunk_samples
from polyvox.audio import FORMATS, Encoder, read_audio
from polyvox.audio.pcm import to_pcm
from polyvox.errors import PolyvoxError
from polyvox.server.api.openai import SpeechRequest
from polyvox.server.settings import Settings
from polyvox.tts import TTS
from server.fakes import DESIGN, PausableEngine
from server.live_server import RunningServer, serving

pytestmark = pytest.mark.slow

FIRST = 24  # chunks, 480 ms: from so much every format has given some sound
LONG = 60


@pytest.fixture(scope="module")
def server_settings() -> Settings:
    return Settings(max_text_chars=20_000, voice_aliases={"narrator": "michael"})


def expected(seed: int, chunks: int) -> bytes:
    return b"".join(to_pcm(chunk_samples(seed, index)).astype("<i2").tobytes() for index in range(chunks))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_an_utterance_without_audio_is_an_empty_file(format: str, stream: bool, client: httpx.Client) -> None:
    answer = client.post("/v1/audio/speech", json={"input": "silence", "response_format": format, "stream": stream})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == FORMATS[format].content_type(SAMPLE_RATE)
    assert len(answer.content) < 2000
    assert answer.content or format in ("pcm", "ulaw", "alaw", "mp3", "aac")


@pytest.mark.parametrize("format", FORMATS)
def test_audio_is_streamed_and_equals_a_one_shot_encoding(
    format: str, engine: PausableEngine, client: httpx.Client
) -> None:
    body = {"input": "Hello there.", "response_format": format, "seed": 7, "max_new_tokens": LONG}
    engine.resume(FIRST)
    with client.stream("POST", "/v1/audio/speech", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == FORMATS[format].content_type(SAMPLE_RATE)
        assert response.headers["x-seed"] == "7"
        assert response.headers["x-polyvox-model"] == "Fake-CustomVoice"
        assert "content-length" not in response.headers
        parts = response.iter_raw()
        received = next(parts)
        assert engine.streams == 1  # it cannot have ended: the rest of it is not made
        engine.resume()
        received += b"".join(parts)
    samples = np.concatenate([chunk_samples(7, index) for index in range(LONG)])
    with Encoder(format, SAMPLE_RATE) as encoder:
        pushed = [encoder.push(part) for part in np.split(samples, LONG)]
        encoded = b"".join(pushed) + encoder.finish()
    if format in ("opus", "m4a"):  # these draw a number
        found, wanted = (decoded(data, format)[0] for data in (received, encoded))
        assert len(found) == len(wanted) > 0
        assert np.array_equal(found, wanted)
    else:
        assert received == encoded
    if format == "wav":
        assert received[4:8] == received[40:44] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("format", FORMATS)
def test_without_streaming_the_response_is_a_file_with_its_length(format: str, client: httpx.Client) -> None:
    body = {"input": "Hello.", "response_format": format, "seed": 7, "stream": False, "max_new_tokens": LONG}
    response = client.post("/v1/audio/speech", json=body)
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(response.content)
    seconds = LONG * CHUNK_SAMPLES / SAMPLE_RATE
    if format == "wav":
        with wave.open(io.BytesIO(response.content)) as file:
            assert file.getnframes() == LONG * CHUNK_SAMPLES
    elif format not in ("pcm", "ulaw", "alaw"):
        assert len(read_audio(response.content, SAMPLE_RATE)) / SAMPLE_RATE == pytest.approx(seconds, abs=0.1)


def test_pcm_contains_only_samples(server: RunningServer, client: httpx.Client) -> None:
    response = server.speak(client, seed=9)
    assert response.content == expected(9, LENGTH)
    assert response.headers["content-type"] == "audio/pcm;rate=24000;channels=1"


def test_the_default_format_is_mp3(client: httpx.Client) -> None:
    response = client.post("/v1/audio/speech", json={"model": "tts-1", "input": "Hello.", "voice": "alloy"})
    assert response.headers["content-type"] == "audio/mpeg"


def test_events_contain_the_audio_and_then_the_usage(server: RunningServer, client: httpx.Client) -> None:
    response = server.speak(client, seed=9, stream_format="sse")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *deltas, done = events(response)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == expected(9, LENGTH)
    assert done["type"] == "speech.audio.done"
    assert done["usage"] == {"input_tokens": 0, "output_tokens": LENGTH, "total_tokens": LENGTH}
    assert done["seed"] == 9
    assert done["request_id"] == response.headers["x-request-id"]


def test_events_are_streamed(engine: PausableEngine, client: httpx.Client) -> None:
    """LiveKit asks for this: mp3 over events."""
    engine.resume(FIRST)
    body = {"input": "Hello there.", "stream_format": "sse", "max_new_tokens": LONG}
    with client.stream("POST", "/v1/audio/speech", json=body) as response:
        lines = response.iter_lines()
        assert "speech.audio.delta" in next(lines)
        assert engine.streams == 1
        engine.resume()
        assert any("speech.audio.done" in line for line in lines)


def test_a_long_text_is_synthesised_by_sentence_with_pauses(
    engine: PausableEngine, server: RunningServer, client: httpx.Client
) -> None:
    text = "First one. Then [pause:0.5s] two.\n\nNew paragraph with 3 cats."
    response = server.speak(client, text, seed=5)
    said = [(asked.text, asked.segment, asked.seed) for asked in engine.requests]
    words = ["First one.", "Then", "two.", "New paragraph with three cats."]
    assert said == [(text, index, 5) for index, text in enumerate(words)]
    silences = [0.25, 0.5, 0.6]
    one = expected(5, LENGTH)
    wanted = one + b"".join(bytes(2 * round(seconds * SAMPLE_RATE)) + one for seconds in silences)
    assert response.content == wanted


def test_without_normalization_the_text_is_unchanged(
    engine: PausableEngine, server: RunningServer, client: httpx.Client
) -> None:
    server.speak(client, "I have 3 **cats**.", normalize=False)
    assert [asked.text for asked in engine.requests] == ["I have 3 **cats**."]


def test_null_means_that_a_field_is_not_set(client: httpx.Client) -> None:
    nothing = {name: None for name in SpeechRequest.model_fields if name != "input"} | {"unknown": None}
    answer = client.post("/v1/audio/speech?strict=1", json={"input": "Hi.", **nothing})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    batch = client.post("/v1/audio/speech/batch", json={"items": [{"input": "Hi.", **nothing}], **nothing})
    assert batch.json()["succeeded"] == 1


def test_all_fields_reach_the_engine(engine: PausableEngine, server: RunningServer, client: httpx.Client) -> None:
    fields: dict[str, Any] = {
        "voice": {"id": "michael"},
        "language": "English",
        "seed": 12,
        "temperature": 0.5,
        "top_k": 3,
        "extra_params": {"top_p": 0.5},
        "repetition_penalty": 1.5,
        "max_new_tokens": 4,
        "initial_codec_chunk_frames": 3,
        "non_streaming_mode": False,
        "task_type": "CustomVoice",
    }
    assert server.speak(client, **fields).status_code == 200
    (asked,) = engine.requests
    assert (asked.voice, asked.language, asked.seed, asked.max_frames) == ("michael", "english", 12, 4)
    assert (asked.first_chunk, asked.layout, asked.trim_silence, asked.whole_file) == (3, "streaming", True, False)
    assert asked.sampling is not None
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.top_p) == (0.5, 3, 0.5)
    assert asked.sampling.repetition_penalty == 1.5
    assert asked.sampling.predictor_temperature == 0.9  # the model's own


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [("alloy", "heart"), ("ash", "michael"), ("ballad", "heart"), ("NARRATOR", "michael"), ("default", None)],
)
def test_aliases_and_openai_names_select_voices(
    asked: str, spoken: str | None, engine: PausableEngine, server: RunningServer, client: httpx.Client
) -> None:
    server.speak(client, voice=asked)
    assert engine.requests[0].voice == spoken


def test_speed_and_sample_rate_change_the_length(server: RunningServer, client: httpx.Client) -> None:
    faster = server.speak(client, speed=2.0, max_new_tokens=LONG)
    assert len(faster.content) == LONG * CHUNK_SAMPLES
    slow_rate = server.speak(client, sample_rate=8000, max_new_tokens=LONG)
    assert len(slow_rate.content) == pytest.approx(2 * LONG * CHUNK_SAMPLES / 3, abs=8)
    assert slow_rate.headers["content-type"] == "audio/pcm;rate=8000;channels=1"


def test_unknown_fields_are_reported_or_with_strict_rejected(server: RunningServer, client: httpx.Client) -> None:
    fields: dict[str, Any] = {"pitch": 2, "größe\n": 1}
    response = server.speak(client, **fields)
    assert response.status_code == 200
    assert response.headers["x-polyvox-ignored"] == "gr??e?, pitch"
    response = client.post("/v1/audio/speech?strict=1", json={"input": "Hi.", "pitch": 2})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "pitch"


@pytest.mark.parametrize(
    ("body", "status", "param", "expected"),
    [
        ({}, 422, "input", "required"),
        ({"input": ""}, 400, "input", "must have at least one word"),
        ({"input": " \n "}, 400, "input", "must have at least one word"),
        ({"input": "..."}, 200, None, ""),
        ({"input": 3}, 422, "input", "string"),
        ({"input": "x" * 20_001}, 400, "input", "20,000"),
        ({"input": "hi", "voice": "bob"}, 404, "voice", "heart, michael"),
        ({"input": "hi", "voice": 7}, 422, "voice", ""),
        ({"input": "hi", "response_format": "midi"}, 422, "response_format", "mp3"),
        (
            {"input": "hi", "speed": 9},
            422,
            "speed",
            "Invalid value for 'speed': must be between 0.25 and 4 (got 9).",
        ),
        ({"input": None}, 422, "input", "required"),
        ({"input": "hi", "seed": "7"}, 422, "seed", "integer"),
        ({"input": "hi", "seed": -1}, 422, "seed", ""),
        ({"input": "hi", "seed": True}, 422, "seed", ""),
        ({"input": "hi", "temperature": 99}, 400, "temperature", "10"),
        ({"input": "hi", "extra_params": {"top_k": "x"}}, 400, "top_k", "must be an integer"),
        ({"input": "hi", "sample_rate": 12345}, 400, "sample_rate", "24000"),
        ({"input": "hi", "sample_rate": 44100, "response_format": "opus"}, 400, "sample_rate", "48000"),
        ({"input": "hi", "stream_format": "xml"}, 422, "stream_format", "sse"),
        ({"input": "hi", "language": "klingon!"}, 400, "language", "english"),
        ({"input": "hi", "ref_audio": "AAAA"}, 400, "ref_audio", "Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
        ({"input": "hi", "references": [{"audio_path": "AAAA"}]}, 400, "references", "Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
        ({"input": "hi", "references": "AAAA"}, 422, "references", "list"),
        ({"input": "hi", "speaker_embedding": [1.0]}, 400, "speaker_embedding", "Base"),
        ({"input": "invalid"}, 400, "language", "english, chinese"),
        ({"input": "overloaded"}, 503, None, "in use"),
        ({"input": "bug"}, 500, None, ""),
        ({"input": "expires"}, 503, None, "queue timeout"),
        ([], 400, None, "object"),
    ],
)
def test_an_invalid_request_is_rejected_with_the_field_and_the_reason(
    body: object, status: int, param: str | None, expected: str, client: httpx.Client
) -> None:
    response = client.post("/v1/audio/speech", json=body)
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    if status != 200:
        error = response.json()["error"]
        added = {"retry_after", "reason"} if status == 503 else set()
        assert set(error) == {"message", "type", "param", "code"} | added
        assert error["param"] == param
        assert expected in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        '{"input": "hi", "seed": NaN}',
        '{"input": "hi", "\\ud800": 1}',
        "{",
        '{"input": "\\ud800"}',
        '{"input": "hi \\ud800", "normalize": false}',
        "[" * 99_999,
    ],
    ids=lambda body: body[:45],
)
def test_a_body_that_cannot_be_quoted_gets_a_valid_error(body: str, client: httpx.Client) -> None:
    response = client.post("/v1/audio/speech", content=body)
    assert response.status_code in (200, 400, 422)
    if response.status_code != 200:
        assert response.json()["error"]["message"]


def test_a_rejection_has_a_retry_time(client: httpx.Client) -> None:
    response = client.post("/v1/audio/speech", json={"input": "overloaded"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2500"
    error = response.json()["error"]
    assert (error["type"], error["code"], error["reason"]) == ("overloaded", "overloaded", "queue_full")


class FailingEngine(PausableEngine):
    """Its streams end with an error after some chunks."""

    def submit(self, request: Any, on_ready: Any = None) -> Any:
        stream = super().submit(request, on_ready)
        step = stream.step

        def failing() -> None:
            if stream.made == 5 and not stream.cancelled and request.text != "Ready.":
                stream._end("error", "the device is gone")
            else:
                step()

        stream.step = failing  # type: ignore[method-assign]
        return stream


def test_a_failure_during_streaming_is_visible_to_the_client() -> None:
    with closing(FailingEngine()) as engine, serving(engine) as server, server.client() as client:
        with client.stream("POST", "/v1/audio/speech", json={"input": "Hi.", "response_format": "pcm"}) as response:
            request_id = response.headers["x-request-id"]
            with pytest.raises(httpx.RemoteProtocolError):
                response.read()
        body = client.get(f"/v1/audio/speech/{request_id}").json()
        assert body["finish_reason"] == "error"
        assert body["error"] == "the device is gone"
        *_, last = events(server.speak(client, stream_format="sse"))
        assert last["type"] == "speech.audio.error"
        assert last["error"]["message"] == "the device is gone"


def over_http_1_0(server: RunningServer, path: str, **fields: Any) -> tuple[socket.socket, bytes]:
    """A connection after the headers of the response, and them; a body is sent if there are fields."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    body = json.dumps(fields).encode() if fields else b""
    method = b"POST" if fields else b"GET"
    connection.sendall(b"%s %s HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % (method, path.encode(), len(body)) + body)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, head
        head += byte
    assert b" 200 OK" in head
    return connection, head


def test_http_1_0_has_no_chunks_and_still_streams(engine: PausableEngine, server: RunningServer) -> None:
    fields = {"input": "Hello there.", "response_format": "pcm", "seed": 7, "max_new_tokens": LONG}
    engine.resume(FIRST)
    connection, head = over_http_1_0(server, "/v1/audio/speech", **fields)
    with closing(connection):
        received = connection.recv(1000)
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert engine.streams == 1  # it cannot have ended: the rest of it is not made
        engine.resume()
        while part := connection.recv(100_000):
            received += part
    assert received == expected(7, LONG)
    connection, head = over_http_1_0(server, "/livez")
    with closing(connection):
        assert b"content-length" in head
        assert b"".join(iter(lambda: connection.recv(1000), b"")) == b"alive\n"


def test_a_failure_during_streaming_resets_a_connection_of_http_1_0() -> None:
    with closing(FailingEngine()) as engine, serving(engine) as server:
        connection, _ = over_http_1_0(server, "/v1/audio/speech", input="Hi.", response_format="pcm")
        with closing(connection), pytest.raises(ConnectionResetError):
            list(iter(lambda: connection.recv(1000), b""))


def test_the_record_of_a_finished_request_can_be_read(client: httpx.Client) -> None:
    body = {"input": "Hello.", "response_format": "pcm", "seed": 4}
    response = client.post("/v1/audio/speech", json=body, headers={"x-request-id": "call-17:a"})
    assert response.headers["x-request-id"] == "call-17:a"
    body = client.get("/v1/audio/speech/call-17:a").json()
    assert body["finish_reason"] == "stop"
    assert (body["seed"], body["frames"], body["sentences"]) == (4, LENGTH, 1)
    assert body["audio_seconds"] == pytest.approx(LENGTH * CHUNK_SAMPLES / SAMPLE_RATE)
    assert client.get("/v1/audio/speech/another").status_code == 404
    harmful = client.post("/v1/audio/speech", json=body, headers={"x-request-id": "a b"})
    assert harmful.headers["x-request-id"].startswith("req-")


def test_a_batch_returns_audio_or_an_error_for_each_item(client: httpx.Client) -> None:
    items = [{"input": "One.", "seed": 1}, {"input": "Two.", "voice": "bob"}, {"input": "Three.", "seed": 3}]
    response = client.post("/v1/audio/speech/batch", json={"items": items, "response_format": "pcm", "seed": 9})
    body = response.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (3, 2, 1)
    assert [result["status"] for result in body["results"]] == ["success", "error", "success"]
    assert base64.b64decode(body["results"][2]["audio_data"]) == expected(3, LENGTH)
    assert body["results"][1]["error"]["code"] == "voice_not_found"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Missing required field 'items'."),
        ({"items": []}, "Invalid value for 'items': must have at least 1 item (got [])."),
        ({"items": [1]}, "Invalid value for 'items': must be an object (got 1)."),
        ({"items": [{"input": "x"}] * 33}, "Invalid value for 'items': must have 1 to 32 requests (got 33)."),
    ],
)
def test_an_invalid_batch_is_rejected(body: dict[str, Any], message: str, client: httpx.Client) -> None:
    response = client.post("/v1/audio/speech/batch", json=body)
    assert response.status_code == 422
    assert response.json()["error"]["message"] == message


def test_a_batch_reports_unknown_fields(client: httpx.Client) -> None:
    items = {"items": [{"input": "Hi.", "other": 1}, {"input": "Ho."}], "more": 2}
    answer = client.post("/v1/audio/speech/batch", json=items)
    assert (answer.json()["succeeded"], answer.headers["x-polyvox-ignored"]) == (2, "more, other")
    strict = client.post("/v1/audio/speech/batch?strict=1", json=items).json()
    assert [result["error"]["param"] for result in strict["results"]] == ["more", "more"]


def test_a_batch_without_capacity_is_rejected_as_a_whole(engine: PausableEngine, client: httpx.Client) -> None:
    engine.max_streams = 0
    answer = client.post("/v1/audio/speech/batch", json={"items": [{"input": "Hi."}, {"input": "Ho."}]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    some = client.post("/v1/audio/speech/batch", json={"items": [{"input": "Hi."}, {"input": 7}]}).json()
    assert some["failed"] == 2
    assert some["results"][0]["error"]["retry_after"] == 2.5


def test_a_voice_design_model_ignores_openai_voice_names() -> None:
    with closing(PausableEngine(DESIGN)) as engine, serving(engine) as server, server.client() as client:
        assert server.speak(client, voice="alloy", instructions="An old man.").status_code == 200
        assert engine.requests[-1].voice is None


def test_the_embedded_voice_streams_the_same_audio_as_a_file(embedded: TTS) -> None:
    with serving(embedded.engine) as server, server.client() as client:
        text = "Hello there. How are you?"
        streamed = server.speak(client, text, voice="michael", seed=5)
        whole = server.speak(client, text, voice="michael", seed=5, stream=False)
        # In float32 the size of a codec chunk may move a sample by the last of its 16 bits.
        received, all_at_once = (np.frombuffer(answer.content, "<i2").astype(int) for answer in (streamed, whole))
        assert len(received) == len(all_at_once) > 12_000
        assert np.abs(received - all_at_once).max() <= 1
        stream = embedded.stream("Hello there.", "michael", seed=5, trim_silence=True)
        first = to_pcm(stream.audio(list(stream)).samples)
        assert np.abs(received[: len(first)] - first).max() <= 1
        for wrong, expected in (({"language": "klingon"}, "auto, english"), ({"voice": "bob"}, "heart, michael")):
            rejected = server.speak(client, **wrong)
            assert rejected.status_code in (400, 404)
            assert expected in rejected.json()["error"]["message"]


def test_every_error_class_has_a_status() -> None:
    kinds = [PolyvoxError, *PolyvoxError.__subclasses__()]
    assert all(400 <= getattr(kind, "status", 500) < 600 for kind in kinds)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
likely = st.sampled_from(
    ["mp3", "opus", "sse", "heart", "english", "Base", 0, 1, -1, 0.5, 24_000, 2**70, "", "file:///"]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(
        st.sampled_from(list(SpeechRequest.model_fields)) | st.text(max_size=5), likely | values, max_size=4
    ),
    text=st.text(max_size=40) | st.just("Hello."),
    strict=st.booleans(),
)
def test_no_value_of_any_field_breaks_the_server(
    fields: dict[str, Any], text: str, strict: bool, client: httpx.Client
) -> None:
    body = {"input": text, "response_format": "pcm", **fields}
    response = client.post("/v1/audio/speech?strict=1" if strict else "/v1/audio/speech", json=body)
    assert response.status_code in (200, 400, 404, 422), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
