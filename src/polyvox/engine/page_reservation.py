# SPDX-License-Identifier: Apache-2.0
"""How many KV pages a stream gets on admission, and the shared reserve of streams that are longer than expected.

A stream gets the pages of its prompt and of as many frames as all but one in a thousand of the recent streams of its
language needed for their text. One that needs more gets more while it runs, from pages that admission leaves free: as
many as the streams with the most left could still need, of which it counts as many as exceed their pages at once with a
probability above one in a million. No tensors.
"""

from collections import defaultdict
from functools import lru_cache
from math import ceil, exp
from typing import Generic

import numpy as np

from polyvox.engine.stream_arrays import Ints, StreamArrays
from polyvox.engine.stream_state import MAX_FRAMES_PER_STEP, S, StreamState

# Frames that are reserved until enough streams have ended: speech takes about 0.9 per byte of text.
INITIAL_FRAMES, INITIAL_FRAMES_PER_BYTE = 63, 2
# Bytes that are expected to follow open text: servers send it by sentences, which rarely have twice as many.
OPEN_TEXT_BYTES = 200
LONGER_SHARE = 0.001  # of the streams that are longer than what is reserved
# Weight of the initial figure: after 3 / LONGER_SHARE streams without a longer one, at most LONGER_SHARE of all are
# longer with a confidence of 95 %.
INITIAL_WEIGHT = 3
EXCEEDED_PROBABILITY = 1e-6  # that more streams are longer at once than the reserve has pages for
NUM_BINS, BINS_PER_UNIT = 128, 32  # of the histogram of lengths, relative to the initial figure
MAX_STREAMS = 20_000  # that a histogram remembers; then the older ones count half
# Frames that are reserved beyond the expected ones, because pages must be there before a step and the end is known one
# step late: a stream of the expected length takes nothing of the shared reserve.
FRAMES_AHEAD = 2 * MAX_FRAMES_PER_STEP
PAGES_AT_ONCE = 4  # that a longer stream gets


class LengthQuantile:
    """The length that all but LONGER_SHARE of the streams do not exceed, relative to the initial figure."""

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_BINS)
        self._value: float | None = None

    def add(self, length: float) -> None:
        self._counts[min(max(ceil(length * BINS_PER_UNIT) - 1, 0), NUM_BINS - 1)] += 1
        if self._counts.sum() > MAX_STREAMS:
            self._counts /= 2
        self._value = None

    @property
    def value(self) -> float:
        """The upper end of a bin."""
        if self._value is None:
            counts = self._counts.copy()
            counts[BINS_PER_UNIT - 1] += INITIAL_WEIGHT
            longer = counts.sum() - np.cumsum(counts)
            self._value = float(np.argmax(longer <= LONGER_SHARE * counts.sum()) + 1) / BINS_PER_UNIT
        return self._value


class PageReservation(Generic[S]):
    """Frames to reserve for a stream, learned from those that have ended, by language and kind of text."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        # By language, whether more text is to arrive, and whether it is a whole answer
        self._lengths: defaultdict[tuple[str, bool, bool], LengthQuantile] = defaultdict(LengthQuantile)

    def pages_for(self, stream: S, num_frames: int) -> int:
        """Pages of prompt, frames, and one frame launched before the end is known."""
        return -(-(stream.prompt_rows + num_frames + 1) // self._page_size)

    def frames(self, stream: S, text_is_open: bool) -> int:
        """Frames to reserve: those that a stream is expected not to exceed, and FRAMES_AHEAD.

        text_is_open: more text will arrive.
        """
        expected = ceil(self._quantile(stream, text_is_open).value * _initial_frames(stream, text_is_open))
        return min(expected + FRAMES_AHEAD, stream.max_frames)

    def on_admitted(self, stream: S, num_pages: int) -> None:
        """Records what the stream got, and what its length will be compared with."""
        stream.paged_frames = self.frames_in(stream, num_pages)
        stream.admitted_open = stream.text_is_open
        stream.initial_frames = _initial_frames(stream, stream.text_is_open)

    def frames_in(self, stream: S, num_pages: int) -> int:
        """Frames for which this many pages suffice."""
        return num_pages * self._page_size - stream.prompt_rows - 1

    def learn(self, stream: S) -> None:
        """Learns from the length of a stream that has ended by itself or because its pages did not suffice."""
        initial = stream.initial_frames
        if stream.generated >= stream.max_frames and stream.max_frames < initial and not stream.out_of_pages:
            return  # the request's own limit: how long it would have been is unknown
        self._quantile(stream, stream.admitted_open).add(stream.generated / initial)

    def _quantile(self, stream: S, text_is_open: bool) -> LengthQuantile:
        language = stream.language.lower()  # a request may write it in any case
        return self._lengths[language, text_is_open, stream.is_answer]

    def shared_reserve(self, arrays: StreamArrays, admitted: int = 0) -> int:
        """Pages that must stay free for the streams that hold slots.

        admitted: pages that one more stream would need beyond those it gets; 0: no further stream.
        """
        active = arrays.active & ~arrays.ended
        missing: Ints = -(-(arrays.max_frames - arrays.paged_frames)[active] // self._page_size)
        missing = np.maximum(np.append(missing, admitted), 0)
        num_longer = max_longer(len(missing))
        if num_longer >= len(missing):
            return int(missing.sum())
        return int(np.partition(missing, -num_longer)[-num_longer:].sum())


@lru_cache(maxsize=4096)
def max_longer(num_streams: int) -> int:
    """Streams of num_streams that may be longer than reserved at once; more are with EXCEEDED_PROBABILITY (Poisson)."""
    mean, count = LONGER_SHARE * num_streams, 0
    probability = exp(-mean)  # of `count` streams
    more = 1 - probability
    while more > EXCEEDED_PROBABILITY and count < num_streams:
        count += 1
        probability *= mean / count
        more -= probability
    return max(count, min(1, num_streams))


def _initial_frames(stream: StreamState, text_is_open: bool) -> int:
    """Frames to reserve before anything was learned: by the text, with more if some will arrive; all for an answer."""
    if text_is_open and stream.is_answer:
        return stream.max_frames
    num_bytes = stream.text_bytes + (OPEN_TEXT_BYTES if text_is_open else 0)
    frames = INITIAL_FRAMES + INITIAL_FRAMES_PER_BYTE * num_bytes
    return min(frames, stream.max_frames) if text_is_open else frames
