"""A thousand clients that disconnect at random moments."""

from polyvox.server.settings import Settings
from server.crowds import storm
from server.fakes import HeldEngine
from server.serving import serving


def test_a_thousand_clients_that_go_away_leave_nothing_behind() -> None:
    engine = HeldEngine()
    try:
        with serving(engine, Settings(max_streams=200)) as server, server.client() as client:
            engine.let_go(24)
            storm(server, engine, 1000, seed=1)
            engine.let_go()
            assert server.speak(client).status_code == 200
            told = client.get("/metrics").text
            assert 'polyvox_aborts_total{reason="disconnect"} 1000.0' in told
    finally:
        engine.close()
