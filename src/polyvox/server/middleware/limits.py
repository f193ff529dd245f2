"""How many requests each caller has under way, counted over all server processes."""

import fcntl
import hashlib
from collections import defaultdict
from pathlib import Path

SPAN = 1 << 20  # the most places of one caller in the file


class ConcurrencyLimiter:
    """Places of callers, so many for each; where processes share them, in a file that nothing is written to.

    A place is a byte of the file that its process has locked. The system takes the locks of a process back when it
    ends, however it ends, so nothing is left to be counted or cleaned up. A process is never refused a lock by itself,
    so it keeps its own places as well.
    """

    def __init__(self, most: int, file: Path | None = None) -> None:
        self.most = min(most, SPAN)
        self._taken: defaultdict[str, set[int]] = defaultdict(set)
        # Open for good: to close it anywhere in this process would give back all of its locks.
        self._file = None if file is None else open(file, "ab")  # noqa: SIM115

    def take(self, caller: str) -> int | None:
        """A place of this caller, to be given back; None where all of them are taken."""
        mine = self._taken.get(caller, set())
        for place in range(self.most):
            if place not in mine and self._lock(caller, place, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._taken[caller].add(place)
                return place
        return None

    def give(self, caller: str, place: int) -> None:
        self._taken[caller].remove(place)
        if not self._taken[caller]:
            del self._taken[caller]
        self._lock(caller, place, fcntl.LOCK_UN)

    def _lock(self, caller: str, place: int, how: int) -> bool:
        if self._file is None:
            return True
        digest = hashlib.sha256(caller.encode("utf-8", "surrogateescape")).digest()
        start = int.from_bytes(digest[:5], "big") * SPAN + place
        try:
            fcntl.lockf(self._file, how, 1, start)
        except BlockingIOError:
            return False
        return True
