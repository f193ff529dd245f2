# SPDX-License-Identifier: Apache-2.0
"""Full garbage collections of a process that streams audio: they wait until it has no streams, or has grown.

A full collection visits every object and holds the GIL meanwhile. With 2,048 streams it takes tens of milliseconds,
with a trace more than 100, in which no thread sends audio; it finds nothing, because streams have no reference cycles
that outlive a young collection. Young collections take less than a millisecond and stay as they are. Should there be
such cycles, memory is bounded by its growth: a check takes less than 0.1 ms, and only then a collection is due.
"""

import gc
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

IDLE_INTERVAL = 60.0  # seconds between two full collections without streams
MAX_INTERVAL = 3600.0  # with streams, however many
CHECK_INTERVAL = 5.0  # seconds between two checks of the growth
MAX_NEW_BLOCKS = 2_000_000  # memory blocks of small objects, of about 80 bytes; 2,048 streams have 94,000 objects
MAX_NEW_BYTES = 1 << 29  # of resident memory; arrays and encoders are not small objects
MIN_GARBAGE = 10_000  # unreachable objects from which on the growth was garbage, at least in part
NEVER = 1 << 30  # young collections after which Python would start a full one
DEFAULT_THRESHOLDS = gc.get_threshold()


class MemoryUse(NamedTuple):
    """What a process uses."""

    blocks: int  # of Python's allocator for small objects
    resident_bytes: int


def memory_use() -> MemoryUse:
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        resident = 0
    return MemoryUse(sys.getallocatedblocks(), resident)


class FullCollections:
    """Replaces Python's full collections. One thread calls all methods."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, measure: Callable[[], MemoryUse] = memory_use
    ) -> None:
        self._clock, self._measure = clock, measure
        self._collected_at = self._checked_at = clock()
        self._base = measure()  # from which growth counts

    def start(self) -> None:
        """Excludes the objects that exist now, those of the process's start, from all collections."""
        gc.freeze()
        gc.set_threshold(*DEFAULT_THRESHOLDS[:2], NEVER)
        self._collected_at, self._base = self._clock(), self._measure()

    def stop(self) -> None:
        gc.set_threshold(*DEFAULT_THRESHOLDS)

    def collect_if_due(self, num_streams: int) -> None:
        now = self._clock()
        if now - self._collected_at >= (MAX_INTERVAL if num_streams else IDLE_INTERVAL):
            self._collect()
        elif num_streams and now - self._checked_at >= CHECK_INTERVAL:
            self._checked_at, use = now, self._measure()
            blocks, resident_bytes = use.blocks - self._base.blocks, use.resident_bytes - self._base.resident_bytes
            if blocks > MAX_NEW_BLOCKS or resident_bytes > MAX_NEW_BYTES:
                found = self._collect()
                log.info("memory has grown blocks=%d bytes=%d garbage=%d", blocks, resident_bytes, found)

    def _collect(self) -> int:
        """Returns the number of unreachable objects."""
        found = gc.collect()
        self._collected_at = self._clock()
        if found < MIN_GARBAGE:  # what is left is in use
            self._base = self._measure()
        return found
