# SPDX-License-Identifier: Apache-2.0
"""Estimates when a new utterance gets a slot, and how far such estimates were off recently.

The queue of utterances is served first come, first served, by as many servers as utterances run in real time at once.
The estimate plays it through: utterances in progress occupy a server for what is left of them, then come the queued
ones, then those that are expected to be sent again.
"""

from dataclasses import dataclass, field
from heapq import heapreplace
from math import inf
from typing import Generic

import numpy as np

from polyvox.engine.load import SNAPSHOT_TTL, LoadModel
from polyvox.engine.reservations import Reservation, Reservations
from polyvox.engine.stream_state import S
from polyvox.engine.stream_table import StreamTable
from polyvox.engine.utterances import UtteranceTable

# The error of the estimate, as in RFC 6298: moving averages of observed minus predicted waits and of the deviation.
LEARNING_RATE = 1 / 16
NUM_DEVIATIONS = 2.5
INITIAL_DEVIATION = 0.5  # seconds
# A wait may be this share longer than expected, however exact recent estimates were: steps of a CPU that were a quarter
# slower for ten seconds halved its capacity, which the errors before do not announce.
MIN_MARGIN = 0.2


@dataclass(slots=True)
class Timeline:
    """When each server is free, in seconds after `taken_at`; heaps."""

    taken_at: float
    speed: float  # audio seconds per second of each server
    queued: list[float]  # after the utterances in progress and the queued ones
    reserved: list[float]  # also after the reserved ones
    waits: list[float]  # until the first server is free, after this many queued ones in order of arrival

    def enqueue(self, seconds: float) -> None:
        for free_at in (self.queued, self.reserved):
            heapreplace(free_at, free_at[0] + seconds / self.speed)
        self.waits.append(self.queued[0])

    def reserve(self, seconds: float, at: float) -> None:
        heapreplace(self.reserved, max(self.reserved[0], at - self.taken_at) + seconds / self.speed)


@dataclass(slots=True)
class WaitEstimate(Generic[S]):
    """The expected wait of new utterances, for live ones and for files."""

    load: LoadModel[S]
    streams: StreamTable[S]
    utterances: UtteranceTable[S]
    reservations: Reservations = field(default_factory=Reservations)
    bias: float = 0.0
    deviation: float = INITIAL_DEVIATION
    _timelines: dict[bool, Timeline] = field(default_factory=dict)  # by live

    def wait(self, live: bool, num_concurrent: int, now: float, num_behind: int = 0) -> float:
        """Seconds until a new utterance gets a slot, after the queued ones but for this many of them.

        Those that it goes before are taken to be the last ones: lengths are similar, and a look at each takes too long.
        """
        timeline = self._timeline(live, num_concurrent, now)
        return max(0.0, timeline.waits[max(0, len(timeline.waits) - 1 - num_behind)] - (now - timeline.taken_at))

    def turn(self, live: bool, num_concurrent: int, now: float) -> float:
        """Seconds until it is the turn of a new utterance, after all that are queued or reserved."""
        timeline = self._timeline(live, num_concurrent, now)
        return max(0.0, timeline.reserved[0] - (now - timeline.taken_at))

    def margin(self, wait: float) -> float:
        """Seconds by which this wait would rarely have been exceeded recently: at most the wait itself."""
        return min(max(self.bias + NUM_DEVIATIONS * self.deviation, 0.0), wait)

    def upper_bound(self, wait: float) -> float:
        """The wait that is rarely exceeded when this one is expected."""
        return wait + max(self.margin(wait), MIN_MARGIN * wait)

    def reserve(self, fingerprint: int, num_bytes: int, at: float) -> None:
        """Reserves the work of a rejected request that is sent again at this time."""
        reservation = Reservation(fingerprint, at, self.utterances.seconds(num_bytes))
        self.reservations.add(reservation)
        if (timeline := self._timelines.get(True)) is not None:
            timeline.reserve(self.reservations.claimed_share * reservation.seconds, at)

    def claim(self, fingerprint: int, now: float) -> None:
        """Ends the reservation of a request that arrives at its time, if it has one."""
        if (reservation := self.reservations.find_due(fingerprint, now)) is not None:
            self.reservations.claim(reservation)
            self.invalidate()

    def on_queued(self, stream: S, wait: float) -> None:
        """Adds a new utterance with its expected wait to the queue."""
        stream.expected_wait = wait
        if (timeline := self._timelines.get(stream.live)) is not None:
            timeline.enqueue(self.utterances.total(stream))

    def on_admitted(self, stream: S, now: float) -> None:
        """Learns from the wait of an utterance that was admitted."""
        if stream.expected_wait:
            error = now - stream.arrived_at - stream.expected_wait
            self.deviation += LEARNING_RATE * (abs(error - self.bias) - self.deviation)
            self.bias += LEARNING_RATE * (error - self.bias)

    def invalidate(self) -> None:
        """Drops the timelines, after something happened that they do not predict."""
        self._timelines.clear()

    def _timeline(self, live: bool, num_concurrent: int, now: float) -> Timeline:
        """The last timeline, or a new one after SNAPSHOT_TTL: a burst of requests must not visit all streams each."""
        timeline = self._timelines.get(live)
        if timeline is None or not 0 <= now - timeline.taken_at < SNAPSHOT_TTL:
            self.reservations.expire(now)
            timeline = self._timelines[live] = self._new_timeline(live, num_concurrent, now)
        return timeline

    def _new_timeline(self, live: bool, num_concurrent: int, now: float) -> Timeline:
        speed = min(self.load.speed(num_concurrent if live else inf), self.utterances.speed(live))
        free_at = (np.sort(self.utterances.remaining(live)) / speed).tolist()
        missing = num_concurrent - len(free_at)
        free_at = free_at[-missing:] if missing < 0 else [0.0] * missing + free_at
        queued, waits = list(free_at), [free_at[0]]
        for seconds in self.utterances.totals(self.streams.queue.new_utterances(live)):
            heapreplace(queued, queued[0] + seconds / speed)
            waits.append(queued[0])
        timeline = Timeline(now, speed, queued, list(queued), waits)
        if live:
            for one in self.reservations:
                timeline.reserve(self.reservations.claimed_share * one.seconds, one.at)
        return timeline
