# SPDX-License-Identifier: Apache-2.0
"""The queued streams by kind and owner, so that admission control need not visit each for every request."""

from collections import Counter
from typing import Generic

from polyvox.engine.stream_state import S


class RequestQueue(Generic[S]):
    """Queued streams whose end was not requested, in order of arrival. `StreamTable` keeps it up to date."""

    def __init__(self) -> None:
        self._new: dict[bool, dict[S, None]] = {True: {}, False: {}}  # first segments of utterances, by live
        self._continuing: dict[bool, dict[S, None]] = {True: {}, False: {}}  # later segments
        self._num_by_owner: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}  # of the first segments

    def __len__(self) -> int:
        return sum(len(streams) for kind in (self._new, self._continuing) for streams in kind.values())

    def add(self, stream: S) -> None:
        if stream.continues:
            self._continuing[stream.live][stream] = None
        else:
            self._new[stream.live][stream] = None
            self._num_by_owner[stream.live][stream.owner] += 1

    def discard(self, stream: S) -> None:
        """Removes a stream, if it is here."""
        self._continuing[stream.live].pop(stream, None)
        if stream in self._new[stream.live]:
            del self._new[stream.live][stream]
            owners = self._num_by_owner[stream.live]
            owners[stream.owner] -= 1
            if not owners[stream.owner]:
                del owners[stream.owner]

    def new_utterances(self, live: bool) -> list[S]:
        return list(self._new[live])

    def continuing(self, live: bool) -> list[S]:
        return list(self._continuing[live])

    def num_new(self, live: bool) -> int:
        return len(self._new[live])

    def num_files(self) -> int:
        return len(self._new[False]) + len(self._continuing[False])

    def num_of(self, owner: str, live: bool) -> int:
        """New utterances of this owner."""
        return self._num_by_owner[live][owner]

    def owners(self, live: bool) -> list[str]:
        """The owners of new utterances."""
        return list(self._num_by_owner[live])

    def has_other_owners(self, owner: str, live: bool) -> bool:
        """Whether a new utterance of another owner is queued."""
        return len(self._new[live]) > self._num_by_owner[live][owner]

    def has_several_owners(self, live: bool) -> bool:
        return len(self._num_by_owner[live]) > 1
