# SPDX-License-Identifier: Apache-2.0
"""The text of active streams on its way to their slots, and how many frames they may generate with it."""

import logging
from collections.abc import Iterable
from itertools import takewhile
from math import inf

from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_pages import StreamPages
from polyvox.engine.stream_table import StreamTable

log = logging.getLogger(__name__)

# A player without audio starts, or resumes after a wait for text, with the audio of this many tokens, so that words
# that arrive irregularly leave no gaps. A word takes several frames of speech, but a token is read with each frame.
MIN_START_TOKENS = 3
MAX_START_DELAY = 0.25  # seconds from the first of these tokens, if the others do not arrive


class SlotText:
    """Moves text from the streams' buffers to their slots, as far as these have space."""

    def __init__(self, runner: ModelRunner, streams: StreamTable[LocalStream], pages: StreamPages[LocalStream]) -> None:
        self._runner, self._streams, self._pages = runner, streams, pages
        self._pending: dict[LocalStream, None] = {}  # streams with text that is not in the slot yet
        # Streams whose player waits for MIN_START_TOKENS, and until when; in the order of these times.
        self._awaiting_tokens: dict[LocalStream, float] = {}

    def due(self, now: float) -> list[LocalStream]:
        """Streams that may continue though no text arrived: some is pending, or their wait for tokens is over."""
        expired = takewhile(lambda stream: self._awaiting_tokens[stream] <= now, self._awaiting_tokens)
        return [*self._pending, *expired]

    def next_deadline(self) -> float:
        """When the first wait for tokens is over; infinite if no stream waits."""
        return next(iter(self._awaiting_tokens.values()), inf)

    def discard(self, stream: LocalStream) -> None:
        """Forgets a stream that ends."""
        self._pending.pop(stream, None)
        self._awaiting_tokens.pop(stream, None)

    def write(self, streams: Iterable[LocalStream], now: float) -> list[tuple[LocalStream, str]]:
        """Moves as much text as possible to the slots of these streams; returns those that fail, with the error."""
        failed: list[tuple[LocalStream, str]] = []
        for stream in dict.fromkeys(streams):
            if stream.result is not None:
                continue
            try:
                if len(stream.text):
                    written = self._runner.write_text(stream.slot, stream.text_end, stream.text, stream.started)
                    stream.text_end += written
            except Exception as error:
                log.exception("text write failed stream=%d", stream.id)
                failed.append((stream, f"the text could not be read: {error}"))
                continue
            self._update_frames(stream, now)
        return failed

    def _update_frames(self, stream: LocalStream, now: float) -> None:
        """Updates the number of frames that have text."""
        pending = bool(len(stream.text))
        complete = not (stream.text_open or pending)
        if pending:
            self._pending[stream] = None
        else:
            self._pending.pop(stream, None)
        if complete and stream.text_frames < inf and stream.request.guard:
            self._limit_frames(stream)
        if complete or self._can_continue(stream, now):
            self._awaiting_tokens.pop(stream, None)
            stream.text_at = now if stream.text_at == -inf else stream.text_at
            stream.text_frames = inf if complete else stream.text_end
        if stream.text_deadline < inf and (stream.started < stream.text_frames or stream.ended):
            stream.text_deadline = inf
            self._streams.update_pause(stream, now)

    def _can_continue(self, stream: LocalStream, now: float) -> bool:
        """Whether the text in the slot is enough to generate frames; see MIN_START_TOKENS."""
        num_tokens = stream.text_end - stream.started
        if num_tokens >= MIN_START_TOKENS or stream.started < stream.text_frames or stream.lead(now) > 0:
            return True
        if not num_tokens:
            return False
        return now >= self._awaiting_tokens.setdefault(stream, now + MAX_START_DELAY)

    def _limit_frames(self, stream: LocalStream) -> None:
        """Lowers max_frames to what the complete text can need, and frees the pages beyond."""
        assert stream.allocation is not None
        max_frames = max(self._runner.close_text(stream.slot, stream.text_bytes), stream.started + 1)
        stream.guarded |= max_frames < stream.max_frames
        stream.out_of_pages &= max_frames >= stream.max_frames
        stream.max_frames = min(stream.max_frames, max_frames)
        self._runner.update_pages(stream.allocation, self._pages.shrink(stream))
