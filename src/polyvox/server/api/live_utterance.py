# SPDX-License-Identifier: Apache-2.0
"""An utterance of a connection whose text arrives in fragments: it accepts text while it is synthesised."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.app_state import AppState
from polyvox.server.middleware.limits import ConcurrencyLimiter
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.reader import ReaderTimer
from polyvox.server.synthesis.timestamps import TimestampGranularity
from polyvox.server.synthesis.utterance import Utterance, UtteranceEvent


class SpeechConnection(Protocol):
    """What an utterance needs of its connection."""

    @property
    def state(self) -> AppState: ...

    @property
    def limiter(self) -> ConcurrencyLimiter | None: ...


class LiveUtterance:
    """One utterance of a connection. It accepts text at once and is submitted when there is something to say.

    complete_text: submit it only when all of its text has arrived.
    """

    def __init__(
        self, connection: SpeechConnection, options: SynthesisOptions, request_id: str, complete_text: bool = False
    ) -> None:
        self._connection, self._options = connection, options
        self.request_id, self._complete_text = request_id, complete_text
        # Text, or None for a flush; bounded by max_text_chars.
        self._inputs: asyncio.Queue[str | None] = asyncio.Queue()
        self._texts: list[str] = []
        self._num_chars = 0
        self._can_start, self.text_ended = asyncio.Event(), asyncio.Event()
        self._cancelled = asyncio.Event()
        self.finished = False
        self._is_blank = True  # nothing to say so far
        self.flushed = True  # no text since the last flush
        self.failed = False  # nothing more will be synthesised
        self.utterance: Utterance | None = None
        self.reader = ReaderTimer(connection.state.settings.reader_timeout)

    @property
    def playing_seconds(self) -> float:
        """Playing time of the audio so far."""
        return 0.0 if self.utterance is None else self.utterance.playing_seconds

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def separate_files(self) -> bool:
        return self._options.separate_files

    @property
    def timestamps(self) -> tuple[TimestampGranularity, ...]:
        return self._options.timestamps

    @property
    def format(self) -> str:
        return self._options.format

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        return self._options.ignored_fields

    @property
    def notice(self) -> str | None:
        """For the client: what was done with the recording of the session."""
        return self._options.notice

    @property
    def sample_rate(self) -> int | None:
        return None if self.utterance is None else self.utterance.sample_rate

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @property
    def busy(self) -> bool:
        """Whether something is being synthesised or is about to be."""
        if not self._can_start.is_set() or self.cancelled or self.failed:
            return False
        return self.utterance is None or not self.utterance.awaiting_text or not self._inputs.empty()

    @property
    def interrupted(self) -> bool:
        """Whether the synthesis was cancelled, but not by the client's request."""
        return self.utterance is not None and self.utterance.record.finish_reason == "cancelled" and not self.cancelled

    def append(self, text: str) -> None:
        """More text; raises InvalidRequest if it is too long or the text has ended."""
        if self.finished and text:
            raise InvalidRequest("text", text, "the utterance has already ended")
        limit = self._connection.state.settings.max_text_chars
        if self._num_chars + len(text) > limit:
            raise InvalidRequest("text", text, f"must have at most {limit:,} characters per utterance")
        if not text:
            return
        self._num_chars += len(text)
        self._texts.append(text)
        self._inputs.put_nowait(text)
        if text.strip():
            self.flushed = self._is_blank = False
            if not self._complete_text:
                self._can_start.set()

    def flush(self) -> None:
        """Ends the current segment."""
        if not self.flushed:
            self._inputs.put_nowait(None)
            self.flushed = True

    def finish(self) -> None:
        """Marks the text as complete. Idempotent."""
        if not self.finished:
            self.finished = True
            self._inputs.put_nowait("")
            self._can_start.set()
            self.text_ended.set()

    def cancel(self) -> None:
        """Ends the utterance at once. Idempotent."""
        self._cancelled.set()
        self._can_start.set()
        self.text_ended.set()
        if self.utterance is not None:
            self.utterance.cancel()

    async def events(self) -> AsyncGenerator[UtteranceEvent]:
        """As `Utterance.events`; raises Overloaded too if the utterance is rejected."""
        await self._can_start.wait()
        if self._is_blank or self._cancelled.is_set():
            return
        assert self._connection.limiter is not None, "not authenticated"
        async with self._connection.limiter.request():
            owner = self._connection.limiter.caller.key
            self.utterance = await self._connection.state.synthesis.start(self._options, self.request_id, owner)
            if self._cancelled.is_set():
                self.utterance.cancel()
            appending = asyncio.create_task(self._append_text(self.utterance))
            try:
                async with aclosing(self.utterance.events()) as events:
                    async for event in events:
                        yield event
            finally:
                appending.cancel()
                await asyncio.gather(appending, return_exceptions=True)
            if not appending.cancelled() and (error := appending.exception()) is not None:
                raise error

    async def _append_text(self, utterance: Utterance) -> None:
        try:
            while not (self.finished and self._inputs.empty()):
                text = await self._inputs.get()
                if text is None:
                    utterance.flush()
                else:
                    await utterance.append_long(text)
                await asyncio.sleep(0)  # the queue may have many texts
            utterance.finish()
        except Exception:
            utterance.cancel()
            raise

    def record_failure(self, error: PolyvoxError) -> None:
        """Counts a failure: rejected if nothing was synthesised, otherwise aborted."""
        self.failed = True
        state = self._connection.state
        if self.utterance is None or self.utterance.record.finish_reason is None:
            state.record_rejected(error, self.request_id)
        else:
            state.metrics.aborts.labels("error").inc()
