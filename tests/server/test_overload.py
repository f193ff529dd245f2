# SPDX-License-Identifier: Apache-2.0
"""Four times the capacity. `make soak` runs it for a minute, and with the embedded voice."""

import asyncio
from contextlib import closing, suppress

import pytest

from polyvox.errors import Overloaded
from polyvox.models.request import Request
from polyvox.server.settings import Settings
from server.live_server import serving
from server.overload import Flooded, flood, rate_of
from server.paced_engine import PacedEngine

pytestmark = pytest.mark.slow


def test_queued_requests_are_never_rejected_and_admitted_ones_have_no_underruns() -> None:
    with (
        closing(PacedEngine(slots=8, queue=64, max_queue_seconds=1.0)) as engine,
        serving(engine, Settings(max_streams=8, max_queue=64, max_queue_seconds=1.0)) as server,
    ):
        flooded = Flooded.of(asyncio.run(flood(server.port, rate_of(engine.stats()["capacity"]), seconds=8.0)))
        stats = engine.stats()
        outcomes = server.state.metrics.render().decode()
    assert len(flooded.admitted) > 8
    assert len(flooded.rejected) > 10
    assert stats["finished_error"] == 0
    assert stats["underruns"] == 0
    assert f'polyvox_requests_total{{outcome="overloaded"}} {len(flooded.rejected):.1f}' in outcomes
    assert flooded.rejection_latency(0.5) < 0.1, flooded.summary()


def test_a_server_on_a_full_engine_becomes_ready() -> None:
    with closing(PacedEngine(slots=8, queue=64, max_queue_seconds=1.0)) as engine:
        long = Request("Somebody goes on and on. " * 50)
        speaking = []
        with suppress(Overloaded):
            while True:
                speaking.append(engine.submit(long))
        assert len(speaking) >= engine.stats()["capacity"]
        with serving(engine, Settings(max_streams=8)) as server:  # which waits until it is
            assert not any(stream.result for stream in speaking)
            assert server.state.health.ready
        for stream in speaking:
            stream.cancel()
