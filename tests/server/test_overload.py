"""Four times as many as can be served; for a minute, and with the embedded voice, in `make soak`."""

import asyncio

from polyvox.server.settings import Settings
from server.overload import Flooded, flood, rate_of
from server.paced import PacedEngine
from server.serving import serving


def test_nobody_is_refused_after_having_waited_and_those_admitted_are_fed() -> None:
    engine = PacedEngine(slots=8, queue=64, queue_seconds=1.0)
    try:
        with serving(engine, Settings(max_streams=8, queue=64, slo=1.0)) as server:
            flooded = Flooded.of(asyncio.run(flood(server.port, rate_of(engine.stats()["capacity"]), seconds=8.0)))
            stats = engine.stats()
            outcomes = server.desk.metrics.page({}).decode()
    finally:
        engine.close()
    assert len(flooded.admitted) > 8
    assert len(flooded.refused) > 10
    assert stats["finished_error"] == 0
    assert stats["underruns"] == 0
    assert f'polyvox_requests_total{{outcome="overloaded"}} {len(flooded.refused):.1f}' in outcomes
    assert flooded.refusal(0.5) < 0.1, flooded.told()
