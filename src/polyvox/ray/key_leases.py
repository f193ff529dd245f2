# SPDX-License-Identifier: Apache-2.0
"""The concurrent requests of each API key over all replicas. A replica's counts expire if it does not renew them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

LEASE_SECONDS = 10.0


@dataclass(slots=True)
class _Lease:
    expires_at: float
    counts: Counter[str] = field(default_factory=Counter)


class KeyLeases:
    """Counts by replica and key. The clock is an argument."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._totals: Counter[str] = Counter()

    def acquire(self, replica: str, key: str, limit: int, now: float) -> bool:
        """Counts one more request of the key; False, without counting it, if all replicas together have `limit`."""
        self._expire(now)
        if self._totals.get(key, 0) >= limit:
            return False
        self._renew(replica, now).counts[key] += 1
        self._totals[key] += 1
        return True

    def release(self, replica: str, key: str) -> None:
        """Gives back what was acquired. Counts of an expired lease are given back already."""
        lease = self._leases.get(replica)
        if lease is not None and lease.counts.get(key, 0) > 0:
            lease.counts[key] -= 1
            self._subtract(Counter({key: 1}))

    def renew(self, replica: str, counts: Mapping[str, int], now: float) -> None:
        """Extends a lease and replaces its counts: the replica knows them, also after a restart of this object."""
        self._expire(now)
        lease = self._renew(replica, now)
        self._subtract(lease.counts)
        lease.counts = Counter(counts)
        self._totals.update(lease.counts)

    def total(self, key: str, now: float) -> int:
        self._expire(now)
        return self._totals.get(key, 0)

    def __len__(self) -> int:
        """The number of replicas with a lease."""
        return len(self._leases)

    def _renew(self, replica: str, now: float) -> _Lease:
        lease = self._leases.setdefault(replica, _Lease(now))
        lease.expires_at = now + LEASE_SECONDS
        return lease

    def _expire(self, now: float) -> None:
        for replica in [name for name, lease in self._leases.items() if lease.expires_at <= now]:
            self._subtract(self._leases.pop(replica).counts)

    def _subtract(self, counts: Counter[str]) -> None:
        self._totals.subtract(counts)
        for key in counts:
            if self._totals[key] <= 0:  # a key without requests takes no memory
                del self._totals[key]
