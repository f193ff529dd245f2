# SPDX-License-Identifier: Apache-2.0
"""One log line per request, and no tracebacks for clients that disconnect."""

import json
import logging
import socket
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from ipc.engine_processes import eventually
from polyvox.server.logs import set_up_logs
from polyvox.server.settings import Settings
from server.abort_storm import storm_in_process
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.load_storms import begin
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow

EVENTS = ("request finished", "request rejected", "request aborted", "request failed")


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def lines(caplog: pytest.LogCaptureFixture, count: int = 1) -> list[Any]:
    """The lines of requests, once there are as many as expected."""

    def found() -> list[Any]:
        return [record for record in [*caplog.records] if record.getMessage() in EVENTS]

    with suppress(AssertionError):
        eventually(lambda: len(found()) >= count or threading.Event().wait(0.02))
    return found()


def test_every_request_has_one_line(
    client: httpx.Client, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    client.get("/v1/models")
    client.get("/nowhere")
    server.speak(client, voice="bob")
    server.speak(client, unknown_field=1)
    client.get("/livez")
    first, second, third, fourth = lines(caplog, 4)
    assert (first.getMessage(), first.method, first.path, first.status) == (
        "request finished",
        "GET",
        "/v1/models",
        200,
    )
    assert (second.getMessage(), second.status) == ("request rejected", 404)
    assert (third.getMessage(), third.status) == ("request rejected", 404)
    assert "bob" in third.error
    assert (fourth.getMessage(), fourth.status, fourth.finish_reason) == ("request finished", 200, "stop")
    assert (fourth.bytes, fourth.ignored_fields) == (9600, "unknown_field")
    assert fourth.levelno == logging.INFO


def test_invalid_http_has_one_line_with_the_address(server: RunningServer, capfd: pytest.CaptureFixture[str]) -> None:
    previous = logging.getLogger().handlers[:]
    set_up_logs(Settings())
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(b"GET nonsense\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    finally:
        logging.getLogger().handlers[:] = previous
    (line,) = capfd.readouterr().err.splitlines()
    assert " info request rejected status=400 " in line
    assert "client=127.0.0.1" in line


def test_a_client_that_disconnects_has_one_line_with_the_reason(
    server: RunningServer, engine: PausableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    engine.resume(5)
    with begin(server, max_new_tokens=50) as connection:
        connection.recv(100)
    (line,) = lines(caplog)
    assert (line.getMessage(), line.reason, line.finish_reason) == ("request aborted", "disconnect", "cancelled")


def test_a_client_that_disconnects_during_its_upload_has_one_line_without_a_traceback(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = b"POST /v1/audio/voices HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        connection.sendall(head + b"content-length: 100\r\n\r\n{")
    (line,) = lines(caplog)
    assert (line.getMessage(), line.reason, line.path) == ("request aborted", "disconnect", "/v1/audio/voices")
    assert not [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO]


def test_a_storm_of_aborts_has_one_line_for_each_request_and_no_traceback(
    server: RunningServer, engine: PausableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    engine.resume(24)
    storm_in_process(server.port, 300, seed=3)
    eventually(lambda: not server.state.synthesis.active)
    found = lines(caplog)
    assert not [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING]
    assert set(Counter(record.request_id for record in found).values()) == {1}
    assert sum(record.getMessage() == "request aborted" for record in found) > 50


def test_a_refused_websocket_is_logged_at_level_info(engine: PausableEngine, caplog: pytest.LogCaptureFixture) -> None:
    with serving(engine, Settings(api_keys=["key"])) as server:
        caplog.clear()
        with pytest.raises(InvalidStatus), connect_websocket(server, "/v1/audio/speech/stream"):
            pass
    refused: list[Any] = [record for record in caplog.records if record.getMessage() == "request rejected"]
    assert [(record.levelname, record.status) for record in refused] == [("INFO", 401)]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_websocket_has_a_line_when_it_is_closed(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.connection.send(json.dumps({"type": "session.config"}))
    eventually(lambda: any(record.getMessage() == "websocket closed" for record in caplog.records))
    (line,) = [vars(record) for record in caplog.records if record.getMessage() == "websocket closed"]
    assert (line["path"], line["code"]) == ("/v1/audio/speech/stream", 1000)


def test_an_utterance_of_a_websocket_has_one_line_with_its_end(
    server: RunningServer, engine: PausableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.send(type="session.config", stream_audio=True, response_format="pcm")
        websocket.send(type="input.text", text="Hello there.")
        websocket.send(type="input.done")
        websocket.until("session.done")
        engine.resume(5)
        caplog.clear()
        websocket.send(type="input.text", text="This one is interrupted.")
        websocket.send(type="input.done")
        websocket.until("audio.start")
    (line,) = lines(caplog)
    assert (line.getMessage(), line.finish_reason, line.levelname) == ("request aborted", "cancelled", "INFO")


def test_a_client_that_reads_nothing_has_one_line(engine: PausableEngine, caplog: pytest.LogCaptureFixture) -> None:
    with serving(engine, Settings(reader_timeout=0.3)) as server:
        caplog.clear()
        with begin(server, "One sentence here. " * 500, receive_buffer=4096):
            (line,) = lines(caplog)
        eventually(lambda: not server.state.synthesis.active)
    assert (line.getMessage(), line.levelname) == ("request aborted", "WARNING")
    assert line.reason in ("reader", "reader_slow")
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_texts_of_rejected_requests_are_not_logged(engine: PausableEngine, caplog: pytest.LogCaptureFixture) -> None:
    with serving(engine, Settings(max_text_chars=30)) as server, server.client() as client:
        caplog.clear()
        for body in ({"input": "A private text\n(got it). " * 5}, {"input": ["A private text."]}):
            assert "private" in client.post("/v1/audio/speech", json=body).json()["error"]["message"]
        with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
            websocket.send(type="session.config", response_format="pcm")
            websocket.send(type="input.text", text="A private text. " * 5)
            assert "private" in websocket.until("error")[0][-1]["message"]
    found: list[Any] = [record for record in caplog.records if record.getMessage() == "request rejected"]
    assert {record.error.partition(":")[0] for record in found} == {
        "Invalid value for 'text'",
        "Invalid value for 'input'",
    }
    assert "private" not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech/batch", {"items": "private"}),
        ("/v1/chat/completions", {"messages": "private"}),
        ("/v1/chat/completions", {"messages": ["private"]}),
        ("/v1/text-to-dialogue", {"inputs": "private"}),
        ("/v1/text-to-dialogue", {"inputs": [{"text": ["private"], "voice_id": "heart"}]}),
        ("/v1/pronunciation-dictionaries/add-from-rules", {"name": "Terms", "rules": "private"}),
        ("/v1/pronunciation-dictionaries/add-from-rules", {"name": "Terms", "rules": ["private"]}),
        ("/v1/audio/speech", {"input": "Hi.", "references": [["private"]]}),
        ("/v1/audio/speech", {"input": "Hi.", "speed": "a private text"}),
        ("/v1/audio/speech", {"input": "Hi.", "response_format": "x) a private text"}),
        ("/v1/audio/speech", {"input": "Hi.", "response_format": "我的private文字"}),
        ("/v1/speak", {"text": ["private"]}),
        ("/tts/bytes", {"transcript": ["private"]}),
    ],
)
def test_a_text_in_the_wrong_type_is_not_logged(
    path: str, body: dict[str, Any], client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    client.post(path, json=body)
    (line,) = lines(caplog)
    assert "Invalid value for" in line.error
    assert "private" not in str([vars(record) for record in caplog.records])


def test_a_number_and_a_word_are_logged(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    for fields, value in (({"speed": 9.5}, "(got 9.5)."), ({"response_format": "wma"}, "(got 'wma').")):
        caplog.clear()
        client.post("/v1/audio/speech", json={"input": "Hi.", **fields})
        (line,) = lines(caplog)
        assert value in line.error
