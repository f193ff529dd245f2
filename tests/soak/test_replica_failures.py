# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` with three replicas of the embedded voice: kills, drains, a stuck replica, uneven load."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from conformance.server_process import TIMEOUT, ServerProcess, run_server
from ipc.engine_processes import eventually
from polyvox.ipc.process import DRAIN_SIGNAL

NUM_REPLICAS = 3
NUM_CLIENTS = 3
NUM_SEEDS = 4
TOLERANCE = 8  # of 16-bit samples
NUM_KILLS = int(os.environ.get("SOAK_REPLICA_KILLS", "6"))
LONG_TEXT = "This sentence is repeated many times, so that its speech takes a while. " * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    quick = ("--restart-delay", "0.1", "--max-restart-delay", "0.2", "--max-queue-seconds", "25")
    with run_server(tmp_path_factory.mktemp("voices"), "--replicas", str(NUM_REPLICAS), *quick) as running:
        eventually(lambda: all_ready(running) or threading.Event().wait(0.1))
        yield running


def replicas(server: ServerProcess) -> list[dict[str, Any]]:
    with server.client() as client:
        found: list[dict[str, Any]] = client.get("/health").json().get("replicas", [])
        return found


def all_ready(server: ServerProcess) -> bool:
    found = replicas(server)
    return len(found) == NUM_REPLICAS and all(one["status"] == "ready" for one in found)


def body(seed: int, text: str | None = None) -> dict[str, Any]:
    """By default a text of its own for each seed, so that no two of them have equal audio."""
    return {"input": text or f"Hello there. This is test {seed + 1}.", "seed": seed, "response_format": "pcm"}


def assert_equal(audio: bytes, expected: bytes) -> None:
    """The same samples but for rounding: sums of float32 depend on the size of the batch."""
    found, wanted = (np.frombuffer(each, "<i2").astype(int) for each in (audio, expected))
    assert len(found) == len(wanted)
    assert np.abs(found - wanted).max() <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Answer:
    seed: int
    status: int
    audio: bytes | None  # None if the response was cut off
    error: str | None = None
    replica: int | None = None


def speak(server: ServerProcess, seed: int) -> Answer:
    with server.client() as client:
        request_id = f"seed-{seed}-{threading.get_ident()}-{time.monotonic_ns()}"
        try:
            response = client.post("/v1/audio/speech", json=body(seed), headers={"x-request-id": request_id})
            if response.status_code != 200:
                return Answer(seed, response.status_code, None, response.text)
            audio: bytes | None = response.content
        except httpx.RemoteProtocolError:
            audio = None
        record = client.get(f"/v1/audio/speech/{request_id}").json()
        return Answer(seed, 200, audio, record.get("error"), record.get("replica"))


class Load:
    """Clients that repeat their requests until the end, and check each answer."""

    def __init__(self, server: ServerProcess, expected: dict[int, bytes]) -> None:
        self._server, self._expected, self._stop = server, expected, threading.Event()
        self.answers: list[Answer] = []

    def __enter__(self) -> "Load":
        self._pool = ThreadPoolExecutor(NUM_CLIENTS)
        self._jobs = [self._pool.submit(self._run, number) for number in range(NUM_CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for job in self._jobs:
            job.result()

    def served(self) -> int:
        return sum(answer.audio is not None for answer in list(self.answers))

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            number += 1
            answer = speak(self._server, number % NUM_SEEDS)
            self.answers.append(answer)
            if answer.audio is not None:  # nothing crossed: the same speech from every replica, at any time
                assert_equal(answer.audio, self._expected[answer.seed])
            elif answer.status == 503:
                self._stop.wait(0.5)


def await_more(load: Load, served: int) -> None:
    eventually(lambda: load.served() > served or threading.Event().wait(0.05))


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> dict[int, bytes]:
    found = {seed: speak(server, seed).audio for seed in range(NUM_SEEDS)}
    assert len(set(found.values())) == NUM_SEEDS
    return {seed: audio for seed, audio in found.items() if audio}


def test_equal_requests_give_equal_audio_on_all_replicas(server: ServerProcess, expected: dict[int, bytes]) -> None:
    used: set[int | None] = set()

    def spread() -> bool:
        with ThreadPoolExecutor(6) as pool:
            for answer in pool.map(lambda _: speak(server, 1), range(6)):
                assert answer.audio is not None
                assert_equal(answer.audio, expected[1])
                used.add(answer.replica)
        return used >= set(range(NUM_REPLICAS))

    eventually(spread)


def test_a_request_goes_to_the_replica_without_streams(server: ServerProcess, expected: dict[int, bytes]) -> None:
    stop = threading.Event()
    started = [threading.Event(), threading.Event()]

    def listen(number: int) -> None:
        headers = {"x-request-id": f"long-{number}"}
        with (
            server.client() as client,
            client.stream("POST", "/v1/audio/speech", json=body(number, LONG_TEXT), headers=headers) as response,
        ):
            for _ in response.iter_raw():
                started[number].set()
                if stop.is_set():
                    return

    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for number, event in enumerate(started):
            jobs.append(pool.submit(listen, number))
            assert event.wait(TIMEOUT)
        answer = speak(server, 3)
        stop.set()
        for job in jobs:
            job.result()
    assert answer.audio is not None
    assert_equal(answer.audio, expected[3])
    with server.client() as client:

        def record(number: int) -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/v1/audio/speech/long-{number}").json()
            return found

        eventually(lambda: all("replica" in record(number) for number in range(2)) or threading.Event().wait(0.1))
        assert sorted({answer.replica, *(record(number)["replica"] for number in range(2))}) == [0, 1, 2]


def test_kills_cost_only_the_streams_of_the_killed_replica(server: ServerProcess, expected: dict[int, bytes]) -> None:
    with Load(server, expected) as load:
        for number in range(NUM_KILLS):
            replica = number % NUM_REPLICAS
            served = load.served()
            await_more(load, served)
            os.kill(replicas(server)[replica]["pid"], signal.SIGKILL)
            with server.client() as client:
                assert client.get("/readyz").status_code == 200  # the others serve
            eventually(lambda: all_ready(server) or threading.Event().wait(0.1))
    cut = [answer for answer in load.answers if answer.status == 200 and answer.audio is None]
    for answer in cut:
        assert answer.error == f"Replica {answer.replica}'s process ended before the stream did."
    assert len(cut) <= NUM_KILLS * NUM_CLIENTS
    assert {answer.status for answer in load.answers} <= {200, 503}
    assert sum(one["restarts"] for one in replicas(server)) >= NUM_KILLS


def test_drains_cost_no_request(server: ServerProcess, expected: dict[int, bytes]) -> None:
    with Load(server, expected) as load:
        for replica in range(NUM_REPLICAS):
            pid = replicas(server)[replica]["pid"]
            os.kill(pid, DRAIN_SIGNAL)

            def replaced(pid: int = pid, replica: int = replica) -> bool:
                return all_ready(server) and replicas(server)[replica]["pid"] != pid

            eventually(lambda: replaced() or threading.Event().wait(0.1))
    assert [answer for answer in load.answers if answer.audio is None] == []


def test_a_stuck_replica_costs_no_request_that_it_has_not_begun(
    server: ServerProcess, expected: dict[int, bytes]
) -> None:
    eventually(lambda: not any(one["streams"] for one in replicas(server)) or threading.Event().wait(0.1))
    pid = replicas(server)[1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            answers = list(pool.map(lambda seed: speak(server, seed % NUM_SEEDS), range(9)))
    finally:
        os.kill(pid, signal.SIGCONT)
    for answer in answers:
        assert answer.audio is not None
        assert_equal(answer.audio, expected[answer.seed])
    assert 1 not in {answer.replica for answer in answers}
