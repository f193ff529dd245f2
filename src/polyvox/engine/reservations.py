# SPDX-License-Identifier: Apache-2.0
"""Reservations: the times to retry after that rejected requests were given.

A request that is sent again at its time goes before requests that arrive for the first time. It is recognised by its
fingerprint; a client need not send anything else. Not all clients retry, so the reserved work counts with the share of
reservations that were claimed recently.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

MAX_RESERVATIONS = 1024
CLAIM_EARLY_SECONDS = 0.25  # before its time that a reservation can be claimed
CLAIM_LATE_SECONDS = 3.0  # after its time that it expires
LEARNING_RATE = 0.05  # of the share of claimed reservations


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    fingerprint: int
    at: float  # when the client retries
    seconds: float  # of audio


class Reservations:
    """Open reservations in the order in which they were made."""

    def __init__(self) -> None:
        self._open: dict[Reservation, None] = {}
        self._by_fingerprint: dict[int, list[Reservation]] = {}
        self._by_time: list[tuple[float, int, Reservation]] = []  # a heap; claimed ones stay until their time
        self._serial = count()
        self.claimed_share = 1.0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= MAX_RESERVATIONS

    def add(self, reservation: Reservation) -> None:
        self._open[reservation] = None
        self._by_fingerprint.setdefault(reservation.fingerprint, []).append(reservation)
        heappush(self._by_time, (reservation.at, next(self._serial), reservation))

    def find_due(self, fingerprint: int, now: float) -> Reservation | None:
        """The reservation of a request that arrives at its time."""
        due = (one for one in self._by_fingerprint.get(fingerprint, ()) if now >= one.at - CLAIM_EARLY_SECONDS)
        return next(due, None)

    def claim(self, reservation: Reservation) -> None:
        """The client came back."""
        self._remove(reservation, 1.0)

    def expire(self, now: float) -> None:
        """Removes reservations whose clients did not come back in time."""
        while self._by_time and self._by_time[0][0] + CLAIM_LATE_SECONDS < now:
            reservation = heappop(self._by_time)[2]
            if reservation in self._open:
                self._remove(reservation, 0.0)

    def _remove(self, reservation: Reservation, claimed: float) -> None:
        del self._open[reservation]
        same = self._by_fingerprint[reservation.fingerprint]
        same.remove(reservation)
        if not same:
            del self._by_fingerprint[reservation.fingerprint]
        self.claimed_share += LEARNING_RATE * (claimed - self.claimed_share)
