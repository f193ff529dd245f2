# SPDX-License-Identifier: Apache-2.0
"""One answer of a thinker and its speech: text and audio in the order in which they arrive."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from polyvox.errors import PolyvoxError
from polyvox.models.request import ThinkerPrompt
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.utterance import Utterance
from polyvox.thinkers.interface import ChatBody, Delta, End, Thinker

MAX_QUEUED = 32  # deltas and audio that the client has not read; then the LLM and the engine wait
APPEND_CHARS = 1000  # characters that are normalised at once, so that a long text does not block the event loop

AnswerEvent = Delta | bytes | SpooledFile | End
Put = Callable[[AnswerEvent], Awaitable[None]]


class SpokenAnswer:
    """Reads a thinker and the audio of an utterance at once: speech begins while the thinker writes.

    The text of the deltas is appended to the utterance; by_tokens: their tokens, after the prompt. An answer of more
    than max_chars characters is cut, and its finish_reason is "length". The End follows when both the text and the
    audio have ended.
    """

    def __init__(self, thinker: Thinker, body: ChatBody, utterance: Utterance, max_chars: int, by_tokens: bool) -> None:
        self._thinker, self._body, self._utterance, self._by_tokens = thinker, body, utterance, by_tokens
        self._max_chars, self._num_chars = max_chars, 0
        self._start_time = time.monotonic()
        self._end: End | None = None
        self.first_token: float | None = None  # seconds until the first text
        self.lacks_media = False  # the prompt has audio or images whose hidden states the thinker does not return

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Raises the first error of the thinker or the utterance; leaving the iteration cancels both."""
        queue: asyncio.Queue[AnswerEvent | Exception | None] = asyncio.Queue(MAX_QUEUED)
        tasks = [asyncio.create_task(_run(produce, queue)) for produce in (self._think, self._speak)]
        try:
            num_running = len(tasks)
            while num_running:
                item = await queue.get()
                if item is None:
                    num_running -= 1
                elif isinstance(item, Exception):
                    if isinstance(item, PolyvoxError):
                        self._utterance.failure = str(item)
                    try:
                        raise item
                    finally:
                        del item  # its traceback refers to this frame
                else:
                    yield item
            assert self._end is not None
            yield self._end
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._utterance.close()

    async def _think(self, put: Put) -> None:
        async with aclosing(self._thinker.answer(self._body, self._by_tokens)) as events:
            async for event in events:
                match event:
                    case ThinkerPrompt():
                        self.lacks_media = event.media_rows is None and _has_media(self._body)
                        self._utterance.start_answer(event)
                    case Delta():
                        delta = self._within_limit(event)
                        if self._by_tokens:
                            self._utterance.append_tokens(delta.ids)
                        else:
                            await self._append(delta)
                        await put(delta)
                        if self._num_chars > self._max_chars:
                            self._end = End("length")
                            break
                    case End():
                        self._end = event
        self._utterance.finish()

    async def _append(self, delta: Delta) -> None:
        if not delta.text and _calls_tool(delta):
            self._utterance.flush()  # no text may follow for long
        for start in range(0, len(delta.text), APPEND_CHARS):
            self._utterance.append(delta.text[start : start + APPEND_CHARS])
            if start:
                await asyncio.sleep(0)

    def _within_limit(self, delta: Delta) -> Delta:
        if (delta.text or delta.ids) and self.first_token is None:
            self.first_token = time.monotonic() - self._start_time
        kept = max(0, self._max_chars - self._num_chars)
        self._num_chars += len(delta.text)
        if self._num_chars <= self._max_chars:
            return delta
        text = delta.text[:kept]
        (choice,) = delta.chunk["choices"]
        cut = {**choice, "delta": {**choice["delta"], "content": text}}
        return Delta(text, delta.ids, {**delta.chunk, "choices": [cut]})

    async def _speak(self, put: Put) -> None:
        async with aclosing(self._utterance.events()) as events:
            async for event in events:
                if isinstance(event, bytes | SpooledFile):
                    await put(event)


async def _run(
    produce: Callable[[Put], Awaitable[None]], queue: "asyncio.Queue[AnswerEvent | Exception | None]"
) -> None:
    """Ends with None in the queue, or with the exception."""
    try:
        await produce(queue.put)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


def _calls_tool(delta: Delta) -> bool:
    return any(choice["delta"].get("tool_calls") for choice in delta.chunk["choices"])


def _has_media(body: ChatBody) -> bool:
    """Whether a message has parts that are not text."""
    contents = [message.get("content") for message in body["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, dict) and part.get("type") != "text" for part in parts)
