# SPDX-License-Identifier: Apache-2.0
"""Admission control: which requests are rejected, queued and given a slot.

A stream is admitted only if all active streams can still meet their deadlines. A queued request is served: requests
that would wait too long are rejected at once, with the time to retry after. No tensors, the clock an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Generic

from polyvox.engine.load import LoadModel
from polyvox.engine.scheduler import STALL_FACTOR
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_state import S, StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.errors import InvalidRequest, Overloaded

# Share of slots, pages and queue that whole files may use: a flood of them must not lock out live streams.
FILE_SHARE = 0.5
# Estimated seconds that a stream holds its slot, until one has ended.
DEFAULT_SLOT_SECONDS = 3.0
# Ended streams that the estimate remembers, per active stream.
MEMORY_PER_STREAM = 4
# Seconds beyond max_queue_seconds after which a queued request times out: the active streams do not end.
QUEUE_GRACE_SECONDS = 30.0


@dataclass(slots=True)
class SlotTimes:
    """How long streams hold their slots: a decaying sum over the recently ended ones."""

    count: float = 1.0
    seconds: float = DEFAULT_SLOT_SECONDS

    def add(self, seconds: float, num_active: int) -> None:
        decay = 1 - 1 / (MEMORY_PER_STREAM * num_active + 1)
        self.count = self.count * decay + 1
        self.seconds = self.seconds * decay + seconds

    def mean(self, active_seconds: float) -> float:
        """Seconds per stream, including the time that active streams have had theirs.

        Without these, only short streams would count while long ones run.
        """
        return (self.seconds + active_seconds) / self.count


@dataclass(slots=True)
class Admission(Generic[S]):
    """Decides over requests at three moments: before they are prepared, when they queue, when a slot is free."""

    load: LoadModel[S]
    streams: StreamTable[S]
    ledger: SlotLedger
    slot_times: dict[bool, SlotTimes] = field(default_factory=lambda: {True: SlotTimes(), False: SlotTimes()})  # live?

    def precheck(self, live: bool, continues: bool, now: float) -> None:
        """Raises Overloaded if a request that arrives now would be rejected however small it is."""
        self._check(live, continues, 0, now)

    def enqueue(self, stream: S, now: float) -> None:
        """Queues a stream, or raises Overloaded with the time to retry after, or InvalidRequest if it is too large."""
        limits = self.load.limits
        if self.pages_for(stream) > limits.num_pages:
            requirement = f"prompt and speech must fit into {limits.num_pages * limits.page_size} positions"
            hint = "Shorten the text or raise the engine's context."
            raise InvalidRequest("text", stream.prompt_rows + stream.max_frames, requirement, hint)
        self._check(stream.live, stream.continues, self.pages_for(stream), now)
        if stream.status is StreamStatus.AWAITING_TEXT:
            self.streams.transition(stream, StreamStatus.QUEUED, now)
        else:
            self.streams.add(stream)

    def expire(self, now: float) -> list[S]:
        """Finishes queued streams that have waited for longer than `max_wait`, and returns them."""
        queued = self.streams[StreamStatus.QUEUED]
        expired = [stream for stream in queued if now - stream.arrived_at > self.max_wait]
        for stream in expired:
            self.streams.transition(stream, StreamStatus.FINISHED, now)
        return expired

    def admit(self, now: float) -> list[S]:
        """Gives slots and pages to queued streams, and returns them.

        The next segment of an utterance goes first, because its player is already playing; then live streams, then
        files, each in order of arrival.
        """
        waiting = list(self.streams[StreamStatus.QUEUED])
        has_slack = bool(waiting) and self._has_slack(now)
        admitted: list[S] = []
        closed: set[bool] = set()  # kinds, live or file, of which one must wait: later ones must not overtake it
        for stream in sorted(waiting, key=lambda stream: (not stream.live, not stream.continues)):
            num_pages = self.pages_for(stream)
            if stream.live in closed or not self._num_admittable(
                stream.live, stream.continues, num_pages, has_slack, now
            ):
                closed.add(stream.live)
                continue
            stream.admitted_at, stream.allocation = now, self.ledger.allocate(num_pages)
            self.streams.transition(stream, StreamStatus.PREFILL, now)
            self.load.count_admitted(stream)
            admitted.append(stream)
        for stream in admitted:  # after all of them are counted in the load
            stream.first_chunk = stream.first_chunk or self.load.first_chunk(now)
            if not stream.prompt_left:
                self.streams.transition(stream, StreamStatus.RUNNING, now)
        return admitted

    def shrink(self, stream: S) -> Sequence[int]:
        """Frees the pages that a stream no longer needs after its max_frames became smaller, and returns them."""
        assert stream.allocation is not None
        return self.ledger.shrink(stream.allocation, self.pages_for(stream))

    def release(self, stream: S, now: float) -> None:
        """Takes back the slot and pages of a stream whose slot no step in flight uses."""
        assert stream.allocation is not None
        self.slot_times[stream.live].add(now - stream.admitted_at, len(self.streams.active))
        self.streams.transition(stream, StreamStatus.FINISHED, now)
        self.ledger.release(stream.allocation)
        stream.allocation = None
        self.load.invalidate()

    @property
    def max_wait(self) -> float:
        """Seconds after which a queued request times out."""
        return self.load.limits.max_queue_seconds + QUEUE_GRACE_SECONDS

    def pages_for(self, stream: StreamState) -> int:
        """KV pages for all positions of a stream: prompt, frames, and one frame launched before the end is known."""
        return ceil((stream.prompt_rows + stream.max_frames + 1) / self.load.limits.page_size)

    def estimate_wait(self, live: bool, num_pages: int, now: float) -> float:
        """Seconds until a request that arrives now gets a slot: by the queue and by how long streams hold slots."""
        ahead = sum(stream.live is live for stream in self.streams[StreamStatus.QUEUED])
        free = self._free_slots(live, now)
        missing = ahead + 1 - free
        if num_pages > len(self.ledger.free_pages):
            missing = max(missing, 1)
        if missing <= 0:
            return 0.0
        active = [stream for stream in self.streams.active if stream.live is live]
        active_seconds = sum(now - stream.admitted_at for stream in active)
        return missing * self.slot_times[live].mean(active_seconds) / max(len(active) + max(free, 0), 1)

    def retry_after(self, live: bool, now: float) -> float:
        """Seconds until a new request may be accepted."""
        return max(1.0, self.estimate_wait(live, 0, now) - self.load.limits.max_queue_seconds)

    def _check(self, live: bool, continues: bool, num_pages: int, now: float) -> None:
        """Raises Overloaded if the queue is full or the wait too long.

        The next segment of an utterance has no limit of its wait: it was accepted with the first one.
        """
        limits, queued = self.load.limits, self.streams[StreamStatus.QUEUED]
        admittable = self._num_admittable(
            live, continues, num_pages, self._has_slack(now), now
        )  # queued streams that start at once
        max_queue = limits.max_queue + (limits.num_slots if continues else 0)
        num_files = sum(not stream.live for stream in queued)
        if len(queued) >= admittable + max_queue or (not live and num_files >= admittable + FILE_SHARE * max_queue):
            raise Overloaded("all streams are taken and the queue is full", self.retry_after(live, now))
        if not continues and self.estimate_wait(live, num_pages, now) > limits.max_queue_seconds:
            reason = f"no slot is expected to be free within {limits.max_queue_seconds:g} s"
            raise Overloaded(f"all streams are taken, and {reason}", self.retry_after(live, now))

    def _free_slots(self, live: bool, now: float) -> int:
        """Slots for streams of this kind, by capacity or share; negative if too many run."""
        limits, active = self.load.limits, self.streams.active
        if live:  # a stream that waits for text or reader leaves its time to others
            free = self.load.capacity() - self.load.snapshot(now).num_live
        else:
            free = max(int(FILE_SHARE * limits.num_slots), 1) - sum(not stream.live for stream in active)
        return min(free, limits.num_slots - len(active))

    def _num_admittable(self, live: bool, continues: bool, num_pages: int, has_slack: bool, now: float) -> int:
        """How many streams like this one could be admitted now, by deadlines, slots and, for this one, pages."""
        limits = self.load.limits
        if num_pages > len(self.ledger.free_pages):
            return 0
        free = self._free_slots(live, now)
        if continues and live:  # it takes over from the segment before it
            return max(0, min(free + 1, limits.num_slots - len(self.streams.active)))
        if live and not has_slack and self.load.snapshot(now).num_live:
            return 0
        if not live:
            files = [stream.allocation for stream in self.streams.active if not stream.live]
            file_pages = sum(len(allocation.pages) for allocation in files if allocation is not None)
            if files and file_pages + num_pages > FILE_SHARE * limits.num_pages:
                return 0
        return max(0, free)

    def _has_slack(self, now: float) -> bool:
        """Whether all streams would meet their next deadlines if a step stalled or a frame's time were lost."""
        snapshot, (fixed, each) = self.load.snapshot(now), self.load.frame_cost()
        lost = min(STALL_FACTOR * (fixed + each * (snapshot.num_live + 1)), self.load.limits.frame_seconds)
        return snapshot.slack(each) - (now - snapshot.taken_at) >= lost
