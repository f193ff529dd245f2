# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a thinker: one answer at a time, whatever the clients do."""

import asyncio
import base64
import io
import json
import socket
import threading
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from polyvox.errors import InvalidRequest
from polyvox.models.request import ThinkerPrompt
from polyvox.thinkers import transformers_server
from polyvox.thinkers.interface import ChatBody
from polyvox.thinkers.transformers_server import LLM_PATH, TransformersServer
from polyvox.thinkers.transformers_thinker import GeneratedToken, _read_message, generation_options

TIMEOUT = 30.0  # seconds
BODY = {"messages": [{"role": "user", "content": "Hi!"}]}


class FakeThinker:
    """Answers with the text of the last message, as many times as `repeat` says."""

    def answer(
        self,
        body: ChatBody,
        on_prompt: Callable[[ThinkerPrompt], None],
        on_token: Callable[[GeneratedToken], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        generation_options(body)
        on_prompt(ThinkerPrompt((1, 2, 3)))
        repeat = body.get("repeat", 1)
        for index in range(repeat):
            if is_cancelled():
                return
            on_token(GeneratedToken(7, body["messages"][-1]["content"], "stop" if index + 1 == repeat else None))


@contextmanager
def running(thinker: Any) -> Iterator[str]:
    urls: list[str] = []
    loop, ready, stopped = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with TransformersServer(thinker, "fake").listen("127.0.0.1", 0) as url:
            urls.append(url.removesuffix("/v1"))
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(TIMEOUT)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        loop.close()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with running(FakeThinker()) as url, httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        yield client


def test_an_answer_is_whole_or_streamed_with_its_token_ids(client: httpx.Client) -> None:
    whole = client.post(LLM_PATH, json=BODY).json()
    assert whole["choices"][0]["message"]["content"] == "Hi!"
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    fields = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    *events, done, _ = client.post(LLM_PATH, json={**BODY, **fields}).text.split("\n\n")
    assert done == "data: [DONE]"
    prompt, token, usage = (json.loads(event.removeprefix("data: ")) for event in events)
    assert prompt["prompt_token_ids"] == [1, 2, 3]
    assert (token["choices"][0]["token_ids"], token["choices"][0]["finish_reason"]) == ([7], "stop")
    assert usage["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"messages": []}', json.dumps({**BODY, "top_k": 5.5}).encode()],
)
def test_an_invalid_request_is_rejected(body: bytes, client: httpx.Client) -> None:
    response = client.post(LLM_PATH, content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "llm_error")


def test_invalid_stream_options_are_ignored(client: httpx.Client) -> None:
    assert client.post(LLM_PATH, json={**BODY, "stream_options": 7}).status_code == 200


def test_a_client_that_does_not_read_is_ended_and_the_next_one_is_served(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_server, "WRITE_TIMEOUT", 0.2)
    long = {"messages": [{"role": "user", "content": "x" * 100_000}], "stream": True, "repeat": 1000}
    data = json.dumps(long).encode()
    head = f"POST {LLM_PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port), TIMEOUT) as stalled:
        stalled.sendall(head.encode() + data)
        assert stalled.recv(1)
        assert client.post(LLM_PATH, json=BODY).status_code == 200


def test_options_have_the_types_that_transformers_requires() -> None:
    options = generation_options({"temperature": 2, "top_p": 1, "top_k": 5, "max_tokens": 3})
    assert [(name, type(value)) for name, value in options.items()] == [
        ("max_new_tokens", int),
        ("temperature", float),
        ("top_p", float),
        ("top_k", int),
    ]


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": True}, {"top_k": 5.0}, {"temperature": "1"}])
def test_an_option_out_of_range_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(fields))):
        generation_options(fields)


def wav(seconds: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(b"\0\0" * round(8000 * seconds))
    return file.getvalue()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"no audio").decode()}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(301)).decode()}},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/image.png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,!"}},
        {"type": "song"},
    ],
)
def test_media_that_cannot_be_read_are_rejected(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        _read_message({"role": "user", "content": [part]}, [], [])


def test_a_damaged_image_is_rejected() -> None:
    pytest.importorskip("PIL", reason="part of polyvox[omni]")
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with pytest.raises(InvalidRequest, match="image"):
        _read_message({"role": "user", "content": [part]}, [], [])


def test_a_recording_of_two_minutes_is_read_to_its_end() -> None:
    audio: list[Any] = []
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(120)).decode()}}
    _read_message({"role": "user", "content": [part]}, audio, [])
    assert len(audio[0]) == 120 * 16_000
