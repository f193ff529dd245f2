# SPDX-License-Identifier: Apache-2.0
"""The status of an engine as servers report it: starting, running, restarting or closed."""

from dataclasses import dataclass
from enum import StrEnum

from polyvox.errors import EngineDown

FIRST_START_RETRY_SECONDS = 5.0  # the duration of a first start is not known
CLOSED_RETRY_SECONDS = 60.0
MIN_RETRY_SECONDS = 1.0


class EngineState(StrEnum):
    STARTING = "starting"  # for the first time
    RUNNING = "running"
    RESTARTING = "restarting"  # failed: waits for the next attempt, or starts again
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Moments are those of `time.monotonic`, which all processes of a machine share."""

    state: EngineState
    stage: str = ""  # of the start in progress, see progress.py
    progress: float = 0.0  # of this stage, from 0 to 1
    reason: str = ""  # of the last failure
    down_since: float | None = None  # when a running engine failed; None while it runs
    expected_at: float | None = None  # when the engine is expected to run again
    start_seconds: float = 0.0  # duration of the last start
    num_restarts: int = 0
    sample_rate: int = 0  # 0 until the first start has finished
    pid: int = 0  # of the engine's process while it runs; 0 if it has none of its own
    running_since: float = 0.0  # the end of the last start

    @property
    def running(self) -> bool:
        return self.state is EngineState.RUNNING

    def down_seconds(self, now: float) -> float:
        """For how long a failed engine has not been running."""
        return 0.0 if self.down_since is None else max(0.0, now - self.down_since)

    def retry_after(self, now: float) -> float:
        """Seconds until the engine is expected to run; counts down."""
        if self.state is EngineState.CLOSED:
            return CLOSED_RETRY_SECONDS
        if self.state is EngineState.STARTING:
            return FIRST_START_RETRY_SECONDS
        remaining = self.start_seconds if self.expected_at is None else self.expected_at - now
        return max(MIN_RETRY_SECONDS, remaining)

    def describe(self, name: str = "The engine") -> str:
        """What the engine does, for people."""
        if self.state is EngineState.CLOSED:
            return f"{name} is closed."
        doing = "restarting" if self.state is EngineState.RESTARTING else "starting"
        stage = f" ({self.stage}, {self.progress:.0%})" if self.stage else ""
        return f"{name} is {doing}{stage}."

    def error(self, now: float, name: str = "The engine") -> EngineDown:
        """The error of a call that the engine cannot serve now."""
        seconds = self.retry_after(now)
        retry = "" if self.state is EngineState.CLOSED else f" Try again in {seconds:.0f} s."
        return EngineDown(self.describe(name) + retry, seconds)
