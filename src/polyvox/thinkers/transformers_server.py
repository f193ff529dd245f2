# SPDX-License-Identifier: Apache-2.0
"""OpenAI's chat completions on a TransformersThinker, with the token ids and hidden states that a talker needs."""

import asyncio
import base64
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.models.request import ThinkerPrompt
from polyvox.thinkers.interface import ThinkerOverloaded
from polyvox.thinkers.transformers_thinker import GeneratedToken, TransformersThinker

MAX_WAITING = 8  # requests behind the running one
MAX_BODY_BYTES = 64_000_000
RETRY_SECONDS = 2.0
SHUTDOWN_TIMEOUT = 2.0  # seconds
WRITE_TIMEOUT = 60.0  # seconds for a client to read the next token: the others wait for the model
LLM_PATH = "/v1/chat/completions"


class TransformersServer:
    """One answer at a time, in a thread of its own; further requests wait in order."""

    def __init__(self, thinker: TransformersThinker, name: str) -> None:
        self._thinker, self._name = thinker, name
        self._turn, self._num_requests = asyncio.Lock(), 0
        self._thread = ThreadPoolExecutor(1, "polyvox-thinker")

    @asynccontextmanager
    async def listen(self, host: str, port: int) -> AsyncIterator[str]:
        """Serves until it is left; yields the URL for `llm`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(LLM_PATH, self._complete)
        runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_TIMEOUT, access_log=None, handle_signals=False
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield f"http://{host}:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = msgspec.json.decode(await request.read(), type=dict[str, Any])
            if not isinstance(body.get("messages"), list) or not body["messages"]:
                raise InvalidRequest("messages", body.get("messages"), "must have at least one message")
            if self._num_requests > MAX_WAITING:
                raise ThinkerOverloaded(f"{self._num_requests} requests are waiting.", RETRY_SECONDS)
            self._num_requests += 1
            try:
                async with self._turn:
                    return await self._answer(request, body)
            finally:
                self._num_requests -= 1
        except msgspec.DecodeError as error:
            return _error_response(400, f"The body must be a JSON object: {error}.")
        except PolyvoxError as error:
            return _error_response(error.status, str(error), getattr(error, "field", None))

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        loop, cancelled = asyncio.get_running_loop(), threading.Event()
        events: asyncio.Queue[ThinkerPrompt | GeneratedToken | None] = asyncio.Queue()  # bounded by max_tokens

        def post(event: ThinkerPrompt | GeneratedToken | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def generate() -> None:
            try:
                self._thinker.answer(body, post, post, cancelled.is_set)
            finally:
                post(None)

        generating = loop.run_in_executor(self._thread, generate)
        try:
            answer = _Answer(self._name, body)
            first = await events.get()
            if first is None:
                await generating  # raises its error
                raise PolyvoxError("The model generated nothing.")
            if not body.get("stream"):
                return web.json_response(await answer.collect(first, events))
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            event: ThinkerPrompt | GeneratedToken | None = first
            while event is not None:
                await _write(request, response, answer.chunk(event))
                event = await events.get()
            await generating
            await _write(request, response, answer.end())
            return response
        finally:
            cancelled.set()
            await asyncio.shield(asyncio.gather(generating, return_exceptions=True))  # the next one needs the model


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Resets the connection of a client that does not read."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(f"the client read nothing for {WRITE_TIMEOUT:g} s") from None


class _Answer:
    """The JSON of one answer."""

    def __init__(self, model: str, body: dict[str, Any]) -> None:
        self._with_ids = bool(body.get("return_token_ids"))
        options = body.get("stream_options")
        self._with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._frame = {"id": f"chatcmpl-{time.time_ns():x}", "created": int(time.time()), "model": model}
        self._num_prompt = self._num_tokens = 0

    def chunk(self, event: ThinkerPrompt | GeneratedToken) -> bytes:
        if isinstance(event, ThinkerPrompt):
            self._num_prompt = len(event.ids)
            fields: dict[str, Any] = _prompt_fields(event) if self._with_ids else {}
            return self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}}], fields)
        self._num_tokens += 1
        ids = {"token_ids": [event.id]} if self._with_ids else {}
        delta = {"content": event.text} if event.text else {}
        return self._event([{"index": 0, "delta": delta, "finish_reason": event.finish_reason, **ids}], {})

    def end(self) -> bytes:
        usage = self._event([], {"usage": self._usage()}) if self._with_usage else b""
        return usage + b"data: [DONE]\n\n"

    async def collect(
        self, first: ThinkerPrompt | GeneratedToken, events: "asyncio.Queue[ThinkerPrompt | GeneratedToken | None]"
    ) -> dict[str, Any]:
        """A whole completion."""
        text, reason = "", "stop"
        event: ThinkerPrompt | GeneratedToken | None = first
        while event is not None:
            self.chunk(event)
            if isinstance(event, GeneratedToken):
                text, reason = text + event.text, event.finish_reason or reason
            event = await events.get()
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return {**self._frame, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        total = self._num_prompt + self._num_tokens
        return {"prompt_tokens": self._num_prompt, "completion_tokens": self._num_tokens, "total_tokens": total}

    def _event(self, choices: list[dict[str, Any]], fields: dict[str, Any]) -> bytes:
        chunk = {**self._frame, "object": "chat.completion.chunk", "choices": choices, **fields}
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _prompt_fields(prompt: ThinkerPrompt) -> dict[str, Any]:
    """The prompt as AnswerReader reads it: arrays are float32 in base64, row by row."""
    fields: dict[str, Any] = {"prompt_token_ids": list(prompt.ids)}
    for name, array in (("prompt_media_rows", prompt.media_rows), ("prompt_positions", prompt.positions)):
        if array is not None:
            data = base64.b64encode(array.astype("<f4").tobytes()).decode()
            fields[name] = {"shape": list(array.shape), "data": data}
    return fields


def _error_response(status: int, message: str, param: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "param": param, "code": "llm_error"}}, status=status)
