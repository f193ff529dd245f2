# SPDX-License-Identifier: Apache-2.0
"""Durations of steps, counted in buckets."""

from bisect import bisect_left
from math import inf

# Upper bounds in seconds. A frame plays for 0.08 s.
STEP_BUCKETS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.012, 0.016, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.25, 1.0, inf)
STEP_BUCKET_PREFIX = "step_bucket_"  # in the engine's statistics, before the upper bound of a bucket


class StepHistogram:
    """Counts steps by their duration, and adds the durations up."""

    def __init__(self) -> None:
        self._counts = [0] * len(STEP_BUCKETS)
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(STEP_BUCKETS, seconds)] += 1
        self._seconds += seconds

    def stats(self) -> dict[str, float]:
        """Steps of each bucket, not cumulative, and the sum of all durations."""
        buckets = zip(STEP_BUCKETS, self._counts, strict=True)
        return {f"{STEP_BUCKET_PREFIX}{bound:g}": float(count) for bound, count in buckets} | {
            "step_seconds_total": self._seconds
        }
