# SPDX-License-Identifier: Apache-2.0
"""The streams of an utterance, one per segment; the next one is submitted before the current one ends."""

import asyncio
import hashlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from polyvox.engine.interface import AsyncStream
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, PolyvoxError
from polyvox.models.request import Request
from polyvox.server.logs import without_texts
from polyvox.server.request_log import RequestRecord
from polyvox.server.synthesis.first_packet import FirstPacketTimer
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.segments import Segment, SegmentQueue, StreamingSegment, StreamingTokens
from polyvox.server.synthesis.utterance_trace import UtteranceTrace

if TYPE_CHECKING:
    from polyvox.server.synthesis.service import SynthesisService

log = logging.getLogger(__name__)

RETRY_INTERVAL = 0.2  # seconds between submissions of a later segment that was rejected


class SegmentStreams:
    """Submits segments in order; `current` is the stream that is read, and at most one more is submitted ahead.

    request: what all segments have in common.
    """

    def __init__(
        self,
        service: "SynthesisService",
        options: SynthesisOptions,
        record: RequestRecord,
        segments: SegmentQueue,
        request: Request,
        trace: UtteranceTrace,
    ) -> None:
        self._service, self._options, self._segments, self._trace = service, options, segments, trace
        self._request_id = record.request_id
        self._request = replace(request, owner=record.owner)
        self.first_packet = FirstPacketTimer(options.live)
        self.num_submitted = 0
        self.current: AsyncStream | None = None
        self._next: tuple[Segment, asyncio.Task[AsyncStream]] | None = None
        self._appending: asyncio.Task[None] | None = None  # text of a streaming segment
        self._prechecked = False  # the engine had capacity before there was any text

    @property
    def has_next(self) -> bool:
        """Whether a segment is submitted ahead."""
        return self._next is not None

    async def precheck(self, content: object) -> None:
        """Raises Overloaded if the engine would reject a live utterance now, before there is any text.

        content: equal when the client sends the request again. After the check the first segment is retried like a
        later one: the client has been promised an answer.
        """
        self._request = replace(self._request, fingerprint=_hash(content))
        try:
            trial = await self._service.submit(replace(self._request, live=True, layout="streaming"))
            trial.cancel()
        except InvalidRequest as error:  # the engine checks its capacity first; a model may speak by tokens only
            if not (self._service.info.takes_conversations and error.field == "text"):
                raise
        self._prechecked = True

    async def submit_first(self) -> None:
        """Submits the first segment, if its text is known; raises if it is rejected."""
        self.submit_ready()
        if self._next is not None:
            await asyncio.shield(self._next[1])

    def submit_ready(self) -> None:
        """Submits the next segment, if its text is known."""
        if (segment := self._segments.next_ready()) is not None:
            self.submit(segment)

    def submit(self, segment: Segment) -> None:
        self._next = segment, asyncio.create_task(self._submit(segment))

    async def advance(self) -> Segment:
        """Makes the submitted segment the current one, once the engine has accepted it."""
        assert self._next is not None
        segment, task = self._next
        self.current = await task
        self._next = None
        if segment.streaming is not None:
            self._appending = asyncio.create_task(self._append_text(self.current, segment.streaming))
        return segment

    def cancel(self) -> None:
        """Ends the current stream and the submission of the next one. Idempotent."""
        if self.current is not None:
            self.current.cancel()
        if self._next is not None:
            self._next[1].cancel()

    def close(self) -> None:
        """As `cancel`, also for a stream that the engine accepts meanwhile. Idempotent."""
        self.cancel()
        if self._appending is not None:
            self._appending.cancel()
        if self._next is not None:
            self._next[1].add_done_callback(_cancel_stream)
        self._next = self._appending = None  # their tracebacks refer to this object

    async def _append_text(self, stream: AsyncStream, segment: StreamingSegment | StreamingTokens) -> None:
        """Forwards the remaining text or tokens of a streaming segment to its stream."""
        try:
            if isinstance(segment, StreamingTokens):
                async for ids in segment.remaining_ids():
                    stream.append_tokens(ids)
            else:
                async for text in segment.remaining_text():
                    stream.append(text)
            stream.finish_text()
        except PolyvoxError as error:  # the stream has ended; its result says why
            log.info("text rejected", extra={"request_id": self._request_id, "error": without_texts(str(error))})
            stream.cancel()

    async def _submit(self, segment: Segment) -> AsyncStream:
        """Submits a segment. A later segment is retried when the engine has no capacity."""
        request = self._next_request(segment)
        is_first, may_retry = request.segment == 0, request.segment > 0 or self._prechecked
        deadline = time.monotonic() + self._service.settings.max_queue_seconds
        while True:
            start = time.time()
            if is_first:
                self.first_packet.submitted_at = time.monotonic()
            try:
                stream = await self._service.submit(request)
                self._trace.on_submitted(stream, start)
                return stream
            except EngineDown:
                raise
            except Overloaded:
                if not may_retry or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_INTERVAL)

    def _next_request(self, segment: Segment) -> Request:
        request = replace(
            self._request,
            text=segment.text,
            segment=self.num_submitted,
            following_bytes=self._segments.num_ready_bytes,
        )
        self.num_submitted += 1
        if segment.voice is not None:
            request = replace(request, voice=segment.voice)
        if request.segment == 0 and not self._prechecked:
            request = replace(request, fingerprint=_fingerprint(self._options, segment.text))
        if segment.streaming is not None:
            request = replace(request, live=True, layout="streaming")
        if isinstance(segment.streaming, StreamingTokens):
            request = replace(request, thinker_prompt=segment.streaming.prompt)
        return request


def _fingerprint(options: SynthesisOptions, first_text: str) -> int:
    """The same in every server process when a client sends a request again."""
    voice = options.voice if isinstance(options.voice, str) else None
    content = (options.text, first_text, voice, options.language, options.instructions, options.seed, options.format)
    return _hash(content)


def _hash(content: object) -> int:
    digest = hashlib.blake2b(repr(content).encode(errors="surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") + 1


def _cancel_stream(job: "asyncio.Future[AsyncStream]") -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
