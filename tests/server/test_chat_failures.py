# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions when the LLM or the client fails: a clear end, and nothing is left behind."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from ipc.engine_processes import eventually
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.scripted_llm import Script, ScriptedLLM, Step, scripted_llm
from server.scripted_server import Action
from server.test_chat import PATH, body, streamed, text_of

pytestmark = pytest.mark.slow

TIMEOUT = 0.3  # seconds of every time limit
WORDS = [f" word{index}" for index in range(50)]
SLOW: list[Step] = ["One two three. Four", *(1000 * (0.05, " more"))]  # it does not end in the time of a test


@pytest.fixture(scope="module")
def server_settings(shared_llm: ScriptedLLM) -> Settings:
    return Settings(
        llm=shared_llm.url, llm_token_timeout=TIMEOUT, llm_first_token_timeout=2 * TIMEOUT, max_text_chars=2000
    )


@pytest.fixture(autouse=True)
def _nothing_is_left(server: RunningServer, engine: PausableEngine, llm: ScriptedLLM) -> Iterator[None]:
    yield
    client = server.state.conversation.require_llm()
    eventually(lambda: client.num_requests == 0 and not server.state.synthesis.active and engine.streams == 0)
    eventually(lambda: llm.num_active == 0)
    eventually(lambda: not [name for name in _task_names(server) if "SpokenAnswer" in name or name == "_run"])


def _task_names(server: RunningServer) -> list[str]:
    """Names of the coroutines that run in the server's event loop."""
    found: list[str] = []
    done = threading.Event()

    def collect() -> None:
        found.extend(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]
        done.set()

    server.state.conversation.require_llm()._session._loop.call_soon_threadsafe(collect)
    assert done.wait(10)
    return found


def failed(client: httpx.Client, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The chunks of a stream that fails after its start, and the error, which is its last event."""
    response = client.post(PATH, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    *events, rest = response.text.split("\n\n")
    assert rest == ""
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("error" not in chunk for chunk in chunks)
    return chunks, last["error"]


GARBAGE: list[bytes] = [
    b"data: {not json\n\n",
    b"data: 7\n\n",
    b'data: {"choices": 3}\n\n',
    b'data: {"choices": [{"delta": {"content": 5}}]}\n\n',
    b'data: {"choices": [{"delta": []}, 3]}\n\n',
    b"data: \xff\xfe\n\n",
    b'data: {"choices": [{"delta": {"tool_calls": [7]}}]}\n\n',
    b'data: {"choices": [{"delta": {"tool_calls": [{"index": [], "function": {"name": 7}}]}}]}\n\n',
    b'data: {"choices": [{"delta": {"tool_calls": {"a": 1}}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "x"}, "logprobs": [1]}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": 7}}]}\n\n',
]


@pytest.mark.parametrize(
    ("steps", "finish_reason", "message"),
    [
        ([*WORDS, b'data: {"error": {"message": "out of memory"}}\n\n'], "stop", "out of memory"),
        ([*WORDS, Action.DISCONNECT], "stop", "connection to the LLM failed"),
        ([*WORDS, " and in the mid"], None, "without a finish reason"),
        ([*WORDS, b"data: [DONE]\n\n"], None, "without a finish reason"),
        ([*WORDS, b"data: " + 5_000_000 * b"x"], "stop", "invalid data"),
        *(([*WORDS, garbage], "stop", "invalid data") for garbage in GARBAGE),
    ],
)
def test_an_llm_that_fails_in_the_middle_ends_the_stream_with_an_error(
    steps: list[Step], finish_reason: str | None, message: str, client: httpx.Client, llm: ScriptedLLM
) -> None:
    llm.script = Script(steps, finish_reason=finish_reason)
    chunks, error = failed(client)
    assert text_of(chunks).startswith("".join(WORDS))
    assert message in error["message"]
    assert (error["type"], error["code"]) == ("server_error", "llm_failed")
    whole = client.post(PATH, json=body())
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "llm_failed")


def test_an_llm_that_stalls_ends_the_stream_with_a_timeout(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script(["One. Two", Action.WAIT])
    chunks, error = failed(client)
    assert text_of(chunks) == "One. Two"
    assert error["code"] == "llm_timeout"
    assert "llm_token_timeout" in error["message"]
    eventually(lambda: llm.num_cancelled == 1)  # the LLM does not write on


def test_an_llm_without_a_first_token_is_a_timeout(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script([Action.WAIT])
    response = client.post(PATH, json=body())
    assert response.status_code == 504
    assert "llm_first_token_timeout" in response.json()["error"]["message"]


def test_an_answer_that_takes_too_long_is_a_timeout(llm: ScriptedLLM) -> None:
    llm.script = Script(1000 * ["word "], rate=50.0)
    settings = Settings(llm=llm.url, llm_timeout=TIMEOUT)
    with closing(PausableEngine()) as engine, serving(engine, settings) as server, server.client() as client:
        _, error = failed(client)
    assert "(llm_timeout)" in error["message"]


def test_a_slow_llm_is_no_failure(client: httpx.Client, llm: ScriptedLLM) -> None:
    """Each pause is below the limit, and all of them together are above it."""
    llm.script = Script(["One", *(5 * (TIMEOUT / 4, " two"))])
    assert text_of(streamed(client)) == "One" + 5 * " two"


def test_a_whole_text_may_take_longer_than_a_first_token(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script(["One", 2.5 * TIMEOUT, " two."])
    response = client.post(PATH, json=body(modalities=["text"]))
    assert response.json()["choices"][0]["message"]["content"] == "One two."


def test_an_answer_that_is_cut_in_a_word_is_spoken_to_its_end(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script(["One two thr"], finish_reason="length")
    *chunks, end, usage = streamed(client, stream_options={"include_usage": True})
    assert end["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens_details"]["audio_tokens"] == 3
    assert text_of(chunks) == "One two thr"


def test_an_endless_answer_is_cut_at_the_limit_of_text(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script(100_000 * [" token"])
    *chunks, end = streamed(client)
    assert len(text_of(chunks)) == 2000
    assert end["choices"][0]["finish_reason"] == "length"
    eventually(lambda: llm.num_cancelled == 1)


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (400, 400, "llm_rejected"),
        (404, 404, "llm_rejected"),
        (500, 502, "llm_failed"),
        (429, 429, "llm_overloaded"),
        (503, 503, "llm_overloaded"),
    ],
)
@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"]])
def test_a_status_of_the_llm_is_the_status_of_the_response(
    status: int, expected: int, code: str, modalities: list[str], client: httpx.Client, llm: ScriptedLLM
) -> None:
    error = {"error": {"message": "Something about it", "param": "temperature"}}
    llm.script = Script(status=status, error=error, headers={"retry-after": "7"})
    response = client.post(PATH, json=body(stream=True, modalities=modalities))
    assert response.status_code == expected
    assert response.json()["error"]["code"] == code
    assert "Something about it" in response.json()["error"]["message"]
    if expected in (429, 503):
        assert response.headers["retry-after"] == "7"
    if code == "llm_rejected":
        assert response.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize("status", [401, 403])
def test_what_the_llm_says_about_its_key_is_not_for_clients(
    status: int, llm: ScriptedLLM, engine: PausableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    llm.script = Script(status=status, error={"error": {"message": "Incorrect API key provided: sk-secret."}})
    settings = Settings(llm=llm.url, llm_key="sk-secret")
    with serving(engine, settings) as server, server.client() as client:
        response = client.post(PATH, json=body())
    assert (response.status_code, response.json()["error"]["code"]) == (502, "llm_failed")
    assert "llm_key" in response.json()["error"]["message"]
    assert "sk-secret" not in response.text
    (record,) = [record for record in caplog.records if record.message == "llm key rejected"]
    assert vars(record)["error"] == "Incorrect API key provided: (hidden)."


def test_a_long_message_of_the_llm_is_cut(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script(status=400, error={"error": {"message": "x" * 50_000}})
    assert len(client.post(PATH, json=body()).json()["error"]["message"]) < 1100


def test_the_first_text_of_a_stream_may_take_longer_than_the_next(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script([Action.SILENCE, 1.5 * TIMEOUT, "One two."])
    assert text_of(streamed(client, modalities=["text"])) == "One two."


@pytest.mark.parametrize("content", [5, True, {"text": "Hi"}, None])
@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"]])
def test_the_content_of_messages_is_checked_by_the_llm(
    content: object, modalities: list[str], client: httpx.Client, llm: ScriptedLLM
) -> None:
    messages = [{"role": "user", "content": content}]
    assert client.post(PATH, json=body(messages=messages, modalities=modalities)).status_code == 200
    assert llm.requests[-1]["messages"] == messages


@pytest.mark.parametrize("depth", [5, 900])
@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"]])
def test_messages_with_any_json_are_sent_or_rejected(
    depth: int, modalities: list[str], client: httpx.Client, llm: ScriptedLLM
) -> None:
    content = "[" * depth + '"\\ud800", ' + "9" * 30 + "]" * depth
    text = json.dumps(body(modalities=modalities, messages=[{"role": "user", "content": "here"}]))
    response = client.post(PATH, content=text.replace('"here"', content))
    assert response.status_code in ((200,) if depth == 5 else (200, 400)), response.text
    if depth == 5:
        assert llm.requests[-1]["messages"][0]["content"] == json.loads(content)


def test_cookies_of_the_llm_are_not_sent_with_later_requests(engine: PausableEngine, llm: ScriptedLLM) -> None:
    settings = Settings(llm=llm.url.replace("127.0.0.1", "localhost"))  # addresses have no cookies
    with serving(engine, settings) as server, server.client() as client:
        llm.script = Script(status=400, error={}, headers={"set-cookie": "session=first; Path=/"})
        assert client.post(PATH, json=body()).status_code == 400
        llm.script = Script()
        streamed(client)
    assert "Cookie" not in llm.headers[-1]


def test_a_usage_with_invalid_details_is_no_failure(client: httpx.Client, llm: ScriptedLLM) -> None:
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 2, "completion_tokens_details": 7}}\n\n'
    llm.script = Script(["One two.", usage], with_usage=False)
    *_, last = streamed(client, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens_details"] == {"audio_tokens": 2, "text_tokens": 2}


def test_an_llm_that_is_down_is_a_bad_gateway() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = Settings(llm=f"http://127.0.0.1:{port}/v1", llm_key="secret")
    with closing(PausableEngine()) as engine, serving(engine, settings) as server, server.client() as client:
        for modalities in (["text"], ["text", "audio"]):
            response = client.post(PATH, json=body(modalities=modalities))
            assert response.status_code == 502
            assert "cannot be reached" in response.json()["error"]["message"]
            assert "secret" not in response.text


def test_an_llm_that_is_killed_ends_only_its_own_answers(server: RunningServer, engine: PausableEngine) -> None:
    with scripted_llm(Script(["One two. Three", Action.WAIT])) as doomed:
        settings = Settings(llm=doomed.url)
        with (
            serving(engine, settings) as other,
            other.client() as client,
            client.stream("POST", PATH, json=body(stream=True)) as response,
        ):
            lines = response.iter_lines()
            next(line for line in lines if '"data"' in line)
            doomed.stop()
            (error,) = [line for line in lines if '"error"' in line]
            assert "LLM" in error
            with server.client() as client:
                assert server.speak(client).status_code == 200


@pytest.mark.parametrize("modalities", [["text"], ["text", "audio"]])
def test_a_client_that_disconnects_cancels_the_llm(
    modalities: list[str], client: httpx.Client, llm: ScriptedLLM
) -> None:
    llm.script = Script(SLOW)
    with client.stream("POST", PATH, json=body(stream=True, modalities=modalities)) as response:
        next(response.iter_lines())
    eventually(lambda: llm.num_cancelled == 1)


def test_a_text_that_fails_in_the_middle_ends_with_an_error_event(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script([*WORDS, Action.DISCONNECT])
    _, error = failed(client, modalities=["text"])
    assert error["code"] == "llm_failed"


def test_a_speech_engine_that_fails_ends_the_stream_and_cancels_the_llm(
    client: httpx.Client, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    engine.resume(2)
    llm.script = Script(SLOW)
    with client.stream("POST", PATH, json=body(stream=True)) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"data"' in line)
        for stream in list(engine._streams):
            stream.cancel()
        engine.resume()
        assert "stream_failed" in next(line for line in lines if '"error"' in line)
    eventually(lambda: llm.num_cancelled == 1)


def test_requests_beyond_the_limit_are_rejected(llm: ScriptedLLM) -> None:
    llm.script = Script(["One", Action.WAIT])
    settings = Settings(llm=llm.url, max_llm_requests=1)
    with (
        closing(PausableEngine()) as engine,
        serving(engine, settings) as server,
        server.client() as client,
        ExitStack() as stack,
    ):
        first = stack.enter_context(client.stream("POST", PATH, json=body(stream=True)))
        lines = first.iter_lines()
        next(lines)
        response = client.post(PATH, json=body())
        assert (response.status_code, response.json()["error"]["code"]) == (503, "llm_overloaded")
        assert server.state.metrics.llm_requests.labels("rejected")._value.get() == 1
        llm.release()
        assert "[DONE]" in "".join(lines)


def test_a_connection_that_fails_before_the_answer_is_retried(client: httpx.Client, llm: ScriptedLLM) -> None:
    streamed(client)
    llm.close_connections()  # as servers do with idle ones
    assert text_of(streamed(client)) == "Hello there. How are you?"
    assert len(llm.requests) == 2
