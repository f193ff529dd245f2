# SPDX-License-Identifier: Apache-2.0
"""The gaps between the chunks of an utterance, and the lead of its player."""

from collections.abc import Callable

OnChunk = Callable[[float, float], None]  # the gap before a chunk and the lead at its arrival, in seconds


class ChunkTiming:
    """Reports each chunk but the first. The player starts with the first chunk, and waits while it has no audio."""

    def __init__(self, on_chunk: OnChunk) -> None:
        self._on_chunk = on_chunk
        self._sent_at: float | None = None  # of the last chunk; None if the next gap does not count
        self._plays_until = self._playing_seconds = 0.0

    def on_ready(self, playing_seconds: float, now: float) -> None:
        """A chunk is ready. playing_seconds: playing time of all audio so far."""
        if self._sent_at is not None:
            self._on_chunk(now - self._sent_at, max(0.0, self._plays_until - now))
        self._plays_until = max(self._plays_until, now) + playing_seconds - self._playing_seconds
        self._playing_seconds = playing_seconds

    def on_sent(self, now: float) -> None:
        """The chunk is sent: the time that the client took is not part of the gap."""
        self._sent_at = now

    def on_text_awaited(self) -> None:
        """The next chunk is late because its text was."""
        self._sent_at = None
