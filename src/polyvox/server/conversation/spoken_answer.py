# SPDX-License-Identifier: Apache-2.0
"""One answer of a thinker and its speech: text and audio in the order in which they arrive."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from polyvox.alignment import TimedText
from polyvox.errors import PolyvoxError
from polyvox.models.request import ThinkerPrompt
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.utterance import Utterance
from polyvox.thinkers.interface import ChatBody, Delta, End, Thinker

MAX_QUEUED = 32  # deltas and audio that the client has not read; then the LLM and the engine wait

AnswerEvent = Delta | TimedText | bytes | SpooledFile | End
Put = Callable[[AnswerEvent], Awaitable[None]]


class SpokenAnswer:
    """Reads a thinker and the audio of an utterance at once: speech begins while the thinker writes.

    utterance: None for an answer that is not spoken. The text of the deltas is appended to it; by_tokens: their tokens,
    after the prompt. With timestamps its TimedText comes before the audio. An answer of more than max_chars characters
    is cut, and its finish_reason is "length". The End follows when both the text and the audio have ended.
    """

    def __init__(
        self, thinker: Thinker, body: ChatBody, utterance: Utterance | None, max_chars: int, by_tokens: bool
    ) -> None:
        self._thinker, self._body, self._utterance = thinker, body, utterance
        self._by_tokens = by_tokens and utterance is not None
        self._max_chars, self._num_chars = max_chars, 0
        self._start_time = time.monotonic()
        self._end: End | None = None
        self._queue: asyncio.Queue[AnswerEvent | Exception | None] = asyncio.Queue(MAX_QUEUED)
        self._stopped = False
        self.first_token: float | None = None  # seconds until the first text
        self.lacks_media = False  # the prompt has audio or images whose hidden states the thinker does not return

    def stop(self) -> None:
        """Ends the events at once, without an End. Idempotent."""
        self._stopped = True
        if self._queue.empty():
            self._queue.put_nowait(None)

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Raises the first error of the thinker or the utterance; leaving the iteration cancels both."""
        queue = self._queue
        producers = [self._think] if self._utterance is None else [self._think, self._speak]
        tasks = [asyncio.create_task(_run(produce, queue)) for produce in producers]
        try:
            num_running = len(tasks)
            while num_running:
                item = await queue.get()
                if self._stopped:
                    return
                if item is None:
                    num_running -= 1
                elif isinstance(item, Exception):
                    if isinstance(item, PolyvoxError) and self._utterance is not None:
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
            if self._utterance is not None:
                await self._utterance.close()

    async def _think(self, put: Put) -> None:
        async with aclosing(self._thinker.answer(self._body, self._by_tokens)) as events:
            async for event in events:
                match event:
                    case ThinkerPrompt():
                        self.lacks_media = event.media_rows is None and _has_media(self._body)
                        if self._utterance is not None:
                            self._utterance.start_answer(event)
                    case Delta():
                        delta = self._within_limit(event)
                        if self._utterance is not None:
                            await self._append(delta, self._utterance)
                        await put(delta)
                        if self._num_chars > self._max_chars:
                            self._end = End("length")
                            break
                    case End():
                        self._end = event
        if self._utterance is not None:
            self._utterance.finish()

    async def _append(self, delta: Delta, utterance: Utterance) -> None:
        if self._by_tokens:
            utterance.append_tokens(delta.ids)
            return
        if not delta.text and _calls_tool(delta):
            utterance.flush()  # no text may follow for long
        await utterance.append_long(delta.text)

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
        assert self._utterance is not None
        async with aclosing(self._utterance.events()) as events:
            async for event in events:
                if isinstance(event, TimedText | bytes | SpooledFile):
                    await put(event)


async def start_utterance(
    synthesis: SynthesisService, options: SynthesisOptions, request_id: str, owner: str, body: ChatBody
) -> Utterance:
    """An utterance for an answer. Capacity is checked before the LLM is asked: a rejected request costs no tokens.

    Raises InvalidRequest or Overloaded.
    """
    utterance = await synthesis.start(options, request_id, owner)
    try:
        await utterance.precheck(_summary(body))
    except BaseException:
        await utterance.close()
        raise
    return utterance


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


def _summary(body: ChatBody) -> list[object]:
    """The last messages without their recordings and images, which would take long to hash."""
    contents = [message.get("content") for message in body["messages"][-2:]]
    return [
        content if isinstance(content, str) else len(content) if isinstance(content, list) else None
        for content in contents
    ]
