# SPDX-License-Identifier: Apache-2.0
"""Graceful shutdown: running streams finish, and new connections are answered or refused at once."""

import json
import socket
from functools import partial

import httpx
import pytest
from websockets.sync.client import connect

from ipc.engine_processes import eventually
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.load_storms import begin, is_whole, read_response
from server.multi_worker import RunningWorkers, running_workers

pytestmark = pytest.mark.slow

CHUNKS, SECONDS = 150, 4.0  # of a stream
TIMEOUT = 60.0  # seconds; a connection that is left unanswered ends with its process


def streams_of_all(server: RunningWorkers) -> list[socket.socket]:
    """Streams that have started, at least one in each process."""
    found: dict[int, list[socket.socket]] = {pid: [] for pid in server.workers()}
    while not all(found.values()):
        connection = begin(server, max_new_tokens=CHUNKS)
        connection.recv(1, socket.MSG_PEEK)
        found[server.worker_of(connection)].append(connection)
    return [connection for each in found.values() for connection in each]


def get(server: RunningWorkers, path: str) -> httpx.Response | None:
    """The response on a new connection; None if it is refused or reset."""
    try:
        return httpx.get(server.address + path, timeout=TIMEOUT, trust_env=False)
    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
        return None


def handshake(server: RunningWorkers) -> bytes:
    """The response to a new WebSocket."""
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        connection.sendall(
            b"GET /v1/audio/speech/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        return connection.recv(4000)


@pytest.mark.parametrize("workers", [1, 3])
def test_new_connections_are_answered_at_once_during_the_drain_and_refused_after_it(workers: int) -> None:
    engine = partial(PausableEngine, step_seconds=SECONDS / CHUNKS)
    with running_workers(engine, Settings(workers=workers, max_streams=50)) as server:
        streams = streams_of_all(server)
        server.parent.terminate()
        eventually(lambda: (answer := get(server, "/readyz")) is None or answer.status_code == 503)
        statuses = []
        while (answer := get(server, "/readyz")) is not None:  # to the end of the last process
            statuses.append((answer.status_code, answer.json()["status"], answer.headers.get("connection")))
            if (live := get(server, "/livez")) is not None:
                assert live.status_code == 200
            if len(statuses) == 1:
                for rejected in (read_response(begin(server)), handshake(server)):
                    assert rejected.startswith(b"HTTP/1.1 503")
                    assert b"retry-after" in rejected
        assert set(statuses) == {(503, "draining", "close")}
        assert all(is_whole(read_response(connection)) for connection in streams)
        server.parent.join(TIMEOUT)
        assert server.parent.exitcode == 0


def test_streams_that_exceed_the_drain_timeout_are_cut_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    settings = Settings(workers=2, max_streams=50, drain_timeout=0.5)
    with (
        running_workers(partial(PausableEngine, max_chunks=24), settings) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream") as websocket,
    ):
        streams = [begin(server, max_new_tokens=1000, stream_format=kind) for kind in ("audio", "sse") for _ in "ab"]
        for connection in streams:
            connection.recv(1, socket.MSG_PEEK)
        websocket.send(json.dumps({"type": "session.config", "stream_audio": True, "max_new_tokens": 1000}))
        websocket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
        websocket.send(json.dumps({"type": "input.done"}))
        while not isinstance(websocket.recv(timeout=20), bytes):
            pass
        server.parent.terminate()
        assert not any(is_whole(read_response(connection)) for connection in streams)
        server.parent.join(TIMEOUT)  # the streams never end by themselves
        assert server.parent.exitcode == 0
    log = capfd.readouterr().err
    assert log.count("request aborted") == len(streams) + 1  # and the utterance of the WebSocket
    assert log.count("reason=drain") == len(streams)
    assert "Traceback" not in log
    assert "Exception" not in log
