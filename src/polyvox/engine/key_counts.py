# SPDX-License-Identifier: Apache-2.0
"""The number of concurrent requests of each API key."""

from collections import Counter


class KeyCounts:
    """Counts for one event loop's thread. A key without requests takes no memory."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def acquire(self, key: str, limit: int) -> bool:
        """Counts one more request of the key; False, without counting it, if the key already has `limit`."""
        if self._counts[key] >= limit:
            if not self._counts[key]:
                del self._counts[key]
            return False
        self._counts[key] += 1
        return True

    def add(self, key: str, count: int) -> None:
        """Counts requests that were acquired before, without a limit."""
        self._counts[key] += count

    def release(self, key: str, count: int = 1) -> None:
        """Gives back what was acquired."""
        left = self._counts[key] - count
        if left > 0:
            self._counts[key] = left
        else:
            del self._counts[key]

    def __len__(self) -> int:
        return len(self._counts)
