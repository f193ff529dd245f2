# SPDX-License-Identifier: Apache-2.0
"""Several server processes: they share counts, and a failure of one does not affect the others."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ipc.engine_processes import await_another, eventually, send
from polyvox.errors import PolyvoxError
from polyvox.ipc.supervisor import EngineProcess
from polyvox.server.settings import Settings
from polyvox.server.workers import run_workers
from server.fakes import PausableEngine, build_slowly
from server.load_storms import begin, is_whole, read_response, status_of, storm
from server.multi_worker import RunningWorkers, running_workers

pytestmark = pytest.mark.slow

CHUNKS = 150  # of a stream that lasts
SECONDS = 3.0  # as long as this


@pytest.fixture(scope="module")
def paused() -> Iterator[RunningWorkers]:
    """Every stream pauses before its end; three concurrent requests per key."""
    settings = Settings(workers=2, max_streams=200, api_keys=["a", "b"], max_streams_per_key=3, public=["metrics"])
    with running_workers(partial(PausableEngine, max_chunks=24), settings) as server:
        yield server


@pytest.fixture(scope="module")
def lasting() -> Iterator[RunningWorkers]:
    """Every stream lasts some seconds. The last test that uses the server stops it."""
    engine = partial(PausableEngine, step_seconds=SECONDS / CHUNKS)
    with running_workers(engine, Settings(workers=2, max_streams=50)) as server:
        yield server


def of_both(server: RunningWorkers, each: int = 2) -> dict[int, list[socket.socket]]:
    """Streams that have started, at least `each` in each process."""
    found: dict[int, list[socket.socket]] = {pid: [] for pid in server.workers()}
    while min(map(len, found.values())) < each:
        connection = begin(server, max_new_tokens=CHUNKS)
        connection.recv(1, socket.MSG_PEEK)
        found[server.worker_of(connection)].append(connection)
    return found


def free(server: RunningWorkers) -> bool:
    return server.num_streams() == 0


def admitted(server: RunningWorkers, key: str) -> socket.socket:
    """A request that is admitted: a count is released a moment after its stream has ended."""
    found: list[socket.socket] = []

    def served() -> bool:
        found.append(begin(server, key=key, max_new_tokens=1000))
        with suppress(ConnectionResetError):  # a killed process resets the connections that it has not accepted
            if status_of(found[-1].recv(1000)) == 200:
                return True
        found.pop().close()
        return False

    eventually(served)
    return found[0]


def test_requests_of_a_key_are_counted_over_all_processes(paused: RunningWorkers) -> None:
    speaking = [begin(paused, key="a", max_new_tokens=1000) for _ in range(3)]
    for connection in speaking:
        connection.recv(1, socket.MSG_PEEK)
    for _ in range(20):  # whichever process takes it
        answer = read_response(begin(paused, key="a"))
        assert status_of(answer) == 429
        assert b"maximum-concurrent-requests: 3" in answer
    other = begin(paused, key="b", max_new_tokens=1000)
    assert status_of(other.recv(1000)) == 200
    speaking.pop().close()
    eventually(lambda: paused.num_streams() == 3)
    again = admitted(paused, "a")
    for connection in [*speaking, other, again]:
        connection.close()
    eventually(partial(free, paused))


def test_the_counts_of_a_killed_process_are_released(paused: RunningWorkers) -> None:
    eventually(partial(free, paused))
    speaking = [begin(paused, key="a", max_new_tokens=1000) for _ in range(3)]
    for connection in speaking:
        connection.recv(1, socket.MSG_PEEK)
    killed = paused.worker_of(speaking[0])
    left = [connection for connection in speaking if paused.worker_of(connection) != killed]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: paused.num_streams() == len(left))
    more = [admitted(paused, "a") for _ in range(3 - len(left))]
    assert status_of(read_response(begin(paused, key="a"))) == 429
    for connection in [*speaking, *more]:
        connection.close()
    eventually(lambda: free(paused) and len(paused.workers()) == 2)


def test_a_hundred_disconnects_free_everything_in_all_processes() -> None:
    with running_workers(partial(PausableEngine, max_chunks=24), Settings(workers=2, max_streams=200)) as server:
        storm(server, 100)
        eventually(partial(free, server))
        eventually(lambda: server.counted("polyvox_aborts_total") == {"disconnect": 100})


def test_a_killed_process_is_restarted_and_other_streams_continue(lasting: RunningWorkers) -> None:
    streams = of_both(lasting)
    killed, spared = streams
    os.kill(killed, signal.SIGKILL)
    assert not any(is_whole(read_response(connection)) for connection in streams[killed])
    assert all(is_whole(read_response(connection)) for connection in streams[spared])
    eventually(partial(free, lasting))
    eventually(lambda: len(lasting.workers()) == 2)
    assert killed not in lasting.workers()
    eventually(lasting.ready)
    streams = of_both(lasting, each=1)
    assert all(is_whole(read_response(connection)) for each in streams.values() for connection in each)


def test_a_dead_engine_is_reported_by_all_processes_until_it_is_restarted() -> None:
    engine = partial(build_slowly, 3.0, SECONDS / CHUNKS)  # longer than the processes take to notice its end
    with running_workers(engine, Settings(workers=2, max_streams=50)) as server:
        streams = of_both(server)
        events = begin(server, stream_format="sse", max_new_tokens=CHUNKS)
        events.recv(1, socket.MSG_PEEK)
        killed = send(server.engine_process)
        for connection in [connection for each in streams.values() for connection in each]:
            answer = read_response(connection)
            assert status_of(answer) == 200
            assert not is_whole(answer)
        assert b"speech.audio.error" in read_response(events)
        eventually(lambda: not server.ready())
        assert status_of(read_response(begin(server))) == 503
        await_another(server.engine_process, killed)
        eventually(server.ready)
        for connection in [connection for each in of_both(server, each=1).values() for connection in each]:
            assert is_whole(read_response(connection))


def test_a_server_that_cannot_be_set_up_ends_instead_of_restarting_its_processes() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        EngineProcess(PausableEngine) as engine_process,
        pytest.raises(PolyvoxError, match=r"^The server cannot be set up: Invalid value for 'lexicon'"),
    ):
        run_workers([engine_process.endpoint], Settings(workers=2, lexicon=Path("missing.txt")), listener)


def test_sigterm_lets_the_streams_of_all_processes_finish(lasting: RunningWorkers) -> None:
    streams = [connection for each in of_both(lasting).values() for connection in each]
    lasting.parent.terminate()
    assert all(is_whole(read_response(connection)) for connection in streams)
    lasting.parent.join(20)
    assert lasting.parent.exitcode == 0
