# SPDX-License-Identifier: Apache-2.0
"""A thinker behind any server with OpenAI's chat completions: vLLM, SGLang, Ollama, llama.cpp, OpenAI."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from polyvox.errors import shorten
from polyvox.http_client import new_session, send_with_retry
from polyvox.http_errors import (
    CLIENT_STATUSES,
    DEFAULT_RETRY_AFTER,
    KEY_STATUSES,
    OVERLOAD_STATUSES,
    describe_failure,
    parse_error,
    read_error,
    retry_after,
    with_reason,
)
from polyvox.models.request import ThinkerPrompt
from polyvox.thinkers.event_stream import EventStreamParser
from polyvox.thinkers.interface import (
    ChatBody,
    Delta,
    End,
    ThinkerEvent,
    ThinkerFailed,
    ThinkerOverloaded,
    ThinkerRejected,
    ThinkerStarting,
    ThinkerTimeout,
    TimeLimit,
)

log = logging.getLogger(__name__)

PATH = "/chat/completions"
END_TIMEOUT = 0.2  # seconds for the end of the response after the end of the answer
STARTING_RETRY_AFTER = 5.0  # seconds; a large model takes minutes to load
DONE = b"[DONE]"
# Of the keys of a chunk, those that only models that speak by token ids need.
ID_KEYS = ("prompt_token_ids", "prompt_media_rows", "prompt_positions", "token_ids")


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """An OpenAI-compatible server and its limits. Times are in seconds.

    url: with its version, such as http://localhost:11434/v1. model: None for the one that each request names.
    is_supervised: this server starts and restarts it; while it does not listen, ThinkerStarting is raised.
    """

    url: str
    model: str | None = None
    key: str | None = None
    connect_timeout: float = 5.0
    first_token_timeout: float = 60.0
    token_timeout: float = 20.0
    timeout: float = 600.0
    max_requests: int = 256
    is_supervised: bool = False


class OpenAIThinker:
    """Pooled connections to one server. A failed connection is retried only before the answer has begun."""

    def __init__(self, config: LLMConfig) -> None:
        self._config = config
        self._url = config.url.rstrip("/") + PATH
        self._num_requests = 0
        self._session = new_session(config.key, config.connect_timeout, config.max_requests)

    @property
    def num_requests(self) -> int:
        """Requests in progress."""
        return self._num_requests

    async def close(self) -> None:
        await self._session.close()

    async def answer(self, body: ChatBody, with_ids: bool) -> AsyncGenerator[ThinkerEvent]:
        """with_ids: asks for token ids, which vLLM and SGLang return; raises ThinkerFailed if there are none."""
        options = {**(body.get("stream_options") or {}), "include_usage": True}
        request = {**body, "stream": True, "stream_options": options}
        if with_ids:
            request["return_token_ids"] = True
        reader = AnswerReader(with_ids)
        async with (
            self._request(request) as (response, deadline),
            aclosing(self._events(response, reader, deadline)) as events,
        ):
            async for event in events:
                yield event
                if isinstance(event, End):
                    await _read_to_end(response)
                    return

    @asynccontextmanager
    async def open(self, body: ChatBody) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
        """Sends a request unchanged; the content type of the response and its body, as it arrives."""
        async with self._request(body) as (response, deadline):
            yield response.headers.get("content-type", "application/json"), self._parts(response, deadline)

    async def _parts(self, response: aiohttp.ClientResponse, deadline: float) -> AsyncIterator[bytes]:
        started = False
        while part := await self._read(response, deadline, started):
            started = True
            yield part

    async def _events(
        self, response: aiohttp.ClientResponse, reader: "AnswerReader", deadline: float
    ) -> AsyncGenerator[ThinkerEvent]:
        parser = EventStreamParser()
        while part := await self._read(response, deadline, reader.started):
            try:
                found = parser.push(part)
            except ValueError as error:
                raise ThinkerFailed(f"The LLM sent invalid data: {error}.") from None
            for data in found:
                for event in reader.read(data):
                    yield event
        yield reader.end()

    async def _read(self, response: aiohttp.ClientResponse, deadline: float, started: bool) -> bytes:
        """The next bytes; empty at the end."""
        config = self._config
        limits: dict[TimeLimit, float] = {"llm_timeout": deadline}
        if started:
            limits["llm_token_timeout"] = asyncio.get_running_loop().time() + config.token_timeout
        else:
            limits["llm_first_token_timeout"] = deadline - config.timeout + config.first_token_timeout
        limit = min(limits, key=limits.__getitem__)
        try:
            async with asyncio.timeout_at(limits[limit]):
                return await response.content.readany()
        except TimeoutError:
            raise self._timeout(limit) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ThinkerFailed(f"The connection to the LLM failed: {describe_failure(error)}.") from None

    @asynccontextmanager
    async def _request(self, body: ChatBody) -> AsyncIterator[tuple[aiohttp.ClientResponse, float]]:
        """A response with status 200, and the time at which its answer must have ended."""
        if self._num_requests >= self._config.max_requests:
            message = f"The limit of {self._config.max_requests} LLM requests is reached (max_llm_requests)."
            raise ThinkerOverloaded(message, DEFAULT_RETRY_AFTER)
        self._num_requests += 1
        try:
            model = {} if self._config.model is None else {"model": self._config.model}
            data = _encode({**body, **model})
            start = asyncio.get_running_loop().time()
            limit: TimeLimit = "llm_first_token_timeout" if body.get("stream") else "llm_timeout"
            response = await self._connect(data, start, limit)
            try:
                if response.status != 200:
                    raise await self._rejection(response)
                yield response, start + self._config.timeout
            finally:
                response.close()  # ends the answer if it has not ended; a connection whose answer has is kept
        finally:
            self._num_requests -= 1

    async def _connect(self, data: bytes, start: float, limit: TimeLimit) -> aiohttp.ClientResponse:
        """limit: of the time until the status arrives; without a stream that is the end of the answer."""
        seconds = self._config.first_token_timeout if limit == "llm_first_token_timeout" else self._config.timeout
        headers = {"content-type": "application/json"}

        async def send() -> aiohttp.ClientResponse:
            try:
                async with asyncio.timeout_at(start + seconds):
                    return await self._session.post(self._url, data=data, headers=headers, allow_redirects=False)
            except aiohttp.ClientConnectorError:
                if self._config.is_supervised:
                    raise ThinkerStarting(STARTING_RETRY_AFTER) from None
                raise

        try:
            return await send_with_retry(send, "llm")
        except aiohttp.ConnectionTimeoutError:
            raise self._timeout("llm_connect_timeout") from None
        except TimeoutError:
            raise self._timeout(limit) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ThinkerFailed(f"The LLM cannot be reached: {describe_failure(error)}.") from None

    async def _rejection(self, response: aiohttp.ClientResponse) -> Exception:
        """The error for a status other than 200."""
        try:
            async with asyncio.timeout(self._config.token_timeout):
                message, param = await read_error(response, self._config.key)
        except TimeoutError:
            message, param = "", None
        if response.status in KEY_STATUSES:  # the message is about the server's key, not for its clients
            log.warning("llm key rejected", extra={"status": response.status, "error": message})
            return ThinkerFailed(f"The LLM rejected the server's key with status {response.status}: check llm_key.")
        if response.status in OVERLOAD_STATUSES:
            return ThinkerOverloaded(
                with_reason("The LLM is overloaded", message), retry_after(response), response.status
            )
        if response.status in CLIENT_STATUSES:
            return ThinkerRejected(response.status, with_reason("The LLM rejected the request", message), param)
        return ThinkerFailed(with_reason(f"The LLM answered with status {response.status}", message))

    def _timeout(self, limit: TimeLimit) -> ThinkerTimeout:
        config = self._config
        what, seconds = {
            "llm_connect_timeout": ("The connection to the LLM took longer than", config.connect_timeout),
            "llm_first_token_timeout": ("The LLM sent no token for", config.first_token_timeout),
            "llm_token_timeout": ("The LLM sent nothing for", config.token_timeout),
            "llm_timeout": ("The LLM's answer took longer than", config.timeout),
        }[limit]
        return ThinkerTimeout(f"{what} {seconds:g} s", limit)


_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    function: _Function | None = None


class _DeltaFields(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    """The fields of a choice that are read. All others are passed on."""

    delta: _DeltaFields | None = None
    finish_reason: str | None = None
    logprobs: dict[str, list[Any] | None] | None = None


class AnswerReader:
    """Turns the chunks of one streamed chat completion into events.

    The End follows `[DONE]`, after the usage. Some servers close the response without it: then call `end`.
    """

    def __init__(self, with_ids: bool) -> None:
        self._with_ids = with_ids
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._has_prompt = False
        self.started = False  # a delta has arrived

    def read(self, data: bytes) -> list[ThinkerEvent]:
        """The events of one chunk; raises ThinkerFailed if it is not one."""
        if data.strip() == DONE:
            return [self.end()]
        try:
            chunk = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _invalid(data) from None
        if not isinstance(chunk, dict):
            raise _invalid(data)
        if chunk.get("error"):
            message, _ = parse_error(data)
            raise ThinkerFailed(with_reason("The LLM failed", message))
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise _invalid(data)
        events: list[ThinkerEvent] = []
        for choice in choices:
            events += self._read_choice(chunk, choice, data)
        return events

    def end(self) -> End:
        """The end of the answer; raises ThinkerFailed if its finish reason has not arrived."""
        if self._finish_reason is None:
            raise ThinkerFailed("The LLM ended its answer without a finish reason.")
        return End(self._finish_reason, self._usage)

    def _read_choice(self, chunk: dict[str, Any], choice: dict[str, Any], data: bytes) -> list[ThinkerEvent]:
        try:
            checked = msgspec.convert(choice, _Choice)
        except msgspec.ValidationError:
            raise _invalid(data) from None
        delta, text = choice.get("delta") or {}, checked.delta.content if checked.delta else None
        events: list[ThinkerEvent] = []
        if self._with_ids and not self._has_prompt:
            events.append(_read_prompt({**choice, **chunk}, data))
            self._has_prompt = True
        ids = _ids(choice.get("token_ids") or [], data) if self._with_ids else ()
        if checked.finish_reason is not None:
            self._finish_reason = checked.finish_reason
            if self._finish_reason == "length":
                ids = ids[:-1]  # the reference implementation does not speak the token at which it is cut
        kept = {key: value for key, value in choice.items() if key not in ID_KEYS}
        whole = {key: value for key, value in chunk.items() if key not in (*ID_KEYS, "usage")}
        if ids or delta or choice.get("logprobs"):
            self.started = self.started or bool(ids or text or delta.keys() - {"role", "content"})
            shown = {**whole, "choices": [{**kept, "delta": delta, "finish_reason": None}]}
            events.append(Delta(text or "", ids, shown))
        return events


def _encode(body: ChatBody) -> bytes:
    """JSON. msgspec encodes a long recording in a sixth of the time, but not all that a client may send."""
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, OverflowError):  # lone surrogates, integers of more than 64 bits
        return json.dumps(body).encode()


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Reads what follows the answer, so that the connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(END_TIMEOUT):
            while await response.content.readany():
                pass


def _read_prompt(fields: dict[str, Any], data: bytes) -> ThinkerPrompt:
    """vLLM and SGLang return the ids; `polyvox think` returns hidden states and positions too."""
    arrays = [_array(fields.get(name), data) for name in ("prompt_media_rows", "prompt_positions")]
    return ThinkerPrompt(_ids(fields.get("prompt_token_ids"), data), *arrays)


def _array(value: Any, data: bytes) -> NDArray[np.float32] | None:
    if value is None:
        return None
    try:
        flat = np.frombuffer(base64.b64decode(value["data"], validate=True), "<f4")
        return flat.reshape(value["shape"]).astype(np.float32)
    except (KeyError, TypeError, ValueError):
        raise _invalid(data) from None


def _ids(value: object, data: bytes) -> tuple[int, ...]:
    if value is None:
        hint = "Start vLLM or SGLang with a version that supports return_token_ids."
        raise ThinkerFailed(f"The LLM returns no token ids, which the model needs. {hint}")
    try:
        return msgspec.convert(value, tuple[_TokenId, ...])
    except msgspec.ValidationError:
        raise _invalid(data) from None


def _invalid(data: bytes) -> ThinkerFailed:
    return ThinkerFailed(f"The LLM sent invalid data: {shorten(data.decode(errors='replace'))}.")
