# SPDX-License-Identifier: Apache-2.0
"""A thousand clients that disconnect at random moments: every slot is free within a second."""

import sys
from functools import partial

from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import serving
from server.load_storms import seconds_until, storm
from server.multi_worker import running_workers

CLIENTS = 1000
FREE_WITHIN = 1.0  # seconds
PAUSE_AFTER = 24  # chunks that are made of every stream


def test_a_thousand_clients_that_go_away_leave_nothing_behind() -> None:
    engine = PausableEngine()
    try:
        with serving(engine, Settings(max_streams=200)) as server, server.client() as client:
            engine.resume(PAUSE_AFTER)
            storm(server, CLIENTS, seed=1)
            seconds = seconds_until(lambda: engine.streams == 0 and not server.state.synthesis.active)
            sys.stdout.write(f"\nfree after {seconds:.2f} s\n")
            assert seconds < FREE_WITHIN
            engine.resume()
            assert server.speak(client).status_code == 200
            body = client.get("/metrics").text
            assert f'polyvox_aborts_total{{reason="disconnect"}} {CLIENTS}.0' in body
            assert 'polyvox_requests_total{outcome="error"} 0.0' in body
    finally:
        engine.close()


def test_a_thousand_clients_of_several_processes_leave_nothing_behind() -> None:
    build = partial(PausableEngine, max_chunks=PAUSE_AFTER)
    with running_workers(build, Settings(workers=2, max_streams=200)) as server:
        storm(server, CLIENTS, seed=2)
        seconds = seconds_until(lambda: server.num_streams() == 0)
        sys.stdout.write(f"\nfree after {seconds:.2f} s\n")
        assert seconds < FREE_WITHIN
        seconds_until(lambda: server.counted("polyvox_aborts_total") == {"disconnect": CLIENTS})
        assert set(server.counted("polyvox_requests_total")) <= {"cancelled", "length", "stop"}
