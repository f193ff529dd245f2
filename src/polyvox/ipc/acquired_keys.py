# SPDX-License-Identifier: Apache-2.0
"""What one server counts of each API key in the engine's process, so that all of it can be released with the server."""

from collections import Counter
from collections.abc import Mapping

from polyvox.engine.key_counts import KeyCounts

MAX_KEYS = 100_000  # that one server may hold counts of


class AcquiredKeys:
    """The share of one server in the counts of all servers."""

    def __init__(self, counts: KeyCounts) -> None:
        self._counts = counts
        self._acquired: Counter[str] = Counter()

    def acquire(self, key: str, limit: int) -> bool:
        """Counts one more request of the key; False if it has `limit` over all servers, or the server too many keys."""
        fits = key in self._acquired or len(self._acquired) < MAX_KEYS
        acquired = fits and self._counts.acquire(key, limit)
        if acquired:
            self._acquired[key] += 1
        return acquired

    def release(self, key: str) -> None:
        """Raises ValueError if the server did not acquire the key."""
        if key not in self._acquired:
            raise ValueError("a key is released that was not acquired")
        self._acquired[key] -= 1
        if not self._acquired[key]:
            del self._acquired[key]
        self._counts.release(key)

    def restore(self, counts: Mapping[str, int]) -> None:
        """Counts what the server had acquired before the engine started again; ValueError if that is too many keys."""
        if len(self._acquired.keys() | counts.keys()) > MAX_KEYS:
            raise ValueError(f"a server must hold counts of at most {MAX_KEYS} keys")
        for key, count in counts.items():
            if count:
                self._acquired[key] += count
                self._counts.add(key, count)

    def release_all(self) -> None:
        """Idempotent."""
        for key, count in self._acquired.items():
            self._counts.release(key, count)
        self._acquired.clear()
