# SPDX-License-Identifier: Apache-2.0
"""The reports of the load by the engine's process."""

import asyncio
import time
from typing import cast

import pytest

from engine.held_lock import holding
from ipc.engine_processes import TIMEOUT
from ipc.fake_engine import FakeEngine
from polyvox.engine.engine_load import EngineLoad
from polyvox.garbage_collection import FullCollections
from polyvox.ipc import process
from polyvox.ipc.status_file import LoadFile

pytestmark = pytest.mark.anyio


class Reports:
    """Instead of the file."""

    def __init__(self) -> None:
        self.written = asyncio.Queue[EngineLoad]()

    def write(self, load: EngineLoad) -> None:
        self.written.put_nowait(load)


async def test_reports_continue_after_a_wait_for_the_engine_in_which_other_tasks_have_used_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "MAX_LOAD_SHARE", 1e-3)
    engine, reports = FakeEngine(), Reports()
    arguments = engine, cast(LoadFile, reports), asyncio.Event(), FullCollections()
    try:
        with holding(engine.work) as holder:
            task = asyncio.create_task(process._report_load(*arguments))
            await asyncio.sleep(0.01)
            used_until = time.thread_time() + 0.1
            while time.thread_time() < used_until:
                pass
            await asyncio.sleep(0.01)
            assert reports.written.empty()
            assert holder.is_alive()
        for _ in range(2):  # 0.1 s of CPU time would be an interval of 100 s
            await asyncio.wait_for(reports.written.get(), TIMEOUT)
        task.cancel()
    finally:
        engine.close()
