# SPDX-License-Identifier: Apache-2.0
"""Polyvox on a Ray cluster of CPU replicas: streams, sockets, limits, killed replicas, scaling under load."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets

from conformance.client_runs import ROOT
from conformance.ray_cluster import PYTHON, START_TIMEOUT, TEXT, RayCluster, StreamOutcome, run_cluster

NUM_KILLS = 20
SERVICE_RESTART = 1012


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with run_cluster(tmp_path_factory.mktemp("ray")) as running:
        yield running


@pytest.fixture(scope="module")
def voices(cluster: RayCluster) -> RayCluster:
    """Two replicas of the embedded voice."""
    cluster.deploy(min=2, max=2)
    cluster.wait_for_replicas(2)
    return cluster


@pytest.fixture(scope="module")
def paced(cluster: RayCluster) -> RayCluster:
    """Two replicas whose engines only sleep, of seven streams each."""
    cluster.deploy(min=2, max=2, engine="paced")
    cluster.wait_for_replicas(2)
    return cluster


# The embedded voice


def test_audio_streams_and_is_the_same_on_every_replica(voices: RayCluster) -> None:
    with httpx.Client(base_url=voices.url, timeout=120, trust_env=False) as client:
        body = {"input": TEXT, "seed": 3, "response_format": "pcm"}
        responses = [client.post("/v1/audio/speech", json=body) for _ in range(6)]
        malformed = client.post("/v1/audio/speech", json=body, headers={"x-request-id": "not valid"})
    assert {response.status_code for response in responses} == {200}
    assert {len(response.headers.get_list("x-request-id")) for response in [*responses, malformed]} == {1}
    samples = [np.frombuffer(response.content, "<i2") for response in responses]
    assert all(len(each) == len(samples[0]) for each in samples)
    assert all(np.abs(each.astype(int) - samples[0]).max() < 64 for each in samples)  # float32 sums in other batches
    outcome = voices.stream()
    assert outcome.completed
    assert outcome.num_chunks > 5  # not buffered on its way


def test_server_sent_events_arrive_one_by_one(voices: RayCluster) -> None:
    body = {"input": TEXT, "response_format": "pcm", "stream_format": "sse"}
    with (
        httpx.Client(base_url=voices.url, timeout=120, trust_env=False) as client,
        client.stream("POST", "/v1/audio/speech", json=body) as response,
    ):
        blocks = list(response.iter_raw())
    assert response.headers["content-type"].startswith("text/event-stream")
    assert len(blocks) > 5
    assert b"".join(blocks).count(b"data: ") > 5


def test_a_websocket_streams_text_in_and_audio_out(voices: RayCluster) -> None:
    async def speak() -> tuple[int, list[str]]:
        url = voices.url.replace("http", "ws") + "/v1/audio/speech/stream"
        num_bytes, events = 0, []
        async with websockets.connect(url, proxy=None, max_size=None) as connection:
            await connection.send(
                json.dumps({"type": "session.config", "response_format": "pcm", "stream_audio": True})
            )
            for word in TEXT.split():
                await connection.send(json.dumps({"type": "input.text", "text": word + " "}))
            await connection.send(json.dumps({"type": "input.done"}))
            async with asyncio.timeout(120):
                async for message in connection:
                    if isinstance(message, bytes):
                        num_bytes += len(message)
                        continue
                    events.append(json.loads(message)["type"])
                    if events[-1] == "session.done":
                        break
        return num_bytes, events

    num_bytes, events = asyncio.run(speak())
    assert num_bytes > 48_000
    assert events[0] == "audio.start"
    assert events[-1] == "session.done"


def test_all_replicas_see_what_one_has_stored(voices: RayCluster) -> None:
    with httpx.Client(base_url=voices.url, timeout=60, trust_env=False) as client:
        rules = [{"type": "alias", "string_to_replace": "SQL", "alias": "sequel"}]
        added = client.post("/v1/pronunciation-dictionaries/add-from-rules", json={"name": "Terms", "rules": rules})
        assert added.status_code == 200, added.text
        path = f"/v1/pronunciation-dictionaries/{added.json()['id']}"
        assert {client.get(path).status_code for _ in range(20)} == {200}


# Engines that only sleep


def test_a_killed_replica_fails_its_own_streams_only(paced: RayCluster) -> None:
    outcomes: list[StreamOutcome] = []
    for _ in range(NUM_KILLS):
        threads = [threading.Thread(target=lambda: outcomes.append(paced.stream())) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)  # all have begun: the audio of each takes 2 s to make
        victim = paced.replica_pids()[0]
        os.kill(victim, signal.SIGKILL)
        for thread in threads:
            thread.join(120)
        assert paced.stream().completed  # the other one serves
        deadline = time.monotonic() + START_TIMEOUT
        while victim in (pids := paced.replica_pids()) or len(pids) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        paced.wait_for_replicas(2)
    assert len(outcomes) == 6 * NUM_KILLS
    failed = [outcome for outcome in outcomes if not outcome.completed]
    whole = {outcome.num_bytes for outcome in outcomes if outcome.completed}
    assert len(whole) == 1  # no stream that looks complete is shorter
    assert 0 < len(failed) < len(outcomes)
    assert all(outcome.num_bytes not in whole for outcome in failed)
    # The proxy answers 500 itself if a replica dies before its response has begun; Polyvox sends no such status.
    assert {(outcome.status, outcome.from_proxy) for outcome in failed} <= {(200, False), (500, True)}
    num_not_begun = sum(outcome.status == 500 for outcome in failed)
    print(f"{num_not_begun} streams had not begun")  # noqa: T201
    print(f"{len(failed)} of {len(outcomes)} streams failed with {NUM_KILLS} kills")  # noqa: T201


def test_a_full_cluster_rejects_with_a_time_to_retry(paced: RayCluster) -> None:
    served, rejected = request_at_once(paced, 60)
    assert all(int(response.headers["retry-after"]) >= 1 for response in rejected)
    assert len(served) > 7  # more than the capacity of one replica


def test_a_proxy_with_a_full_queue_rejects_with_a_time_to_retry(cluster: RayCluster) -> None:
    limits = {"max_ongoing_requests": 1, "max_queued_requests": 1}
    cluster.deploy(min=1, max=1, engine="paced", options=limits)
    cluster.wait_for_replicas(1)
    served, rejected = request_at_once(cluster, 6)
    assert len(served) >= 1
    assert {response.headers["retry-after"] for response in rejected} == {"1"}


def request_at_once(cluster: RayCluster, count: int) -> tuple[list[httpx.Response], list[httpx.Response]]:
    """The responses with status 200 and those with 503; there are no others."""
    responses: list[httpx.Response] = []

    def request() -> None:
        with httpx.Client(base_url=cluster.url, timeout=120, trust_env=False) as client:
            responses.append(client.post("/v1/audio/speech", json={"input": TEXT * 4, "response_format": "pcm"}))

    threads = [threading.Thread(target=request) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {response.status_code for response in responses} == {200, 503}
    return [one for one in responses if one.status_code == 200], [one for one in responses if one.status_code == 503]


def test_a_key_is_limited_over_all_replicas_and_a_dead_one_gives_back_its_share(cluster: RayCluster) -> None:
    cluster.deploy(min=2, max=2, engine="paced", settings={"max_streams_per_key": 4})
    cluster.wait_for_replicas(2)
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=cluster.url, timeout=120, trust_env=False))

        def begin() -> int:
            body = {"input": TEXT * 10, "response_format": "pcm"}  # longer than the test
            response = stack.enter_context(client.stream("POST", "/v1/audio/speech", json=body))
            return response.status_code

        assert [begin() for _ in range(10)] == [200] * 4 + [429] * 6
        os.kill(cluster.replica_pids()[0], signal.SIGKILL)
        os.kill(cluster.replica_pids()[0], signal.SIGKILL)
        wait_for(lambda: begin() == 200)


def test_scaling_up_and_down_under_load_fails_no_request(cluster: RayCluster) -> None:
    cluster.deploy(min=1, max=3, engine="paced")
    cluster.wait_for_replicas(1)
    stop = threading.Event()
    level = [6]  # concurrent requests
    outcomes: list[StreamOutcome] = []

    def client(index: int) -> None:
        while not stop.is_set():
            if index < level[0]:
                outcomes.append(cluster.stream())
            else:
                stop.wait(0.1)

    threads = [threading.Thread(target=client, args=[index]) for index in range(12)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: cluster.num_running() == 2)  # 6 of 7 streams are more than 70 %
        level[0] = 12
        wait_for(lambda: cluster.num_running() == 3)
        time.sleep(5)
        level[0] = 1
        cluster.wait_for_replicas(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    rejected = sum(outcome.status == 503 for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.status != 503 and not outcome.completed]
    underruns = sum(outcome.underruns > 0 for outcome in outcomes)
    print(f"{len(outcomes)} requests, {rejected} rejected, {underruns} with an underrun")  # noqa: T201
    assert failed == []
    assert rejected <= len(outcomes) // 20  # while the second replica starts
    assert len({outcome.num_bytes for outcome in outcomes if outcome.completed}) == 1


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + START_TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_quiet_websocket_is_closed_when_its_replica_is_removed(cluster: RayCluster) -> None:
    cluster.deploy(min=2, max=2, engine="paced", settings={"websocket_idle_timeout": 600})
    cluster.wait_for_replicas(2)

    async def hold() -> set[int | None]:
        url = cluster.url.replace("http", "ws") + "/v1/audio/speech/stream"
        sockets = [await websockets.connect(url, proxy=None) for _ in range(12)]
        for each in sockets:
            await each.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
        command = {"min": 1, "max": 1, "engine": "paced", "settings": {"websocket_idle_timeout": 600}}
        await asyncio.to_thread(lambda: cluster.deploy(**command))
        closed = [asyncio.create_task(each.wait_closed()) for each in sockets]
        async with asyncio.timeout(120):
            await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(cluster.wait_for_replicas, 1)
        codes = {each.close_code for each in sockets}
        for each in sockets:
            await each.close()
        return codes

    codes = asyncio.run(hold())
    assert SERVICE_RESTART in codes
    assert codes <= {SERVICE_RESTART, None}  # those of the other replica are open


# Without the cluster


def test_the_configuration_file_is_valid() -> None:
    check = (
        "import sys, yaml; from ray.serve.schema import ServeDeploySchema; "
        "found = ServeDeploySchema.model_validate(yaml.safe_load(open(sys.argv[1]))); "
        "from polyvox.server.settings_sources import load_settings; load_settings(found.applications[0].args); "
        "from ray._common.utils import import_attr; import_attr(found.applications[0].import_path)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [str(PYTHON), "-c", check, str(ROOT / "deploy/ray/serve.yaml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_deploys_and_stops_on_a_signal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "POLYVOX_VOICES_DIR": str(tmp_path),
        "RAY_ADDRESS": "",
    }
    command = [str(PYTHON), "-m", "polyvox", "serve", "--ray", "--device", "cpu", "--port", str(port)]
    log = (tmp_path / "log").open("w+")
    with subprocess.Popen(command, env=environment, stderr=log, stdout=log) as process:
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while True:
                try:
                    response = httpx.post(
                        f"http://127.0.0.1:{port}/v1/audio/speech",
                        json={"input": "Hello."},
                        trust_env=False,
                        timeout=60,
                    )
                    if response.status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
                assert time.monotonic() < deadline
                time.sleep(0.5)
        finally:
            process.terminate()
            code = process.wait(120)
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
