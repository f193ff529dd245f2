# SPDX-License-Identifier: Apache-2.0
"""All streams of an engine by status; every change of status goes through `StreamTable.transition`."""

from collections.abc import Callable, Iterator, KeysView
from math import inf
from typing import Generic

import numpy as np

from polyvox.engine.request_queue import RequestQueue
from polyvox.engine.stream_arrays import Ints, StreamArrays
from polyvox.engine.stream_state import S
from polyvox.engine.stream_status import ENDED, HOLDS_SLOT, TRANSITIONS, ForbiddenTransition, StreamStatus

# Called with a stream, the status that it leaves, and the time, before the change.
OnTransition = Callable[[S, StreamStatus, float], None]


class StreamTable(Generic[S]):
    """Streams that have not finished, indexed by status, each status in the order of arrival there, and by slot."""

    def __init__(self, num_slots: int, on_transition: OnTransition[S] | None = None) -> None:
        self._by_status: dict[StreamStatus, dict[S, None]] = {status: {} for status in StreamStatus}
        self._on_transition = on_transition
        self.queue: RequestQueue[S] = RequestQueue()
        self.stopping: dict[S, None] = {}  # streams whose end was requested
        self.active: dict[S, None] = {}  # streams that hold a slot
        self.num_finished = 0  # since the start
        self.arrays = StreamArrays(num_slots)  # by slot
        self._by_slot: list[S | None] = [None] * num_slots
        self._used: StreamArrays | None = None

    def __len__(self) -> int:
        return sum(map(len, self._by_status.values()))

    def __iter__(self) -> Iterator[S]:
        for streams in self._by_status.values():
            yield from streams

    def __getitem__(self, status: StreamStatus) -> KeysView[S]:
        return self._by_status[status].keys()

    def add(self, stream: S) -> None:
        """Enters a new stream under the status that it has."""
        self._by_status[stream.status][stream] = None
        if stream.status is StreamStatus.QUEUED:
            self.queue.add(stream)
        if stream.status in HOLDS_SLOT:
            self._activate(stream)

    def mark_stopping(self, stream: S) -> None:
        """Records that the end of a stream was requested."""
        stream.stopping = True
        self.stopping[stream] = None
        self.queue.discard(stream)

    def unmark_stopping(self, stream: S) -> None:
        """Takes `mark_stopping` of a stream that holds a slot back."""
        assert stream in self.active
        stream.stopping = False
        del self.stopping[stream]

    def at(self, slots: Ints) -> list[S]:
        """The streams that have these slots."""
        found = [self._by_slot[slot] for slot in slots.tolist()]
        return [stream for stream in found if stream is not None]

    def used(self) -> StreamArrays:
        """The rows up to the highest slot in use; not all of them are active."""
        if self._used is None:
            slots = np.flatnonzero(self.arrays.active)
            self._used = self.arrays.view(slice(0, int(slots[-1]) + 1 if len(slots) else 0))
        return self._used

    def transition(self, stream: S, status: StreamStatus, now: float) -> None:
        """Changes the status of a stream; raises ForbiddenTransition if `TRANSITIONS` does not allow it."""
        if status not in TRANSITIONS[stream.status]:
            raise ForbiddenTransition(stream.id, stream.status, status)
        if self._on_transition is not None:
            self._on_transition(stream, stream.status, now)
        del self._by_status[stream.status][stream]
        if stream.status is StreamStatus.QUEUED:
            self.queue.discard(stream)
        stream.status, stream.status_since, stream.ended = status, now, status in ENDED
        if status is StreamStatus.FINISHED:
            self.num_finished += 1
            self.stopping.pop(stream, None)
            if stream in self.active:
                self._deactivate(stream)
            return
        self._by_status[status][stream] = None
        if status is StreamStatus.QUEUED and not stream.stopping:
            self.queue.add(stream)
        if status in HOLDS_SLOT:
            if stream not in self.active:
                self._activate(stream)
            self.arrays.ended[stream.row] = stream.ended

    def update_pause(self, stream: S, now: float) -> None:
        """A running stream is paused while a timeout of its reader or its text runs."""
        waits = min(stream.reader_deadline, stream.text_deadline) < inf
        if waits and stream.status is StreamStatus.RUNNING:
            self.transition(stream, StreamStatus.PAUSED, now)
        elif not waits and stream.status is StreamStatus.PAUSED:
            self.transition(stream, StreamStatus.RUNNING, now)

    def _activate(self, stream: S) -> None:
        assert stream.allocation is not None
        slot = stream.allocation.slot
        assert self._by_slot[slot] is None, "two streams have the same slot"
        stream.move(self.arrays, slot)
        self.active[stream], self._by_slot[slot] = None, stream
        self.arrays.active[slot] = True
        if self._used is not None and slot >= len(self._used.active):
            self._used = None

    def _deactivate(self, stream: S) -> None:
        slot = stream.row
        stream.move(StreamArrays.of_one_stream(), 0)
        del self.active[stream]
        self._by_slot[slot], self.arrays.active[slot] = None, False
        if self._used is not None and slot == len(self._used.active) - 1:
            self._used = None

    def counts(self) -> dict[StreamStatus, int]:
        return {s: len(streams) for s, streams in self._by_status.items() if s is not StreamStatus.FINISHED}
