# SPDX-License-Identifier: Apache-2.0
"""The KV pages of streams: what they get on admission and while they run, and what is left for new streams.

page_reservation.py has the arithmetic, slots.py the record of free pages. No tensors, the clock an argument.
"""

from collections.abc import Sequence
from math import inf
from typing import Generic

import numpy as np

from polyvox.engine.load import SNAPSHOT_TTL, LoadModel
from polyvox.engine.page_reservation import FRAMES_AHEAD, PAGES_AT_ONCE, PageReservation
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_state import S
from polyvox.engine.stream_table import StreamTable


class StreamPages(Generic[S]):
    """Gives pages to streams; the shared reserve is left free for streams that are longer than expected."""

    def __init__(self, load: LoadModel[S], streams: StreamTable[S], ledger: SlotLedger) -> None:
        self._load, self._streams, self._ledger = load, streams, ledger
        self.reservation: PageReservation[S] = PageReservation(load.limits.page_size)
        self._reserve: tuple[float, int] = -inf, 0  # when the shared reserve was computed, and its size

    def max_for(self, stream: S) -> int:
        """Pages of the longest speech of a stream."""
        return self.reservation.pages_for(stream, stream.max_frames)

    def reserved_for(self, stream: S) -> int:
        """Pages that a stream gets on admission."""
        return self.reservation.pages_for(stream, self.reservation.frames(stream, stream.text_is_open))

    def num_free(self, now: float) -> int:
        """Pages for new streams: those that are free, less the shared reserve as it was within SNAPSHOT_TTL."""
        computed_at, reserve = self._reserve
        if not 0 <= now - computed_at < SNAPSHOT_TTL:
            reserve = self.reservation.shared_reserve(self._streams.used())
            self._reserve = now, reserve
        return max(0, len(self._ledger.free_pages) - reserve)

    def mean(self) -> float:
        """Pages of an active stream, or of a slot if none is active."""
        limits, num_active = self._load.limits, len(self._streams.active)
        num_pages = limits.num_pages - len(self._ledger.free_pages) if num_active else limits.num_pages
        return max(num_pages / (num_active or limits.num_slots), 1.0)

    def fits(self, stream: S, num_pages: int) -> bool:
        """Whether this many pages are free for a new stream beside the shared reserve, which then counts it too."""
        num_free = len(self._ledger.free_pages)
        if num_pages > num_free:
            return False
        missing = self.max_for(stream) - num_pages
        return num_pages + self.reservation.shared_reserve(self._streams.used(), missing) <= num_free

    def allocate(self, stream: S, num_pages: int) -> None:
        """Gives a stream its slot and this many pages."""
        stream.allocation = self._ledger.allocate(num_pages)
        self.reservation.on_admitted(stream, num_pages)
        self._reserve = -inf, 0

    def shrink(self, stream: S) -> Sequence[int]:
        """Frees the pages that a stream is not expected to need now that its text is complete, and returns them."""
        assert stream.allocation is not None
        expected = max(self.reservation.frames(stream, text_is_open=False), stream.started + FRAMES_AHEAD)
        num_pages = self.reservation.pages_for(stream, min(expected, stream.max_frames))
        freed = self._ledger.shrink(stream.allocation, num_pages)
        stream.paged_frames = self.reservation.frames_in(stream, len(stream.allocation.pages))
        return freed

    def grow(self) -> tuple[list[S], list[S]]:
        """Gives pages to streams that are longer than expected, before a step needs them.

        Returns those that got pages and those that got none: they end when they have used theirs, so that no stream
        waits for a page.
        """
        arrays, max_frames_per_step = self._streams.used(), self._load.limits.max_frames_per_step
        # A step may use all of these frames; what is left after it is at least one, so that a stream that gets no page
        # has a frame left, after which it ends.
        short = arrays.paged_frames - arrays.started <= max_frames_per_step
        short &= arrays.active & ~arrays.ended & (arrays.paged_frames < arrays.max_frames)
        grown: list[S] = []
        out_of_pages: list[S] = []
        for stream in self._streams.at(np.flatnonzero(short)):
            assert stream.allocation is not None
            missing = self.max_for(stream) - len(stream.allocation.pages)
            num_pages = min(PAGES_AT_ONCE, missing, len(self._ledger.free_pages))
            if num_pages:
                self._ledger.grow(stream.allocation, num_pages)
                stream.paged_frames = self.reservation.frames_in(stream, len(stream.allocation.pages))
                grown.append(stream)
            else:
                stream.max_frames, stream.out_of_pages = stream.paged_frames, True
                out_of_pages.append(stream)
        return grown, out_of_pages
