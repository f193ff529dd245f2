# SPDX-License-Identifier: Apache-2.0
"""Four times the capacity for a minute: admitted requests have no underruns, the others are rejected at once."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial

import pytest

from ipc.engine_processes import engine_stats
from polyvox.engine.interface import InProcessEngine
from polyvox.server.settings import Settings
from polyvox.server.workers import build_engine
from server.multi_worker import running_workers
from server.overload import LOAD, Flooded, ask, flood, rate_of
from server.paced_engine import PacedEngine

SECONDS = 60
REFUSED_WITHIN = 0.1  # seconds
STREAMS = 8
SETTINGS = Settings(device="cpu", workers=2, max_queue_seconds=1.0, max_streams=STREAMS, max_queue=64)


# The embedded voice is as fast as the machine, which has to be idle; the other only waits.
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(partial(PacedEngine, STREAMS, SETTINGS.max_queue, SETTINGS.max_queue_seconds), id="paced"),
        pytest.param(partial(build_engine, SETTINGS), id="embedded voice"),
    ],
)
def test_at_four_times_the_load_admitted_requests_have_no_underruns_and_others_are_rejected_at_once(
    engine: Callable[[], InProcessEngine],
) -> None:
    with running_workers(engine, SETTINGS) as server:
        for seed in range(5):
            asyncio.run(ask(server.port, "Of course, I have body the others.", seed))
        before = engine_stats(server.engine_process.endpoint)
        rate = rate_of(before["capacity"])
        flooded = Flooded.of(asyncio.run(flood(server.port, rate, SECONDS)))
        after = engine_stats(server.engine_process.endpoint)
    underruns, late = (after[name] - before[name] for name in ("underruns", "finished_error"))
    sys.stdout.write(
        f"\n{SECONDS} s at {rate:.1f} requests/s, {LOAD} x {before['capacity']:g} streams: {flooded.summary()}, "
        f"underruns {underruns:g}, rejected after a wait {late:g}\n"
    )
    assert len(flooded.rejected) > len(flooded.admitted)
    assert underruns == 0
    assert late == 0
    assert flooded.rejection_latency(1.0) <= REFUSED_WITHIN
