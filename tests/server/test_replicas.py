# SPDX-License-Identifier: Apache-2.0
"""A server on three engine processes without a model: kills, drains, a stuck process, counts of keys, failed starts."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import httpx
import pytest

from ipc.engine_processes import QUICK_RESTARTS, TIMEOUT, eventually, reconnected, send
from ipc.fake_engine import FakeEngine, unbuildable
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.replica_set import ReplicaSet
from polyvox.errors import EngineDown, InvalidRequest
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.process import DRAIN_SIGNAL, EngineProcessConfig
from polyvox.ipc.replica_processes import ReplicaProcesses
from polyvox.server import replica_devices
from polyvox.server.replica_devices import VISIBLE_DEVICES, resolve_replicas, visible_gpus
from polyvox.server.server_process import connect_remote
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving_on

NUM_REPLICAS = 3
LONG = 1_000_000  # chunks of a stream that a test ends
CONFIG = EngineProcessConfig(restarts=QUICK_RESTARTS, drain_timeout=TIMEOUT)


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    with ReplicaProcesses([partial(PausableEngine, step_seconds=0.005)] * NUM_REPLICAS, CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def server(processes: ReplicaProcesses) -> Iterator[RunningServer]:
    with serving_on(connect_remote(*processes.endpoints)) as running:
        yield running


@pytest.fixture
def replicas(processes: ReplicaProcesses, server: RunningServer) -> ReplicaProcesses:
    """All of them run, and no stream does."""
    eventually(lambda: is_idle(server) or threading.Event().wait(0.02))
    return processes


def health(server: RunningServer) -> list[dict[str, Any]]:
    with server.client() as client:
        found: list[dict[str, Any]] = client.get("/health").json().get("replicas", [])
        return found


def is_idle(server: RunningServer) -> bool:
    return all(one["status"] == "ready" for one in health(server)) and not any(streams(server))


def streams(server: RunningServer) -> list[int]:
    """Streams of each replica, as it reports them."""
    return [load_of(server, replica).num_streams for replica in range(NUM_REPLICAS)]


def load_of(server: RunningServer, replica: int) -> EngineLoad:
    engine = server.state.engine.replicas[replica]
    assert isinstance(engine, AsyncRemoteEngine)
    return engine.load()


class OpenStreams(ExitStack):
    """Responses whose first audio has arrived, with the replica of each."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__()
        self._server, self._client = server, self.enter_context(server.client())

    def open(self, chunks: int = LONG) -> Iterator[bytes]:
        body = {"input": "Hello there.", "response_format": "pcm", "max_new_tokens": chunks}
        response = self.enter_context(self._client.stream("POST", "/v1/audio/speech", json=body))
        assert response.status_code == 200
        parts = response.iter_raw()
        next(parts)
        self.last_id: str = response.headers["x-request-id"]
        return parts

    def one_per_replica(self) -> dict[int, tuple[Iterator[bytes], str]]:
        """The audio and the id of one response for each replica."""
        found: dict[int, tuple[Iterator[bytes], str]] = {}
        num_open = 0
        while len(found) < NUM_REPLICAS:
            parts = self.open()
            num_open += 1
            self._wait_for_streams(num_open)
            # None if it went to a replica that has a stream already, because the next one was slow to report.
            for replica in {index for index, number in enumerate(streams(self._server)) if number} - found.keys():
                found[replica] = parts, self.last_id
        return found

    def _wait_for_streams(self, num_open: int) -> None:
        eventually(lambda: sum(streams(self._server)) >= num_open or threading.Event().wait(0.01))


def record(server: RunningServer, request_id: str) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.get(f"/v1/audio/speech/{request_id}").json()
        return found


def test_a_killed_replica_ends_its_streams_by_name_and_the_others_go_on(
    replicas: ReplicaProcesses, server: RunningServer
) -> None:
    with OpenStreams(server) as opened, server.client() as client:
        parts = opened.one_per_replica()
        restarts = health(server)[1]["restarts"]
        send(replicas.processes[1])
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts[1][0])
        failed = record(server, parts[1][1])
        assert failed["error"] == "Replica 1's process ended before the stream did."
        assert failed["replica"] == 1
        assert next(parts[0][0])
        assert next(parts[2][0])
        assert client.get("/readyz").status_code == 200
        assert server.speak(client, max_new_tokens=2).status_code == 200  # whether it is restarted or not
        eventually(lambda: health(server)[1]["restarts"] > restarts or threading.Event().wait(0.02))
        eventually(lambda: health(server)[1]["status"] == "ready" or threading.Event().wait(0.02))
    assert [one["restarts"] for one in health(server) if one["replica"] != 1] == [0, 0]


def test_requests_avoid_a_stopped_replica(replicas: ReplicaProcesses, server: RunningServer) -> None:
    stopped = send(replicas.processes[2], signal.SIGSTOP)
    try:
        eventually(lambda: load_of(server, 2).is_stuck(time.monotonic()) or threading.Event().wait(0.02))
        with server.client() as client:
            found = [server.speak(client, max_new_tokens=2) for _ in range(4)]
        assert [response.status_code for response in found] == [200] * 4
        assert 2 not in [record(server, response.headers["x-request-id"])["replica"] for response in found]
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_replica_that_drains_finishes_its_streams_and_gets_no_new_ones(
    replicas: ReplicaProcesses, server: RunningServer
) -> None:
    def is_drained(pid: int) -> bool:
        """Whether another process has replaced it."""
        return replicas.processes[0].pid not in (None, pid)

    with OpenStreams(server) as opened, server.client() as client:
        parts = [(opened.open(chunks=200), opened.last_id) for _ in range(NUM_REPLICAS)]
        drained = send(replicas.processes[0], DRAIN_SIGNAL)
        eventually(lambda: is_drained(drained) or load_of(server, 0).draining or threading.Event().wait(0.01))
        found = [server.speak(client, max_new_tokens=2).headers["x-request-id"] for _ in range(4)]
        new = [record(server, request_id)["replica"] for request_id in found]
        assert is_drained(drained) or 0 not in new  # on a slow machine it may have started again
        for each, _ in parts:
            assert sum(map(len, each)) > 0  # to a regular end
        finished = [record(server, request_id) for _, request_id in parts]
        assert [one["finish_reason"] for one in finished] == ["stop"] * NUM_REPLICAS
    eventually(lambda: is_drained(drained) or threading.Event().wait(0.02))


@pytest.mark.anyio
async def test_counts_of_keys_hold_over_servers_and_replicas(replicas: ReplicaProcesses) -> None:
    servers = [ReplicaSet([AsyncRemoteEngine(one) for one in replicas.endpoints]) for _ in range(2)]
    assert [await one.acquire_key("key:a", 2) for one in (*servers, *servers)] == [True, True, False, False]
    for one in servers:
        for engine in one.replicas:
            await engine.stats()  # after the counts, on the same connection
    first = replicas.processes[0]
    killed = send(first)
    while first.pid == killed:  # the others decide meanwhile
        assert not any([await one.acquire_key("key:a", 2) for one in servers])
    for one in servers:
        assert isinstance(one.replicas[0], AsyncRemoteEngine)
        await reconnected(one.replicas[0])
        assert not await one.acquire_key("key:a", 2)
    servers[0].release_key("key:a")
    for engine in servers[0].replicas:
        await engine.stats()
    assert await servers[1].acquire_key("key:a", 2)
    for one in servers:
        await one.close()


def test_a_replica_that_cannot_start_does_not_stop_the_others() -> None:
    with ReplicaProcesses([FakeEngine, unbuildable], CONFIG) as both:
        eventually(lambda: both.processes[0].status.running or threading.Event().wait(0.02))
        eventually(lambda: bool(both.processes[1].status.reason) or threading.Event().wait(0.02))
        assert not wait([both.start_failed], 0)
        both.check()
        assert "Replica 1" in both.processes[1].status.describe(both.endpoints[1].name)


def test_the_server_stops_if_no_replica_can_start() -> None:
    with ReplicaProcesses([unbuildable, unbuildable], CONFIG) as both:
        assert wait([both.start_failed], TIMEOUT)
        with pytest.raises(EngineDown, match="ValueError: no such checkpoint"):
            both.check()


# Devices


def test_each_replica_gets_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE_DEVICES, "3,5,GPU-8932f937")
    assert visible_gpus() == ["3", "5", "GPU-8932f937"]
    assert resolve_replicas(Settings(replicas="auto")) == ["3", "5", "GPU-8932f937"]
    assert resolve_replicas(Settings(replicas=2)) == ["3", "5"]
    assert resolve_replicas(Settings(replicas=1)) == [None]
    with pytest.raises(InvalidRequest, match=r"'replicas': must be at most 3, the number of GPUs \(got 4\)"):
        resolve_replicas(Settings(replicas=4))


@pytest.mark.parametrize("visible", ["", "-1"])
def test_without_gpus_auto_is_one_replica_and_a_number_is_kept(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv(VISIBLE_DEVICES, visible)
    assert resolve_replicas(Settings(replicas="auto")) == [None]
    assert resolve_replicas(Settings(replicas=3, device="cpu")) == [None] * 3
    with pytest.raises(InvalidRequest, match="this machine has no GPU"):
        resolve_replicas(Settings(replicas=3, device="cuda"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "must be 1 with workers: 0"),
        ({"device": "cuda:1"}, "must be 1 with device cuda:1"),
        ({"vocoder_device": "cuda:1"}, "must be 1 with vocoder_device cuda:1"),
    ],
)
def test_settings_that_name_one_engine_or_device_allow_one_replica(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(replica_devices, "visible_gpus", lambda: ["0", "1"])
    with pytest.raises(InvalidRequest, match=message):
        resolve_replicas(Settings(replicas=2, **settings))
