# SPDX-License-Identifier: Apache-2.0
"""POST /v1/audio/transcriptions and /v1/audio/translations with a scripted STT server."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest

from ipc.engine_processes import eventually
from polyvox.audio.clip import Audio
from polyvox.server.settings import Settings
from polyvox.transcription import client as client_module
from polyvox.transcription.client import STTConfig, Transcriber, parse_transcription
from polyvox.transcription.interface import (
    Transcription,
    TranscriptionFailed,
    TranscriptionOutcome,
    TranscriptionOverloaded,
    TranscriptionRejected,
    TranscriptionTimeout,
)
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.scripted_server import Action
from server.scripted_stt import ScriptedSTT, TranscriptScript

PATH = "/v1/audio/transcriptions"
KEY = "secret-stt-key"
WAV = Audio(np.zeros(2400, np.float32), 24_000, 1, "stop").wav()
TIMEOUT = 0.5  # seconds of the time limits that are reached
MAX_JSON = 10_000
MAX_REQUESTS = 3


@pytest.fixture(scope="module")
def server_settings(shared_stt: ScriptedSTT) -> Settings:
    return Settings(
        stt=shared_stt.url,
        stt_model="whisper-1",
        stt_key=KEY,
        max_stt_requests=MAX_REQUESTS,
        max_stt_bytes=100_000,
    )


@pytest.fixture(autouse=True)
def _nothing_is_left(server: RunningServer, stt: ScriptedSTT) -> Iterator[None]:
    yield
    eventually(lambda: server.state.conversation.require_stt().num_requests == 0)
    eventually(lambda: stt.num_active == 0)


def post(client: httpx.Client, path: str = PATH, file: bytes = WAV, **fields: Any) -> httpx.Response:
    return client.post(path, files={"file": ("speech.wav", file, "audio/wav")}, data=fields)


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


def test_the_form_goes_to_the_stt_server_with_its_model_and_key(client: httpx.Client, stt: ScriptedSTT) -> None:
    granularities: dict[str, Any] = {"timestamp_granularities[]": ["word", "segment"]}
    response = post(client, model="ignored", language="en", prompt="Names: Ada", **granularities)
    assert response.json() == {"text": "hello there", "usage": {"type": "duration", "seconds": 2}}
    (request,) = stt.requests
    assert (request.file, request.file_name, request.file_type) == (WAV, "speech.wav", "audio/wav")
    assert sorted(request.fields) == [
        ("language", "en"),
        ("model", "whisper-1"),
        ("prompt", "Names: Ada"),
        ("timestamp_granularities[]", "segment"),
        ("timestamp_granularities[]", "word"),
    ]
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("name", ["Größe 1.wav", "名前 2.wav", "100%20.wav", "a\\b.wav"])
def test_the_stt_server_receives_the_name_of_the_file(name: str, client: httpx.Client, stt: ScriptedSTT) -> None:
    response = client.post(PATH, files={"file": (name, WAV, "audio/wav")}, data={name: "x"})
    assert response.status_code == 200, response.text
    assert stt.requests[0].file_name == name
    assert (name, "x") in stt.requests[0].fields


def test_a_line_break_in_a_name_adds_no_header(client: httpx.Client, stt: ScriptedSTT) -> None:
    def part(name: bytes, more: bytes, content: bytes) -> bytes:
        return b'--x\r\ncontent-disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + content + b"\r\n"

    body = part(b"prompt\na: b", b"", b"hi") + part(b"file", b'; filename="a\nb: c"', WAV) + b"--x--\r\n"
    response = client.post(PATH, content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert response.status_code == 200, response.text
    (request,) = stt.requests
    assert (request.file, request.file_name) == (WAV, "a_b: c")
    assert ("prompt_a: b", "hi") in request.fields


@pytest.mark.parametrize(
    ("format", "content_type", "part"),
    [
        ("json", "application/json", '"text": "hello there"'),
        ("verbose_json", "application/json", '"language": "english"'),
        ("text", "text/plain", "hello there\n"),
        ("srt", "text/plain", "00:00:00,000 --> 00:00:01,000"),
        ("vtt", "text/vtt", "WEBVTT"),
    ],
)
def test_every_response_format_is_passed_through(
    format: str, content_type: str, part: str, client: httpx.Client, stt: ScriptedSTT
) -> None:
    response = post(client, response_format=format)
    assert ("response_format", format) in stt.requests[0].fields
    assert response.headers["content-type"].partition(";")[0] == content_type
    assert part in response.text


def test_translations_have_their_own_path(client: httpx.Client, stt: ScriptedSTT) -> None:
    assert post(client, "/v1/audio/translations").status_code == 200
    assert stt.requests[0].path == "/v1/audio/translations"


def test_a_streamed_transcript_arrives_before_its_end(client: httpx.Client, stt: ScriptedSTT) -> None:
    stt.script = TranscriptScript(steps=[Action.WAIT])
    form = {"files": {"file": ("speech.wav", WAV, "audio/wav")}, "data": {"stream": "true"}}
    with client.stream("POST", PATH, **form) as response:  # type: ignore[arg-type]
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: ")) == {"type": "transcript.text.delta", "delta": "hello "}
        stt.release()
        assert '"transcript.text.done"' in "".join(lines)


def test_a_stream_that_fails_ends_with_an_error_event(client: httpx.Client, stt: ScriptedSTT) -> None:
    stt.script = TranscriptScript(steps=[Action.DISCONNECT])
    *_, last, rest = post(client, stream="true").text.split("\n\n")
    assert rest == ""
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stt_failed"


def test_without_an_stt_server_the_error_says_how_to_start_one(engine: PausableEngine) -> None:
    with serving(engine, Settings()) as server, server.client() as client:
        status, code, message = error_of(post(client))
        assert (status, code) == (404, "stt_not_configured")
        assert "--stt URL" in message


def test_invalid_forms_are_rejected(client: httpx.Client, stt: ScriptedSTT) -> None:
    assert error_of(client.post(PATH, json={}))[:2] == (415, "unsupported_media_type")
    assert error_of(post(client, file=b""))[2] == "Invalid value for 'file': must be a recording."
    no_file = client.post(PATH, files={"other": ("a.wav", WAV)})
    assert error_of(no_file)[2] == "Invalid value for 'other': must not be a file; only file is one."
    assert error_of(post(client, file=bytes(100_001)))[:2] == (413, "too_large")
    assert stt.requests == []


@pytest.mark.parametrize(
    ("script", "status", "code", "part"),
    [
        (
            TranscriptScript(status=413, error={"error": {"message": "File too large"}}),
            413,
            "stt_rejected",
            "too large",
        ),
        (TranscriptScript(status=400, error={"error": "bad audio"}), 400, "stt_rejected", "bad audio"),
        (TranscriptScript(status=500, error={"detail": "oops"}), 502, "stt_failed", "status 500: oops"),
        (TranscriptScript(status=500), 502, "stt_failed", "status 500."),
        (TranscriptScript(status=401, error={"error": {"message": KEY}}), 502, "stt_failed", "check stt_key"),
        (TranscriptScript(status=429, headers={"retry-after": "7"}), 429, "stt_overloaded", "overloaded"),
        (TranscriptScript(status=500, error={"error": {"message": f"no {KEY}"}}), 502, "stt_failed", "(hidden)"),
        (TranscriptScript(status=302, headers={"location": "/x"}), 502, "stt_failed", "status 302"),
        (TranscriptScript(body=b"{not json"), 502, "stt_failed", "invalid data"),
        (TranscriptScript(body=b"<p>", content_type="text/html"), 502, "stt_failed", "check stt"),
        (TranscriptScript(body=bytes(MAX_JSON + 1)), 502, "stt_failed", "more than"),
        (TranscriptScript(steps=[Action.DISCONNECT]), 502, "stt_failed", "cannot be reached"),
    ],
)
def test_a_failure_of_the_stt_server_is_a_clear_error(
    script: TranscriptScript,
    status: int,
    code: str,
    part: str,
    client: httpx.Client,
    stt: ScriptedSTT,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "MAX_JSON_BYTES", MAX_JSON)
    stt.script = script
    response = post(client)
    found = error_of(response)
    assert found[:2] == (status, code)
    assert part in found[2]
    assert KEY not in response.text
    if status == 429:
        assert response.headers["retry-after"] == "7"


def test_a_slow_stt_server_is_a_timeout(engine: PausableEngine, stt: ScriptedSTT) -> None:
    stt.script = TranscriptScript(steps=[Action.WAIT])
    with serving(engine, Settings(stt=stt.url, stt_timeout=TIMEOUT)) as server, server.client() as client:
        status, code, message = error_of(post(client))
    assert (status, code) == (504, "stt_timeout")
    assert "(stt_timeout)" in message


def test_a_request_is_cancelled_when_its_client_disconnects(client: httpx.Client, stt: ScriptedSTT) -> None:
    stt.script = TranscriptScript(steps=[Action.WAIT])
    request = client.build_request("POST", PATH, files={"file": ("speech.wav", WAV, "audio/wav")})
    data = request.read()
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {request.headers['content-type']}\r\n"
    address = (request.url.host, request.url.port or 0)
    with closing(socket.create_connection(address, 10)) as connection:
        connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        eventually(lambda: stt.num_active == 1)
    eventually(lambda: stt.num_cancelled == 1)
    eventually(lambda: 'polyvox_stt_requests_total{outcome="cancelled"} 1' in client.get("/metrics").text)


def test_a_closed_connection_is_replaced_without_an_error(client: httpx.Client, stt: ScriptedSTT) -> None:
    assert post(client).status_code == 200
    stt.close_connections()
    assert post(client).status_code == 200


def test_requests_beyond_the_limit_are_rejected(server: RunningServer, client: httpx.Client) -> None:
    transcriber = server.state.conversation.require_stt()
    transcriber._num_requests = MAX_REQUESTS
    try:
        response = post(client)
    finally:
        transcriber._num_requests = 0
    assert error_of(response)[:2] == (503, "stt_overloaded")
    assert "max_stt_requests" in response.text


def test_keys_are_checked(engine: PausableEngine, stt: ScriptedSTT) -> None:
    with serving(engine, Settings(stt=stt.url, api_keys=["key"])) as server, server.client() as client:
        assert post(client).status_code == 401
        client.headers["authorization"] = "Bearer key"
        assert post(client).status_code == 200
        assert "authorization" not in stt.requests[0].headers  # the key of the client is not the STT server's


def transcribe(config: STTConfig, **options: Any) -> tuple[Transcription, list[TranscriptionOutcome]]:
    outcomes: list[TranscriptionOutcome] = []

    async def run() -> Transcription:
        transcriber = Transcriber(config, lambda outcome, _: outcomes.append(outcome))
        try:
            return await transcriber.transcribe(np.arange(100, dtype=np.int16), 8000, **options)
        finally:
            assert transcriber.num_requests == 0
            await transcriber.close()

    return asyncio.run(run()), outcomes


def test_a_turn_is_sent_as_a_wav_file(stt: ScriptedSTT) -> None:
    found, outcomes = transcribe(STTConfig(stt.url), model="tiny", language="de", prompt="Hallo")
    assert found == Transcription("hello there", usage={"type": "duration", "seconds": 2})
    assert outcomes == ["finished"]
    (request,) = stt.requests
    expected = [("model", "tiny"), ("response_format", "json"), ("language", "de"), ("prompt", "Hallo")]
    assert request.fields == expected
    assert request.file[:4] == b"RIFF"
    assert request.file[44:] == np.arange(100, dtype="<i2").tobytes()


@pytest.mark.parametrize(
    ("script", "error", "outcome"),
    [
        (TranscriptScript(steps=[Action.WAIT]), TranscriptionTimeout, "timeout"),
        (TranscriptScript(body=b'{"words": []}'), TranscriptionFailed, "failed"),
        (TranscriptScript(body=b'{"text": 5}'), TranscriptionFailed, "failed"),
        (TranscriptScript(status=422, error={"error": "no"}), TranscriptionRejected, "rejected"),
        (TranscriptScript(status=503), TranscriptionOverloaded, "rejected"),
    ],
)
def test_a_turn_that_fails_has_a_typed_error(
    script: TranscriptScript, error: type[Exception], outcome: str, stt: ScriptedSTT
) -> None:
    stt.script = script
    outcomes: list[TranscriptionOutcome] = []

    async def run() -> None:
        turn_timeout = TIMEOUT if error is TranscriptionTimeout else 60.0
        config = STTConfig(stt.url, turn_timeout=turn_timeout)
        transcriber = Transcriber(config, lambda end, _: outcomes.append(end))
        try:
            with pytest.raises(error):
                await transcriber.transcribe(np.zeros(10, np.int16), 8000)
        finally:
            await transcriber.close()

    asyncio.run(run())
    assert outcomes == [outcome]


def test_an_stt_server_that_does_not_listen_is_named_as_unreachable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TranscriptionFailed, match="cannot be reached") as failure:
        transcribe(STTConfig(f"http://127.0.0.1:{port}/v1"))
    assert str(port) not in str(failure.value)


def test_other_fields_of_a_transcript_may_have_any_type() -> None:
    found = parse_transcription(b'{"text": " Hi. ", "language": 3, "duration": "x", "usage": []}')
    assert found == Transcription("Hi.")
