# SPDX-License-Identifier: Apache-2.0
"""An LLM that follows a script, as a real HTTP server with OpenAI's streaming chat completions."""

import argparse
import asyncio
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from server.scripted_server import Action, ScriptedServer, started

MODEL = "scripted-1"
PROMPT_TOKENS = 7


# Text; a delta; bytes that are sent as they are; a pause in seconds; or an action.
Step = str | dict[str, Any] | bytes | float | Action


@dataclass(slots=True)
class Script:
    """finish_reason None: the answer has no end. ids: tokens are sent as if `return_token_ids` was understood."""

    steps: Sequence[Step] = ("Hello", " there", ". How are", " you?")
    status: int = 200
    error: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    finish_reason: str | None = "stop"
    with_usage: bool = True
    rate: float = 0.0  # texts per second; 0 is without a limit
    prompt_ids: Sequence[int] = ()
    ids: Sequence[Sequence[int]] = ()  # of each text
    after_tool: "Script | None" = None  # the answer to a tool's result


class ScriptedLLM(ScriptedServer):
    """Records requests."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__()
        self.script = script or Script()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def reset(self) -> None:
        """The default script; forgets all requests."""
        super().reset()
        self.script = Script()
        self.requests.clear()
        self.headers.clear()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self._record_connection(request)
        script = self.script
        if script.after_tool is not None and body["messages"][-1]["role"] == "tool":
            script = script.after_tool
        if script.status != 200:
            return web.json_response(script.error, status=script.status, headers=script.headers)
        if not body.get("stream"):
            for step in script.steps:
                await asyncio.sleep(step if isinstance(step, float) else 0)
            return web.json_response(_completion(script))
        with self._recorded():
            return await self._stream(request, body, script)

    async def _stream(self, request: web.Request, body: dict[str, Any], script: Script) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        first: dict[str, Any] = {"prompt_token_ids": list(script.prompt_ids)} if script.prompt_ids else {}
        if script.steps[:1] != [Action.SILENCE]:
            await response.write(_event({"role": "assistant", "content": ""}, **first))
        assert self._released is not None
        start, num_texts = self._loop.time(), 0
        for step in script.steps:
            match step:
                case str():
                    if script.rate:
                        await asyncio.sleep(start + num_texts / script.rate - self._loop.time())
                    ids = {"token_ids": list(script.ids[num_texts])} if script.ids else {}
                    await response.write(_event({"content": step}, choice=ids))
                    num_texts += 1
                case dict():
                    await response.write(_event(step))
                case bytes():
                    await response.write(step)
                case Action.WAIT:
                    await self._released.wait()
                case Action.DISCONNECT:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                case float():
                    await asyncio.sleep(step)
        if script.finish_reason is not None:
            await response.write(_event({}, choice={"finish_reason": script.finish_reason}))
            if script.with_usage and (body.get("stream_options") or {}).get("include_usage"):
                await response.write(_event(None, usage=_usage(num_texts)))
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _event(delta: dict[str, Any] | None, choice: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None, **(choice or {})}]
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return b"data: " + json.dumps({**frame, "choices": choices, **fields}).encode() + b"\n\n"


def _usage(num_tokens: int) -> dict[str, int]:
    total = PROMPT_TOKENS + num_tokens
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": num_tokens, "total_tokens": total}


def _completion(script: Script) -> dict[str, Any]:
    text = "".join(step for step in script.steps if isinstance(step, str))
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": script.finish_reason}
    frame = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return {**frame, "choices": [choice], "usage": _usage(len(script.steps))}


@contextmanager
def scripted_llm(script: Script | None = None) -> Iterator[ScriptedLLM]:
    with started(ScriptedLLM(script)) as llm:
        yield llm


def split_tokens(text: str) -> list[str]:
    """The text in pieces of about the length of an LLM's tokens."""
    return re.findall(r"\s*\S{1,5}", text)


def main() -> None:
    """Serves one answer at a fixed rate until it is interrupted; prints its URL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--rate", type=float, default=75.0)
    options = parser.parse_args()
    with scripted_llm(Script(split_tokens(options.text), rate=options.rate)) as llm:
        print(llm.url, flush=True)  # noqa: T201
        threading.Event().wait()


if __name__ == "__main__":
    main()
