# SPDX-License-Identifier: Apache-2.0
"""An engine in this process that hangs counts as failed until it continues."""

import pytest

from engine.held_lock import holding
from ipc.engine_processes import eventually
from ipc.fake_engine import FakeEngine
from polyvox.engine import restarting_engine
from polyvox.engine.lifecycle import RestartPolicy
from polyvox.engine.restarting_engine import RestartingEngine


def test_an_engine_whose_lock_is_not_released_counts_as_failed_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting_engine, "HANG_TIMEOUT", 0.05)
    monkeypatch.setattr(restarting_engine, "CHECK_INTERVAL", 0.01)
    fake = FakeEngine()
    engine = RestartingEngine(lambda: fake, RestartPolicy())
    try:
        eventually(lambda: engine.status().running)
        with holding(fake.work) as holder:
            eventually(lambda: not engine.status().running)
            assert holder.is_alive()
        eventually(lambda: engine.status().running)
    finally:
        engine.close()
