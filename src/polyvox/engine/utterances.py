# SPDX-License-Identifier: Apache-2.0
"""Utterances in progress: one for each client that is being served, however many streams its sentences are.

An utterance holds its share of the capacity from the admission of its first segment to the end of its last one, also
between two segments. What is left of it is estimated from its text.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import Generic

import numpy as np

from polyvox.engine.stream_arrays import Floats
from polyvox.engine.stream_state import S
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.stream_table import StreamTable

FRAMES_PER_BYTE = 0.9  # of text, until streams have ended
INITIAL_BYTES = 200  # weight of the initial figure
MEMORY_STREAMS = 50  # ended streams that the averages remember
# A stream longer than its text suggests is expected to last for this share of its estimated length, until some ended.
OVERRUN_SHARE = 0.15
INITIAL_OVERRUNS = 10  # weight of the initial figure
MIN_SPEED = 0.5  # audio seconds per second; slower utterances wait for their text or their reader
# Seconds for which the capacity of an utterance is kept when a segment has ended and the next one is still to come.
KEEP_SECONDS = 1.0
MIN_ROWS = 64  # of the arrays, which grow with the utterances


@dataclass(slots=True)
class Average:
    """A ratio of two sums in which older values decay."""

    numerator: float
    denominator: float

    def add(self, numerator: float, denominator: float) -> None:
        decay = 1 - 1 / MEMORY_STREAMS
        self.numerator = self.numerator * decay + numerator
        self.denominator = self.denominator * decay + denominator

    @property
    def value(self) -> float:
        return self.numerator / self.denominator if self.denominator > 0 else inf


@dataclass(slots=True, eq=False)
class UtteranceState(Generic[S]):
    """An utterance whose first segment was admitted."""

    row: int  # in the arrays of `UtteranceTable`
    live: bool
    owner: str
    measured_at: float  # since when the speed of its generation is not measured yet
    active: dict[S, None] = field(default_factory=dict)  # segments that hold a slot
    following: S | None = None  # the latest segment, queued or admitted
    following_bytes: int = 0  # of text in later segments
    kept_until: float = -inf
    played_until: float = -inf  # when the player has played all ended segments

    @property
    def is_stopping(self) -> bool:
        """Whether the end of all of its segments was requested."""
        segments = dict(self.active)
        if self.following is not None and self.following.status is StreamStatus.QUEUED:
            segments[self.following] = None
        return bool(segments) and all(segment.stopping for segment in segments)

    def will_continue(self, now: float) -> bool:
        """Whether an utterance without an active segment will continue."""
        return now < self.kept_until or (self.following is not None and self.following.status is StreamStatus.QUEUED)


class UtteranceTable(Generic[S]):
    """The utterances in progress, and averages over the streams that have ended."""

    def __init__(self, frame_seconds: float, streams: StreamTable[S]) -> None:
        self._frame_seconds, self._streams = frame_seconds, streams
        self._utterances: dict[int | S, UtteranceState[S]] = {}
        # What an estimate reads of all utterances at once, by row
        self._is_live, self._is_file = np.zeros(MIN_ROWS, np.bool_), np.zeros(MIN_ROWS, np.bool_)
        self._following_bytes = np.zeros(MIN_ROWS, np.int64)
        self._free_rows = list(range(MIN_ROWS))
        self._idle: dict[int | S, UtteranceState[S]] = {}  # those without an active segment
        # The last answer of `between_segments`, and what it holds for: the time, and the streams that had finished.
        self._between: tuple[tuple[float, int], tuple[int, int]] | None = None
        self.num_by_owner: Counter[str] = Counter()
        self.num_overlapping = 0  # live segments that run beside the one before them
        self._frames_per_byte = Average(FRAMES_PER_BYTE * INITIAL_BYTES, INITIAL_BYTES)
        # How much longer than estimated the streams were that were longer, as a share of the estimate.
        self._overrun = Average(OVERRUN_SHARE * INITIAL_OVERRUNS, INITIAL_OVERRUNS)
        # Ended streams show the length of the others only if as many have ended as were in progress at once: after a
        # burst, the short ones end first.
        self._num_ended, self._max_active = 0, 0
        # Audio seconds per second of an utterance, by live.
        self._speeds = {True: Average(0.0, 0.0), False: Average(0.0, 0.0)}

    def __contains__(self, utterance_id: int) -> bool:
        return utterance_id in self._utterances

    def get(self, stream: S) -> UtteranceState[S] | None:
        """The utterance of a stream, if it is in progress."""
        return self._utterances.get(_key(stream))

    def add_segment(self, stream: S) -> None:
        """Records a queued segment; the first one of an utterance counts only when it is admitted."""
        if (utterance := self.get(stream)) is not None:
            utterance.following, utterance.following_bytes = stream, stream.following_bytes
            self._following_bytes[utterance.row] = stream.following_bytes

    def admit(self, stream: S, now: float) -> None:
        """Records that a segment got a slot."""
        key = _key(stream)
        utterance = self._utterances.get(key)
        if utterance is None:
            row = self._take_row(stream.live)
            utterance = self._utterances[key] = UtteranceState(row, stream.live, stream.owner, now)
            self.num_by_owner[stream.owner] += 1
            self.add_segment(stream)
        stream.utterance_row = utterance.row
        if self._idle.pop(key, None) is not None:
            self._between = None
        utterance.kept_until = -inf
        if stream.live:
            stream.plays_at = utterance.played_until
            for before in utterance.active:
                if before.first_audio_at < inf:
                    stream.plays_at = max(stream.plays_at, before.deadline + self._segment_remaining(before))
        self.num_overlapping += bool(utterance.active) and stream.live
        utterance.active[stream] = None
        self._max_active = max(self._max_active, len(self._utterances) - len(self._idle))

    def release(self, stream: S, now: float, completed: bool) -> None:
        """Records the end of an active segment. completed: it was not cancelled and did not fail."""
        key = _key(stream)
        utterance = self._utterances[key]
        before = list(takewhile(lambda one: one is not stream, utterance.active))
        del utterance.active[stream]
        self.num_overlapping -= bool(utterance.active) and stream.live
        seconds = stream.generated * self._frame_seconds
        self._num_ended += 1
        if completed and seconds:
            expected = self._segment_seconds(stream)
            if 0 < expected < seconds:
                self._overrun.add(seconds / expected - 1, 1)
            self._frames_per_byte.add(stream.generated, stream.text_bytes)
            self._speeds[stream.live].add(seconds, now - utterance.measured_at)
            utterance.measured_at = now
        if stream.live and stream.first_audio_at < inf:
            utterance.played_until = max(stream.deadline, utterance.played_until)
            for following in list(utterance.active)[len(before) :]:
                if following.first_audio_at < inf:
                    following.deadline += utterance.played_until - following.plays_at
                following.plays_at = utterance.played_until
        if utterance.active:
            return
        if completed and utterance.following_bytes:
            utterance.kept_until = now + KEEP_SECONDS
        if utterance.will_continue(now):
            self._idle[key] = utterance
            self._between = None
        else:
            self._remove(key)

    def between_segments(self, now: float) -> tuple[int, int]:
        """The number of utterances that have no active segment and will continue, and how many of them are live."""
        asked = now, self._streams.num_finished
        if self._between is None or self._between[0] != asked:
            for key, utterance in list(self._idle.items()):
                if not utterance.will_continue(now):
                    del self._idle[key]
                    self._remove(key)
            self._between = asked, (len(self._idle), sum(utterance.live for utterance in self._idle.values()))
        return self._between[1]

    def next_expiry(self) -> float:
        """When the capacity of the next utterance is no longer kept for a segment to come; infinite if none is."""
        return min((one.kept_until for one in self._idle.values() if one.kept_until > -inf), default=inf)

    def _remove(self, key: int | S) -> None:
        utterance = self._utterances.pop(key)
        owner, row = utterance.owner, utterance.row
        self._is_live[row] = self._is_file[row] = False
        self._free_rows.append(row)
        self.num_by_owner[owner] -= 1
        if not self.num_by_owner[owner]:
            del self.num_by_owner[owner]

    def speed(self, live: bool) -> float:
        """Audio seconds per second with which recent utterances were generated; infinite before the first."""
        return max(self._speeds[live].value, MIN_SPEED)

    def seconds(self, num_bytes: int) -> float:
        """Expected seconds of speech of a text."""
        measured = self._frames_per_byte.value
        share = min(1.0, self._num_ended / max(self._max_active, 1))
        return num_bytes * (share * measured + (1 - share) * max(measured, FRAMES_PER_BYTE)) * self._frame_seconds

    def total(self, stream: S) -> float:
        """Expected seconds of speech of an utterance, by its first segment."""
        (seconds,) = self.totals([stream])
        return seconds

    def totals(self, streams: Sequence[S]) -> list[float]:
        """The same of many utterances."""
        frame, per_byte = self._frame_seconds, self.seconds(1)
        return [min(per_byte * s.text_bytes, s.max_frames * frame) + per_byte * s.following_bytes for s in streams]

    def num_in_progress(self, live: bool) -> int:
        return int(np.count_nonzero(self._is_live if live else self._is_file))

    def remaining(self, live: bool) -> Floats:
        """Expected seconds of audio that each utterance in progress still needs, in any order."""
        arrays, frame, seconds_per_byte = self._streams.used(), self._frame_seconds, self.seconds(1)
        expected = np.minimum(seconds_per_byte * arrays.text_bytes, arrays.max_frames * frame)
        left = np.maximum(expected - arrays.generated * frame, self._overrun.value * expected)
        rows = arrays.utterance_row[holds := arrays.active & ~arrays.ended]
        found = np.bincount(rows, left[holds], len(self._following_bytes)).astype(np.float64)
        found += seconds_per_byte * self._following_bytes
        for segment in self._streams.queue.continuing(live):
            if (utterance := self.get(segment)) is not None and utterance.following is segment:
                found[utterance.row] += self._segment_seconds(segment)
        for stopping in self._streams.stopping:
            if (utterance := self.get(stopping)) is not None and utterance.is_stopping:
                found[utterance.row] = 0.0
        return found[self._is_live if live else self._is_file]

    def _take_row(self, live: bool) -> int:
        if not self._free_rows:
            size = len(self._is_live)
            self._is_live, self._is_file = (np.resize(rows, 2 * size) for rows in (self._is_live, self._is_file))
            self._following_bytes = np.resize(self._following_bytes, 2 * size)
            self._is_live[size:] = self._is_file[size:] = False
            self._free_rows = list(range(size, 2 * size))
        row = self._free_rows.pop()
        (self._is_live if live else self._is_file)[row] = True
        self._following_bytes[row] = 0
        return row

    def _segment_seconds(self, stream: S) -> float:
        """Expected seconds of speech of one segment."""
        return min(self.seconds(stream.text_bytes), stream.max_frames * self._frame_seconds)

    def _segment_remaining(self, stream: S) -> float:
        """Expected seconds of audio that an active segment still needs."""
        if stream.ended:
            return 0.0
        expected = self._segment_seconds(stream)
        return max(expected - stream.generated * self._frame_seconds, self._overrun.value * expected)


def _key(stream: S) -> int | S:
    """Streams without an utterance are utterances of their own."""
    return stream.utterance_id or stream
