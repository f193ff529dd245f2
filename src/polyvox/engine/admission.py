# SPDX-License-Identifier: Apache-2.0
"""Admission control: which requests are rejected, queued and given a slot.

An utterance is accepted once, with its first segment: its later segments go before new utterances and are never
rejected for their wait. A stream is admitted only if all active streams can still meet their deadlines. A queued
request is served: requests that would wait too long are rejected at once, with the time to retry after. No tensors,
the clock an argument.
"""

from dataclasses import dataclass, field
from itertools import takewhile
from math import ceil, inf
from typing import Generic

import numpy as np

from polyvox.engine.demand import Demand
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.load import LoadModel
from polyvox.engine.scheduler import STALL_FACTOR
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_arrays import Ints
from polyvox.engine.stream_pages import StreamPages
from polyvox.engine.stream_state import S
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.engine.utterances import UtteranceTable
from polyvox.engine.wait_estimate import WaitEstimate
from polyvox.errors import InvalidRequest, Overloaded

# Share of slots, pages and queue that whole files may use: a flood of them must not lock out live streams.
FILE_SHARE = 0.5
# Seconds beyond max_queue_seconds after which a queued request times out: the active streams do not end.
QUEUE_GRACE_SECONDS = 30.0
# Share of max_queue_seconds that a request waits for when it is sent again at its time: half of the queue is left for
# errors of the estimate in either direction.
RETRY_WAIT_SHARE = 0.25
# Below this share of max_queue_seconds a new request is accepted even if the time is reserved: the clients may not
# come back, and the engine must not be idle meanwhile.
MIN_WAIT_SHARE = 0.1
# The longest time to retry after. A turn that comes later is not reserved: few clients wait for so long.
MAX_RETRY_SECONDS = 300.0
# Utterances of different owners get their turns until they have waited for this share of max_queue_seconds; then they
# go in order of arrival, so that the promised wait is kept.
TURN_SHARE = 0.5
# An utterance that has waited for this share of max_queue_seconds may use this share of the time that steps may take:
# then a machine that has become slower serves its queue without the usual reserve.
LATE_SHARE, LATE_HEADROOM = 0.9, 1.0


@dataclass(slots=True)
class Admission(Generic[S]):
    """Decides over requests at three moments: before they are prepared, when they queue, when a slot is free."""

    load: LoadModel[S]
    streams: StreamTable[S]
    ledger: SlotLedger
    utterances: UtteranceTable[S] = field(init=False)
    estimate: WaitEstimate[S] = field(init=False)
    pages: StreamPages[S] = field(init=False)

    def __post_init__(self) -> None:
        self.pages = StreamPages(self.load, self.streams, self.ledger)
        self.utterances = UtteranceTable(self.load.limits.frame_seconds, self.streams)
        self.estimate = WaitEstimate(self.load, self.streams, self.utterances)

    def precheck(self, demand: Demand, now: float) -> None:
        """Raises Overloaded if a request that arrives now would be rejected however small it is."""
        self._check(demand, now)

    def enqueue(self, stream: S, now: float) -> None:
        """Queues a stream, or raises Overloaded with the time to retry after, or InvalidRequest if it is too large."""
        limits, num_pages = self.load.limits, self.pages.reserved_for(stream)
        if self.pages.max_for(stream) > limits.num_pages:
            requirement = f"prompt and speech must fit into {limits.num_pages * limits.page_size} positions"
            hint = "Shorten the text or raise the engine's context."
            raise InvalidRequest("text", stream.prompt_rows + stream.max_frames, requirement, hint)
        wait = self._check(Demand.of_stream(stream, num_pages), now)
        if stream.continues:
            self.utterances.add_segment(stream)
        else:
            self.estimate.claim(stream.fingerprint, now)
            self.estimate.on_queued(stream, wait)
        if stream.status is StreamStatus.AWAITING_TEXT:
            self.streams.transition(stream, StreamStatus.QUEUED, now)
        else:
            self.streams.add(stream)

    def on_stop_requested(self, stream: S) -> None:
        """Counts the slot and pages of a stream as free soon, so that a request that follows is not rejected."""
        self.streams.mark_stopping(stream)
        self.estimate.invalidate()

    def on_stop_withdrawn(self, stream: S) -> None:
        """Takes `on_stop_requested` of a stream that holds a slot back."""
        self.streams.unmark_stopping(stream)
        self.estimate.invalidate()

    def lacks_slot(self, live: bool) -> bool:
        """Whether a new stream could use one more slot: none is free, and files do not have their share of them."""
        return not self.ledger.free_slots and (live or len(self._file_slots()) < self._max_utterances(live=False))

    def expire(self, now: float) -> list[S]:
        """Finishes queued streams that have waited for longer than `max_wait`, and returns them."""
        queued = self.streams[StreamStatus.QUEUED]  # in the order of their timeouts
        expired = list(takewhile(lambda stream: now - stream.arrived_at > self.max_wait, queued))
        for stream in expired:
            self.streams.transition(stream, StreamStatus.FINISHED, now)
        return expired

    def admit(self, now: float) -> list[S]:
        """Gives slots and pages to queued streams, and returns them.

        The next segment of an utterance goes first, because its player is already playing; then live streams, then
        files, each in order of arrival.
        """
        has_slack = len(self.streams.queue) > 0 and self._has_slack(now)
        admitted: list[S] = []
        for live in (True, False):
            for stream in self._by_rank(live, now):
                num_pages = self.pages.reserved_for(stream)
                if not self._can_admit(stream, num_pages, has_slack, now):
                    if self._runs_ahead(stream):
                        continue  # its player has audio, which new utterances need not wait for
                    break  # later ones of this kind must not overtake it
                stream.admitted_at = now
                self.pages.allocate(stream, num_pages)
                self.streams.transition(stream, StreamStatus.PREFILL, now)
                self.utterances.admit(stream, now)
                self.estimate.on_admitted(stream, now)
                self.load.count_admitted(stream)
                admitted.append(stream)
        for stream in admitted:  # after all of them are counted in the load
            stream.first_chunk = stream.first_chunk or self.load.first_chunk(now)
            if not stream.prompt_left:
                self.streams.transition(stream, StreamStatus.RUNNING, now)
        return admitted

    def _by_rank(self, live: bool, now: float) -> list[S]:
        """Queued streams of this kind in the order in which they get slots."""
        queue = self.streams.queue
        continuing, new = queue.continuing(live), queue.new_utterances(live)
        if queue.has_several_owners(live):  # else they are in order of arrival
            new.sort(key=lambda stream: self._rank(stream, now))
        return sorted(continuing, key=lambda stream: self._rank(stream, now)) + new

    def _rank(self, stream: S, now: float) -> tuple[int, int]:
        """First segments whose player has nothing else to play, then those that run ahead.

        New utterances follow: those that have waited for long, then those of the owner with the fewest in progress.
        """
        if stream.continues:
            return int(self._runs_ahead(stream)), 0
        if now - stream.arrived_at >= TURN_SHARE * self.load.limits.max_queue_seconds:
            return 2, 0
        return 3, self.utterances.num_by_owner[stream.owner]

    def _runs_ahead(self, stream: S) -> bool:
        """Whether the segment before this one is still generated."""
        utterance = self.utterances.get(stream)
        return stream.continues and utterance is not None and bool(utterance.active)

    def _num_ahead(self, live: bool, owner: str, now: float) -> int:
        """Queued new utterances that go before a new one of this owner if it is still queued at this time."""
        queue, num_by_owner = self.streams.queue, self.utterances.num_by_owner
        num_own = num_by_owner[owner] + queue.num_of(owner, live)
        owners = {each for each in queue.owners(live) if each == owner or num_by_owner[each] <= num_own}
        late = now - TURN_SHARE * self.load.limits.max_queue_seconds  # as in `_rank`, without a call for each stream
        return sum(one.owner in owners or one.arrived_at <= late for one in queue.new_utterances(live))

    def release(self, stream: S, now: float, completed: bool = True) -> None:
        """Takes back the slot and pages of a stream whose slot no step in flight uses.

        completed: the stream was not cancelled and did not fail.
        """
        assert stream.allocation is not None
        self.utterances.release(stream, now, completed)
        if completed or stream.out_of_pages:
            self.pages.reservation.learn(stream)
        self.streams.transition(stream, StreamStatus.FINISHED, now)
        self.ledger.release(stream.allocation)
        stream.allocation = None
        self.load.invalidate()
        if not completed:  # the estimate expects the ends of others
            self.estimate.invalidate()

    def next_change(self, now: float) -> float:
        """When a queued stream may be admitted, or times out, though nothing else happens; infinite without a queue."""
        queued = self.streams[StreamStatus.QUEUED]
        if not queued:
            return inf
        late = [stream.arrived_at + LATE_SHARE * self.load.limits.max_queue_seconds for stream in queued]
        timeouts = [stream.arrived_at + self.max_wait for stream in queued]
        return min(self.utterances.next_expiry(), *timeouts, *(moment for moment in late if moment > now))

    @property
    def max_wait(self) -> float:
        """Seconds after which a queued request times out."""
        return self.load.limits.max_queue_seconds + QUEUE_GRACE_SECONDS

    def estimate_wait(self, demand: Demand, now: float) -> float:
        """Seconds until a new utterance that arrives now gets a slot."""
        live, owner, queue = demand.live, demand.owner, self.streams.queue
        others = queue.has_other_owners(owner, live)
        num_ahead = self._num_ahead(live, owner, now) if others else queue.num_new(live)
        num_pages = demand.num_pages + num_ahead * self.pages.mean() if demand.num_pages else 0
        if num_ahead < self._free_slots(live, now) and num_pages <= self.pages.num_free(now):
            return 0.0
        num_concurrent = self._num_concurrent(live, now)
        while True:
            wait = self.estimate.wait(live, num_concurrent, now, queue.num_new(live) - num_ahead)
            # More of the queued ones go before it the longer it waits.
            if not others or (later := self._num_ahead(live, owner, now + wait)) <= num_ahead:
                return wait
            num_ahead = later

    def current_load(self, now: float) -> EngineLoad:
        """The load and the spare capacity. It uses snapshots, so it may be asked often."""
        (free, wait), (free_files, wait_files) = self._spare(True, now), self._spare(False, now)
        num_streams = sum(self.streams.counts().values())
        return EngineLoad(now, self.load.capacity(), free, wait, free_files, wait_files, num_streams)

    def _spare(self, live: bool, now: float) -> tuple[int, float]:
        """New utterances that could start now, less the queued ones, and the expected wait of a new one."""
        mean_pages = self.pages.mean()
        free = min(self._free_slots(live, now), int(self.pages.num_free(now) / mean_pages))
        free -= self.streams.queue.num_new(live)
        if live and self.load.snapshot(now).num_live and not self._has_slack(now):
            free = min(free, 0)
        return free, 0.0 if free > 0 else self.estimate_wait(Demand(live, num_pages=ceil(mean_pages)), now)

    def _num_concurrent(self, live: bool, now: float) -> int:
        """Utterances that run at once in an estimate: fewer than the capacity if their KV pages do not suffice."""
        by_pages = self.utterances.num_in_progress(live) + int(self.pages.num_free(now) / self.pages.mean())
        return max(1, min(self._max_utterances(live), by_pages))

    def retry_after(self, demand: Demand, now: float) -> float:
        """Seconds until a rejected request may be accepted, reserved for it if it can be recognised."""
        limits, estimate = self.load.limits, self.estimate
        turn = estimate.turn(demand.live, self._num_concurrent(demand.live, now), now)
        seconds = ceil(max(1.0, turn + estimate.margin(turn) - RETRY_WAIT_SHARE * limits.max_queue_seconds))
        if seconds > MAX_RETRY_SECONDS:
            return MAX_RETRY_SECONDS
        if demand.may_reserve and demand.live and demand.fingerprint and not estimate.reservations.is_full:
            estimate.reserve(demand.fingerprint, demand.num_bytes, now + seconds)
        return seconds

    def _check(self, demand: Demand, now: float) -> float:
        """Raises Overloaded if the queue is full or the wait too long; returns the expected wait.

        The next segment of an utterance has no limit of its wait: it was accepted with the first one.
        """
        limits, queue, live = self.load.limits, self.streams.queue, demand.live
        if demand.continues and demand.utterance_id in self.utterances:
            return 0.0
        active = self.streams.active
        num_stopping = sum(stream.live is live and stream in active for stream in self.streams.stopping)
        free = max(0, self._free_slots(live, now) + num_stopping)
        max_queue = limits.max_queue + (limits.num_slots if demand.continues else 0)
        if len(queue) >= free + max_queue or (not live and queue.num_files() >= free + FILE_SHARE * max_queue):
            message = "all streams are taken and the queue is full"
            raise Overloaded(message, self._reject(demand, now), "queue_full")
        if demand.continues:
            return 0.0
        wait = self.estimate_wait(demand, now)
        turn = wait
        if self._waits_for_turn(demand, wait, now):
            turn = self.estimate.turn(live, self._num_concurrent(live, now), now)
        first_audio = max(self.estimate.upper_bound(wait), turn) + (self.load.start_seconds() if wait else 0.0)
        if first_audio > limits.max_queue_seconds:
            reason = f"no slot is expected to be free within {limits.max_queue_seconds:g} s"
            raise Overloaded(f"all streams are taken, and {reason}", self._reject(demand, now), "no_slot_in_time")
        return wait

    def _waits_for_turn(self, demand: Demand, wait: float, now: float) -> bool:
        """Whether reserved requests go before this one: it has no reservation, and its owner has its equal share."""
        if wait <= MIN_WAIT_SHARE * self.load.limits.max_queue_seconds:
            return False
        owners = self.utterances.num_by_owner
        queue = self.streams.queue
        num_own = owners[demand.owner] + sum(queue.num_of(demand.owner, live) for live in (True, False))
        num_owners = len(owners | {demand.owner: 1})
        below_share = num_owners > 1 and num_own < self._max_utterances(demand.live) / num_owners
        return not below_share and self.estimate.reservations.find_due(demand.fingerprint, now) is None

    def _reject(self, demand: Demand, now: float) -> float:
        if demand.may_reserve:
            self.estimate.claim(demand.fingerprint, now)
        return self.retry_after(demand, now)

    def _max_utterances(self, live: bool, late: bool = False) -> int:
        """Utterances of this kind that may run at once.

        late: for a request that has waited for almost as long as it was promised.
        """
        limits = self.load.limits
        return (
            self.load.capacity(LATE_HEADROOM if late else None) if live else max(int(FILE_SHARE * limits.num_slots), 1)
        )

    def _free_slots(self, live: bool, now: float, late: bool = False) -> int:
        """New utterances of this kind that could start now, by capacity, share and slots; negative if too many run."""
        limits, active = self.load.limits, self.streams.active
        num_between, num_live_between = self.utterances.between_segments(now)
        if live:  # a stream that waits for text or reader leaves its time to others
            running = self.load.snapshot(now).num_live - self.utterances.num_overlapping + num_live_between
        else:
            running = len(self._file_slots())
        return min(self._max_utterances(live, late) - running, limits.num_slots - len(active) - num_between)

    def _can_admit(self, stream: S, num_pages: int, has_slack: bool, now: float) -> bool:
        """Whether a queued stream can be admitted now, by deadlines, slots and pages."""
        limits, active = self.load.limits, self.streams.active
        if len(active) >= limits.num_slots or not self.pages.fits(stream, num_pages):
            return False
        if stream.continues and stream.live:
            utterance = self.utterances.get(stream)
            if utterance is not None and not utterance.active:  # its share of the capacity is kept for it
                return True
            num_between, _ = self.utterances.between_segments(now)
            free = self.load.capacity() - self.load.snapshot(now).num_live - num_between
            return free + 1 > 0 and limits.num_slots - len(active) - num_between > 0
        if stream.live and not has_slack and self.load.snapshot(now).num_live:
            return False
        if not stream.live:
            files = [one.allocation for one in self.streams.at(self._file_slots())]
            file_pages = sum(len(allocation.pages) for allocation in files if allocation is not None)
            if files and file_pages + num_pages > FILE_SHARE * limits.num_pages:
                return False
        late = now - stream.arrived_at >= LATE_SHARE * limits.max_queue_seconds
        return self._free_slots(stream.live, now, late) > 0

    def _file_slots(self) -> Ints:
        arrays = self.streams.used()
        return np.flatnonzero(arrays.active & ~arrays.live)

    def _has_slack(self, now: float) -> bool:
        """Whether all streams would meet their next deadlines if a step stalled or a frame's time were lost."""
        snapshot, (fixed, each) = self.load.snapshot(now), self.load.frame_cost()
        lost = min(STALL_FACTOR * (fixed + each * (snapshot.num_live + 1)), self.load.limits.frame_seconds)
        return snapshot.slack(each) - (now - snapshot.taken_at) >= lost
