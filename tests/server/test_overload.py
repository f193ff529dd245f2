"""Four times as many as can be served; for a minute, and with the embedded voice, in `make soak`."""

import asyncio
from contextlib import closing, suppress

from polyvox.errors import Overloaded
from polyvox.models.request import Request
from polyvox.server.settings import Settings
from server.live_server import serving
from server.overload import Flooded, flood, rate_of
from server.paced_engine import PacedEngine


def test_nobody_is_refused_after_having_waited_and_those_admitted_are_fed() -> None:
    with (
        closing(PacedEngine(slots=8, queue=64, queue_seconds=1.0)) as engine,
        serving(engine, Settings(max_streams=8, max_queue=64, max_queue_seconds=1.0)) as server,
    ):
        flooded = Flooded.of(asyncio.run(flood(server.port, rate_of(engine.stats()["capacity"]), seconds=8.0)))
        stats = engine.stats()
        outcomes = server.state.metrics.page({}).decode()
    assert len(flooded.admitted) > 8
    assert len(flooded.refused) > 10
    assert stats["finished_error"] == 0
    assert stats["underruns"] == 0
    assert f'polyvox_requests_total{{outcome="overloaded"}} {len(flooded.refused):.1f}' in outcomes
    assert flooded.refusal(0.5) < 0.1, flooded.told()


def test_a_server_on_a_full_engine_becomes_ready() -> None:
    with closing(PacedEngine(slots=8, queue=64, queue_seconds=1.0)) as engine:
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
