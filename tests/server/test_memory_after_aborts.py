# SPDX-License-Identifier: Apache-2.0
"""Clients that disconnect leave no reference cycles: memory is freed at once, not when the garbage collector runs."""

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ipc.engine_processes import eventually
from polyvox.server.api.websocket_connection import LiveUtterance, WebSocketConnection
from polyvox.server.middleware.connection import AbortableWebSocketProtocol, TimeoutProtocol
from polyvox.server.synthesis.output import OutputEncoder
from polyvox.server.synthesis.utterance import Utterance
from server.abort_storm import storm_in_process
from server.fakes import PausableEngine
from server.live_server import serving

pytestmark = pytest.mark.slow

NUM_CLIENTS = 300
SETTLE_SECONDS = 5.0  # in which the server sees the last disconnections
MAX_GARBAGE = NUM_CLIENTS  # objects; each cycle of a session has about 200 per client
PER_CONNECTION = (
    AbortableWebSocketProtocol, LiveUtterance, OutputEncoder, TimeoutProtocol, Utterance, WebSocketConnection
)  # fmt: skip


@contextmanager
def collector_disabled() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def live_objects() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in PER_CONNECTION)


def test_aborted_requests_of_every_transport_leave_no_garbage() -> None:
    with closing(PausableEngine(max_chunks=24)) as engine, serving(engine) as server:
        storm_in_process(server.port, 50)  # imports modules and fills caches
        with collector_disabled():
            storm_in_process(server.port, NUM_CLIENTS, seed=1)
            eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
            deadline = time.monotonic() + SETTLE_SECONDS
            while live_objects() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert live_objects() == {}
            before = len(gc.get_objects())
            gc.collect()
            assert before - len(gc.get_objects()) < MAX_GARBAGE
