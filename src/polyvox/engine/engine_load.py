# SPDX-License-Identifier: Apache-2.0
"""The load that an engine reports, and the spare capacity that follows from it."""

from dataclasses import dataclass

MAX_REPORT_AGE = 2.0  # seconds; an engine whose report is older, or whose step takes longer, is stuck


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine at one moment of `time.monotonic`. Values with `files` are for whole files.

    free: new utterances that could start now, by real-time capacity, slots and KV pages, less the queued ones; at most
    0 while the leads of the streams leave no time for another one. wait: expected seconds until a new one starts.
    """

    taken_at: float
    capacity: int  # live utterances that run in real time at once
    free: int
    wait: float = 0.0
    free_files: int = 0
    wait_files: float = 0.0
    num_streams: int = 0  # accepted and not ended
    stuck_seconds: float = 0.0  # since when the step in progress runs
    draining: bool = False  # accepts no new utterances

    def spare(self, whole_file: bool = False, num_sent: float = 0.0) -> float:
        """Spare capacity for one more request: a share of the capacity if it can start now, negative if it must wait.

        num_sent: requests that were sent to this engine and are not in the report yet.
        """
        free, wait = (min(self.free, self.free_files), self.wait_files) if whole_file else (self.free, self.wait)
        return (free - num_sent) / max(self.capacity, 1) - wait

    def is_stuck(self, now: float) -> bool:
        """Whether the engine has stopped to report, or to step."""
        return now - self.taken_at > MAX_REPORT_AGE or self.stuck_seconds > MAX_REPORT_AGE
