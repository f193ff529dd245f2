# SPDX-License-Identifier: Apache-2.0
"""The life of a supervised engine: start, service, failure, and the delay before the next start."""

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.errors import EngineDown, PolyvoxError
from polyvox.progress import Stage, StageTimes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a failed engine or process is started again. Times are in seconds."""

    initial_delay: float = 0.5  # after the first failure; doubled by each further one
    max_delay: float = 30.0
    healthy_seconds: float = 60.0  # after a run this long the next delay is initial_delay


class Backoff:
    """The delays before restarts. Each is shortened by up to a half at random, so that engines that failed together do
    not start together."""

    def __init__(self, policy: RestartPolicy, jitter: Callable[[], float] = random.random) -> None:
        self._policy, self._jitter = policy, jitter
        self.num_failures = 0  # since the last healthy run

    def next_delay(self, run_seconds: float) -> float:
        """Counts a failure after this run and returns the seconds until the next start."""
        policy = self._policy
        if run_seconds >= policy.healthy_seconds:
            self.num_failures = 0
        longest = min(policy.max_delay, policy.initial_delay * 2.0 ** min(self.num_failures, 60))
        self.num_failures += 1
        return longest * (1 - 0.5 * self._jitter())


def start_error(error: Exception) -> PolyvoxError:
    """The error of a failed start, for the user. One that Polyvox does not expect is logged with its traceback."""
    if isinstance(error, PolyvoxError):
        return error
    log.error("engine start failed", exc_info=error)
    return EngineDown(f"The engine could not be started: {type(error).__name__}: {error}", retry_after=0)


class EngineLifecycle:
    """Keeps the status of an engine and decides when it is started again: with exponential backoff, without end.

    publish: receives every change of the status. log_fields: of all log lines.
    """

    def __init__(
        self,
        policy: RestartPolicy,
        publish: Callable[[EngineStatus], None],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        log_fields: Mapping[str, object] | None = None,
    ) -> None:
        self._publish, self._clock, self._log_fields = publish, clock, log_fields or {}
        self._backoff = Backoff(policy, jitter)
        self._began = clock()
        self._stages = StageTimes(clock)
        self.status = EngineStatus(EngineState.STARTING)
        publish(self.status)

    def begin_start(self) -> None:
        """An attempt to start begins."""
        self._began, self._stages = self._clock(), StageTimes(self._clock)
        status = self.status
        if status.state is EngineState.RESTARTING:
            expected_at = self._began + status.start_seconds
            self._set(replace(status, expected_at=expected_at, num_restarts=status.num_restarts + 1))

    def on_progress(self, stage: Stage, done: int, total: int) -> None:
        """The start in progress has reported a stage."""
        self._stages(stage, done, total)
        self._set(replace(self.status, stage=stage, progress=min(1.0, done / total) if total else 1.0))

    def on_started(self, sample_rate: int, pid: int = 0) -> dict[str, float]:
        """The engine runs. Returns the duration of the start, as `total`, and of its stages.

        pid: of its process, if it has one of its own.
        """
        now, status = self._clock(), self.status
        seconds = {"total": now - self._began, **self._stages.seconds()}
        log.info(
            "engine ready" if status.state is EngineState.STARTING else "engine restarted",
            extra={
                **self._log_fields,
                **({"pid": pid} if pid else {}),
                **{"seconds" if name == "total" else name: round(value, 1) for name, value in seconds.items()},
            },
        )
        self._set(
            EngineStatus(
                EngineState.RUNNING,
                start_seconds=seconds["total"],
                num_restarts=status.num_restarts,
                sample_rate=sample_rate,
                pid=pid,
                running_since=now,
            )
        )
        return seconds

    def on_failed(self, reason: str) -> float:
        """The engine, or its start, failed. Returns the seconds until the next attempt."""
        now, status = self._clock(), self.status
        delay = self._backoff.next_delay(now - status.running_since if status.running else 0.0)
        down_since = now if status.down_since is None else status.down_since
        log.warning(
            "engine restarting",
            extra={
                **self._log_fields,
                "reason": reason,
                "failures": self._backoff.num_failures,
                "delay": round(delay, 2),
            },
        )
        self._set(
            replace(
                status,
                state=EngineState.RESTARTING,
                stage="",
                progress=0.0,
                pid=0,
                reason=reason,
                down_since=down_since,
                expected_at=now + delay + status.start_seconds,
            )
        )
        return delay

    def on_resumed(self) -> None:
        """An engine that counted as failed, because a step took too long, runs again."""
        log.info("engine resumed", extra=self._log_fields)
        self._set(replace(self.status, state=EngineState.RUNNING, reason="", down_since=None, expected_at=None))

    def close(self) -> None:
        self._set(replace(self.status, state=EngineState.CLOSED))

    def _set(self, status: EngineStatus) -> None:
        self.status = status
        self._publish(status)
