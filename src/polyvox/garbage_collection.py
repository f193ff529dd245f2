# SPDX-License-Identifier: Apache-2.0
"""Full garbage collections of a process that streams audio: they wait until it has no streams.

A full collection visits every object and holds the GIL meanwhile. With 2,048 streams it takes tens of milliseconds,
with a trace more than 100, in which no thread sends audio; it finds nothing, because streams have no reference cycles
that outlive a young collection. Young collections take less than a millisecond and stay as they are.
"""

import gc
import time
from collections.abc import Callable

IDLE_INTERVAL = 60.0  # seconds between two full collections without streams
MAX_INTERVAL = 3600.0  # with streams, however many: a bound for cycles that nothing else frees
NEVER = 1 << 30  # young collections after which Python would start a full one
DEFAULT_THRESHOLDS = gc.get_threshold()


class FullCollections:
    """Replaces Python's full collections. One thread calls all methods."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._collected_at = clock, clock()

    def start(self) -> None:
        """Excludes the objects that exist now, those of the process's start, from all collections."""
        gc.freeze()
        gc.set_threshold(*DEFAULT_THRESHOLDS[:2], NEVER)
        self._collected_at = self._clock()

    def stop(self) -> None:
        gc.set_threshold(*DEFAULT_THRESHOLDS)

    def collect_if_due(self, num_streams: int) -> None:
        interval = MAX_INTERVAL if num_streams else IDLE_INTERVAL
        if self._clock() - self._collected_at >= interval:
            gc.collect()
            self._collected_at = self._clock()
