# SPDX-License-Identifier: Apache-2.0
"""Clients that disconnect leave no reference cycles: memory is freed at once, not when the garbage collector runs."""

import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ipc.engine_processes import eventually
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import WebSocketConnection
from polyvox.server.middleware.connection import AbortableWebSocketProtocol, TimeoutProtocol
from polyvox.server.realtime.response import RealtimeResponse
from polyvox.server.realtime.session import RealtimeSession
from polyvox.server.settings import Settings
from polyvox.server.synthesis.output import OutputEncoder
from polyvox.server.synthesis.utterance import Utterance
from server.abort_storm import storm_in_process
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.realtime_client import realtime
from server.scripted_llm import Script, scripted_llm
from server.scripted_server import Action

pytestmark = pytest.mark.slow

NUM_CLIENTS = 300
SETTLE_SECONDS = 5.0  # in which the server sees the last disconnections
MAX_GARBAGE = NUM_CLIENTS  # objects; each cycle of a session has about 200 per client
PER_CONNECTION = (
    AbortableWebSocketProtocol, LiveUtterance, OutputEncoder, RealtimeResponse, RealtimeSession, TimeoutProtocol,
    Utterance, WebSocketConnection,
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


def test_realtime_sessions_leave_no_garbage() -> None:
    with (
        scripted_llm(Script(["One two. Three", Action.WAIT])) as llm,
        closing(PausableEngine()) as engine,
        serving(engine, Settings(llm=llm.url)) as server,
    ):
        run_realtime_sessions(server, 1)
        with collector_disabled():
            run_realtime_sessions(server, 10)
            eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
            eventually(lambda: not live_objects())


def run_realtime_sessions(server: RunningServer, num_sessions: int) -> None:
    for _ in range(num_sessions):
        with realtime(server) as client:
            client.say("Hi!")
            client.send("response.create")
            client.next("response.output_audio.delta")
            client.send("response.cancel")
            client.next("response.done")
            client.send("response.create")  # which the client leaves
            client.next("response.output_audio.delta")


FREED = """
import sys
from polyvox.server.malloc import limit_malloc
if sys.argv[1] == "limited":
    assert limit_malloc()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
del [bytes(31 << 20)][:]  # glibc raises its thresholds
blocks = [b"x" * (1 << 20) for _ in range(64)]
last = b"x" * 100_000  # keeps the end of the heap in use
before = resident()
blocks.clear()
print((before - resident()) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are those of glibc")
def test_freed_memory_is_returned_to_the_system() -> None:
    def freed(mode: str) -> int:
        command = [sys.executable, "-c", FREED, mode]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert freed("limited") >= 60
    assert freed("default") < 60  # otherwise the settings have no effect here
