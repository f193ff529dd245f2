# SPDX-License-Identifier: Apache-2.0
"""The status of a supervised engine and the backoff between its starts, with a fake clock."""

import logging

import pytest

from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.engine.lifecycle import EngineLifecycle, RestartPolicy

POLICY = RestartPolicy(initial_delay=0.5, max_delay=30.0, healthy_seconds=60.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Supervised:
    """A lifecycle with a fake clock and fixed jitter."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.clock, self.published = Clock(), list[EngineStatus]()
        self.lifecycle = EngineLifecycle(POLICY, self.published.append, self.clock, lambda: jitter)

    def start(self, seconds: float = 2.0) -> None:
        self.lifecycle.begin_start()
        self.clock.now += seconds
        self.lifecycle.on_started(24_000)

    @property
    def status(self) -> EngineStatus:
        assert self.published[-1] == self.lifecycle.status
        return self.lifecycle.status


def test_the_delay_doubles_with_each_failure_up_to_its_maximum_and_never_ends() -> None:
    engine = Supervised()
    engine.start()
    delays = []
    for _ in range(2000):
        delays.append(engine.lifecycle.on_failed("died"))
        engine.start()
    assert delays[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert set(delays[8:]) == {30.0}
    assert engine.status.num_restarts == 2000


def test_jitter_shortens_a_delay_by_up_to_a_half() -> None:
    for jitter, expected in ((0.0, 0.5), (0.5, 0.375), (1.0, 0.25)):
        engine = Supervised(jitter)
        engine.start()
        assert engine.lifecycle.on_failed("died") == expected


def test_a_healthy_period_resets_the_delay_and_a_short_one_does_not() -> None:
    engine = Supervised()
    engine.start()
    for _ in range(3):
        engine.lifecycle.on_failed("died")
        engine.start()
    engine.clock.now += 59
    assert engine.lifecycle.on_failed("died") == 4
    engine.start()
    engine.clock.now += 60
    assert engine.lifecycle.on_failed("died") == 0.5


def test_time_spent_on_failed_starts_is_not_a_healthy_period() -> None:
    engine = Supervised()
    engine.start()
    engine.clock.now += 1
    engine.lifecycle.on_failed("died")
    engine.lifecycle.begin_start()
    engine.clock.now += 600  # a start that does not end
    assert engine.lifecycle.on_failed("did not start") == 1


def test_the_status_counts_down_to_the_next_service_and_says_how_long_the_engine_is_down() -> None:
    engine = Supervised()
    engine.start(seconds=10)
    assert engine.status.running
    for _ in range(6):
        delay = engine.lifecycle.on_failed("the process died")
    assert (engine.status.state, engine.status.reason) == (EngineState.RESTARTING, "the process died")
    assert engine.status.retry_after(engine.clock.now) == delay + 10
    engine.clock.now += delay - 1
    assert engine.status.retry_after(engine.clock.now) == 11
    engine.clock.now += 1
    engine.lifecycle.begin_start()
    engine.clock.now += 4
    assert engine.status.retry_after(engine.clock.now) == 6
    engine.clock.now += 100  # later than expected: never 0
    assert engine.status.retry_after(engine.clock.now) == 1
    assert engine.status.down_seconds(engine.clock.now) == delay + 104
    engine.lifecycle.on_started(24_000)
    assert (engine.status.running, engine.status.down_seconds(engine.clock.now)) == (True, 0)


def test_a_first_start_reports_its_stages_and_their_times(caplog: pytest.LogCaptureFixture) -> None:
    engine = Supervised()
    engine.lifecycle.begin_start()
    engine.clock.now += 1  # before the first stage
    engine.lifecycle.on_progress("load", 0, 4)
    engine.clock.now += 2
    engine.lifecycle.on_progress("load", 3, 4)
    assert (engine.status.state, engine.status.stage, engine.status.progress) == (EngineState.STARTING, "load", 0.75)
    assert "starting (load, 75%)" in str(engine.status.error(engine.clock.now))
    engine.lifecycle.on_progress("calibrate", 0, 3)
    engine.clock.now += 3
    with caplog.at_level(logging.INFO):
        assert engine.lifecycle.on_started(24_000) == {"total": 6, "load": 2, "calibrate": 3}
    (record,) = caplog.records
    assert record.getMessage() == "engine ready"
    assert vars(record)["calibrate"] == 3
    assert engine.status.start_seconds == 6


def test_an_engine_that_hung_and_runs_again_is_not_down() -> None:
    engine = Supervised()
    engine.start()
    engine.lifecycle.on_failed("a step takes too long")
    engine.lifecycle.on_resumed()
    assert (engine.status.running, engine.status.down_since, engine.status.num_restarts) == (True, None, 0)
