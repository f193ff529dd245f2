# SPDX-License-Identifier: Apache-2.0
"""All streams of an engine by status; every change of status goes through `StreamTable.transition`."""

from collections.abc import Callable, Iterator, KeysView
from typing import Generic

from polyvox.engine.stream_state import S
from polyvox.engine.stream_status import ENDED, HOLDS_SLOT, TRANSITIONS, ForbiddenTransition, StreamStatus

# Called with a stream, the status that it leaves, and the time, before the change.
OnTransition = Callable[[S, StreamStatus, float], None]


class StreamTable(Generic[S]):
    """Streams that have not finished, indexed by status, each status in the order of arrival there."""

    def __init__(self, on_transition: OnTransition[S] | None = None) -> None:
        self._by_status: dict[StreamStatus, dict[S, None]] = {status: {} for status in StreamStatus}
        self._on_transition = on_transition
        self.active: dict[S, None] = {}  # streams that hold a slot

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
        if stream.status in HOLDS_SLOT:
            self.active[stream] = None

    def transition(self, stream: S, status: StreamStatus, now: float) -> None:
        """Changes the status of a stream; raises ForbiddenTransition if `TRANSITIONS` does not allow it."""
        if status not in TRANSITIONS[stream.status]:
            raise ForbiddenTransition(stream.id, stream.status, status)
        if self._on_transition is not None:
            self._on_transition(stream, stream.status, now)
        del self._by_status[stream.status][stream]
        stream.status, stream.status_since, stream.ended = status, now, status in ENDED
        if status is StreamStatus.FINISHED:
            self.active.pop(stream, None)
            return
        self._by_status[status][stream] = None
        if status in HOLDS_SLOT:
            self.active[stream] = None

    def counts(self) -> dict[StreamStatus, int]:
        return {s: len(streams) for s, streams in self._by_status.items() if s is not StreamStatus.FINISHED}
