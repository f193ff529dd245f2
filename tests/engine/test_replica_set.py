# SPDX-License-Identifier: Apache-2.0
"""Which replica gets a request, by its reported load and what was sent to it; what happens when replicas fail."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedulers import SLOW, build, new_stream
from polyvox.engine.engine_load import MAX_REPORT_AGE, EngineLoad
from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.engine.key_counts import KeyCounts
from polyvox.engine.replica_set import ReplicaEngine, ReplicaSet, merge_stats
from polyvox.errors import EngineDown, InvalidRequest, Overloaded
from polyvox.models.request import Request

pytestmark = pytest.mark.anyio

RUNNING = EngineStatus(EngineState.RUNNING, sample_rate=24_000, start_seconds=5.0)
DOWN = EngineStatus(EngineState.RESTARTING, down_since=3.0, expected_at=20.0, reason="it died")


@dataclass(slots=True)
class Clock:
    now: float = 10.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True, eq=False)
class FakeReplica:
    """A replica that accepts `capacity` requests. It reports its load only when a test asks for it."""

    clock: Clock
    replica: int
    capacity: int = 8
    num_running: int = 0
    state: EngineStatus = RUNNING
    report: EngineLoad = field(init=False)
    requests: list[Request] = field(default_factory=list)
    rejected: list[Request] = field(default_factory=list)
    retry_after: float = 3.0
    answers: asyncio.Event | None = None  # submit waits for it
    keys: KeyCounts = field(default_factory=KeyCounts)

    def __post_init__(self) -> None:
        self.publish()

    def publish(self, **more: Any) -> None:
        free = self.capacity - self.num_running
        self.report = EngineLoad(self.clock.now, self.capacity, free, 0.0, free, 0.0, self.num_running, **more)

    def load(self) -> EngineLoad:
        return self.report

    def status(self) -> EngineStatus:
        return self.state

    async def submit(self, request: Request) -> "FakeReplica":
        if self.answers is not None:
            await self.answers.wait()
        await asyncio.sleep(0)
        if not self.state.running:
            raise EngineDown(f"Replica {self.replica} is restarting.", self.state.retry_after(self.clock.now))
        if request.text == "invalid":
            raise InvalidRequest("text", "", "must have something to say")
        if self.num_running >= self.capacity:
            self.rejected.append(request)
            raise Overloaded("all streams are taken", self.retry_after)
        self.num_running += 1
        self.requests.append(request)
        return self

    async def stats(self) -> dict[str, float]:
        if not self.state.running:
            raise EngineDown("down", 1.0)
        return {"slots": self.capacity, "lead_min": float(self.replica), "stuck_seconds": float(self.replica)}

    async def acquire_key(self, key: str, limit: int) -> bool:
        if self.answers is not None:
            await self.answers.wait()
        if not self.state.running:
            raise EngineDown("down", 1.0)
        return self.keys.acquire(key, limit)

    def hold_key(self, key: str) -> None:
        self.keys.add(key, 1)

    def release_key(self, key: str) -> None:
        self.keys.release(key)


def build_set(
    *capacities: int, num_servers: int = 1, clock: Clock | None = None
) -> tuple[ReplicaSet, list[FakeReplica]]:
    clock = clock or Clock()
    fakes = [FakeReplica(clock, index, capacity) for index, capacity in enumerate(capacities)]
    draws = count()
    return ReplicaSet(cast(Sequence[ReplicaEngine], fakes), num_servers, clock, lambda: float(next(draws))), fakes


def request(utterance_id: int = 0, **fields: Any) -> Request:
    return Request("Hello.", utterance_id=utterance_id, **fields)


async def submit(engines: ReplicaSet, what: Request | None = None) -> int:
    """The index of the replica that got the request."""
    return cast(FakeReplica, await engines.submit(what or request())).replica


async def test_a_request_goes_to_the_replica_with_the_most_spare_capacity() -> None:
    engines, fakes = build_set(8, 8, 8)
    for fake, running in zip(fakes, (5, 2, 6), strict=True):
        fake.num_running = running
        fake.publish()
    assert await submit(engines) == 1


async def test_spare_capacity_is_a_share_so_that_a_small_gpu_is_not_filled_before_a_large_one() -> None:
    engines, fakes = build_set(100, 10)
    fakes[0].num_running, fakes[1].num_running = 40, 5
    for fake in fakes:
        fake.publish()
    assert await submit(engines) == 0


async def test_a_burst_between_two_reports_spreads_evenly() -> None:
    engines, fakes = build_set(8, 8, 8)
    await asyncio.gather(*(engines.submit(request()) for _ in range(12)))
    assert [fake.num_running for fake in fakes] == [4, 4, 4]


async def test_what_a_report_contains_is_not_counted_twice() -> None:
    engines, fakes = build_set(8, 8)
    for _ in range(4):
        await submit(engines)
    fakes[0].clock.now += 1.0
    fakes[0].publish()
    fakes[1].num_running = 4  # its streams, and two more from another server process
    fakes[1].publish()
    assert [await submit(engines) for _ in range(2)] == [0, 0]


async def test_each_of_several_server_processes_assumes_that_the_others_send_as_much() -> None:
    clock = Clock()
    engines, fakes = build_set(16, 16, num_servers=4, clock=clock)
    others = [ReplicaSet(cast(Sequence[ReplicaEngine], fakes), 4, clock) for _ in range(3)]
    fakes[0].num_running = 4
    for fake in fakes:
        fake.publish()
    await asyncio.gather(*(one.submit(request()) for one in [engines, *others] for _ in range(3)))
    assert abs(fakes[0].num_running - fakes[1].num_running) <= 4  # 12 of 16 would run on one without it


async def test_a_request_that_one_replica_rejects_goes_to_the_next() -> None:
    engines, fakes = build_set(2, 4)
    fakes[0].num_running = 2  # by other servers, since its report
    assert await submit(engines) == 1
    assert [one.may_reserve for one in fakes[0].rejected] == [False] * len(fakes[0].rejected)


async def test_a_request_that_all_replicas_reject_reserves_the_earliest_time_only() -> None:
    engines, fakes = build_set(0, 0, 0)
    for fake, seconds in zip(fakes, (9.0, 4.0, 7.0), strict=True):
        fake.retry_after = seconds
    with pytest.raises(Overloaded) as error:
        await submit(engines)
    assert error.value.retry_after == 4.0
    assert [[one.may_reserve for one in fake.rejected] for fake in fakes] == [[False], [False, True], [False]]


async def test_an_invalid_request_is_not_sent_to_another_replica() -> None:
    engines, fakes = build_set(4, 4)
    with pytest.raises(InvalidRequest):
        await engines.submit(Request("invalid"))
    assert not any(fake.requests for fake in fakes)


async def test_all_segments_of_an_utterance_go_to_one_replica() -> None:
    engines, fakes = build_set(8, 8, 8)
    first = await submit(engines, request(utterance_id=7))
    fakes[first].num_running = 7
    for fake in fakes:
        fake.clock.now += 1.0
        fake.publish()
    assert await submit(engines, request(utterance_id=8)) != first
    assert await submit(engines, request(utterance_id=7, segment=1)) == first


async def test_the_next_segment_moves_if_the_replica_of_the_last_one_died() -> None:
    engines, fakes = build_set(8, 8)
    first = await submit(engines, request(utterance_id=7))
    fakes[first].state = DOWN
    assert await submit(engines, request(utterance_id=7, segment=1)) == 1 - first


async def test_a_replica_that_fails_during_the_call_gives_the_request_to_another() -> None:
    engines, fakes = build_set(8, 4)
    fakes[0].publish()
    fakes[0].answers = asyncio.Event()
    waiting = asyncio.create_task(submit(engines))
    await asyncio.sleep(0)
    fakes[0].state = DOWN
    fakes[0].answers.set()
    assert await waiting == 1


async def test_a_replica_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.replica_set.ANSWER_TIMEOUT", 0.01)
    engines, fakes = build_set(8, 4)
    fakes[0].answers = asyncio.Event()
    fakes[1].num_running = 1
    fakes[1].publish()
    assert await submit(engines) == 1


async def test_the_next_replica_decides_over_a_key_if_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polyvox.engine.replica_set.ANSWER_TIMEOUT", 0.01)
    engines, fakes = build_set(8, 8)
    fakes[0].answers = asyncio.Event()
    async with asyncio.timeout(60):
        assert await engines.acquire_key("a", 1)
        assert not await engines.acquire_key("a", 1)


@pytest.mark.parametrize("how", ["old report", "long step"])
async def test_a_stuck_replica_gets_requests_only_if_no_other_one_runs(how: str) -> None:
    engines, fakes = build_set(8, 8)
    fakes[1].num_running = 6
    fakes[0].clock.now += 2 * MAX_REPORT_AGE
    fakes[1].publish()
    if how == "long step":
        fakes[0].publish(stuck_seconds=2 * MAX_REPORT_AGE)
    assert await submit(engines) == 1
    fakes[1].state = DOWN
    assert await submit(engines) == 0


async def test_a_draining_replica_gets_only_the_next_segments_of_its_utterances() -> None:
    engines, fakes = build_set(8, 8)
    first = await submit(engines, request(utterance_id=7))
    fakes[first].publish(draining=True)
    assert [await submit(engines) for _ in range(4)] == [1 - first] * 4
    assert await submit(engines, request(utterance_id=7, segment=1)) == first


async def test_without_a_running_replica_the_error_has_the_earliest_time_to_retry() -> None:
    engines, fakes = build_set(8, 8)
    fakes[0].state, fakes[1].state = DOWN, replace(DOWN, expected_at=14.0)
    with pytest.raises(EngineDown, match="Try again in 4 s") as error:
        await submit(engines)
    assert error.value.retry_after == 4.0


def test_the_status_is_running_while_one_replica_runs() -> None:
    engines, fakes = build_set(8, 8, 8)
    fakes[0].state, fakes[1].state = DOWN, replace(DOWN, num_restarts=2)
    fakes[2].state = replace(RUNNING, num_restarts=1)
    status = engines.status()
    assert (status.running, status.num_restarts, status.down_since) == (True, 3, None)
    fakes[2].state = replace(DOWN, down_since=8.0, expected_at=12.0)
    status = engines.status()
    assert (status.running, status.down_since, status.expected_at) == (False, 8.0, 12.0)
    fakes[0].state = EngineStatus(EngineState.STARTING)
    assert engines.status().down_since is None  # a first start is not a failure


async def test_counts_of_keys_survive_the_replica_that_decides() -> None:
    engines, fakes = build_set(8, 8, 8)
    assert [await engines.acquire_key("a", 2) for _ in range(3)] == [True, True, False]
    fakes[0].state = DOWN
    assert not await engines.acquire_key("a", 2)
    engines.release_key("a")
    assert [await engines.acquire_key("a", 2) for _ in range(2)] == [True, False]
    for _ in range(2):
        engines.release_key("a")
    assert [len(fake.keys) for fake in fakes] == [0, 0, 0]


async def test_a_restarted_replica_does_not_decide_before_servers_have_restored_its_counts() -> None:
    engines, fakes = build_set(8, 8)
    assert [await engines.acquire_key("a", 2) for _ in range(2)] == [True, True]
    fakes[0].state, fakes[0].keys = replace(RUNNING, running_since=100.0), KeyCounts()  # restarted, knows no counts
    assert not await engines.acquire_key("a", 2)


async def test_statistics_are_added_over_the_replicas_that_run() -> None:
    engines, fakes = build_set(8, 8, 8)
    fakes[0].state = DOWN
    assert await engines.stats() == {"slots": 16.0, "lead_min": 1.0, "stuck_seconds": 2.0}
    assert merge_stats([]) == {}


loads = st.builds(
    EngineLoad,
    taken_at=st.just(0.0),
    capacity=st.integers(1, 100),
    free=st.integers(-50, 100),
    wait=st.floats(0, 20),
    free_files=st.integers(-50, 100),
    wait_files=st.floats(0, 20),
)


@given(loads, st.booleans(), st.integers(0, 100), st.integers(1, 100))
def test_spare_capacity_falls_with_each_request_sent(load: EngineLoad, whole_file: bool, sent: int, more: int) -> None:
    assert load.spare(whole_file, sent + more) < load.spare(whole_file, sent)


# What an engine reports


def test_an_idle_engine_reports_its_whole_capacity() -> None:
    engine = build(cost=SLOW)
    load = engine.admission.current_load(0.0)
    assert (load.capacity, load.free, load.wait, load.num_streams) == (3, 3, 0.0, 0)
    assert load.spare() == 1.0


def test_queued_requests_and_running_streams_reduce_the_spare_capacity() -> None:
    engine = build(cost=SLOW, max_queue_seconds=100.0)
    seen = []
    for _ in range(6):
        engine.admission.enqueue(new_stream(), 0.0)
        engine.admission.admit(0.0)
        seen.append(engine.admission.current_load(0.0))
    assert [load.free for load in seen[:3]] == [2, 1, 0]
    assert all(later.spare() < earlier.spare() for earlier, later in pairwise(seen))
    assert seen[-1].wait > 0
    assert seen[-1].num_streams == 6


def test_kv_pages_limit_the_spare_capacity() -> None:
    engine = build(num_slots=8, num_pages=40)
    engine.admit_all(new_stream(prompt_rows=10, max_frames=16 * 15 - 11))  # 15 pages
    assert engine.admission.current_load(0.0).free == 1


def test_short_leads_leave_no_spare_capacity() -> None:
    engine = build()
    engine.admit_all(late := new_stream())
    late.first_audio_at, late.deadline = 0.0, 0.01
    engine.load.invalidate()
    assert engine.admission.current_load(0.0).free <= 0


def test_files_use_their_own_share() -> None:
    engine = build(num_slots=8)
    engine.admit_all(*(new_stream(live=False) for _ in range(4)))
    load = engine.admission.current_load(0.0)
    assert load.free > 0
    assert load.free_files == 0
    assert load.spare(whole_file=True) <= 0 < load.spare()


def test_a_rejection_without_a_reservation_leaves_that_of_an_earlier_one() -> None:
    engine = build(cost=SLOW, max_queue=0, max_queue_seconds=1.0)
    engine.admit_all(*(new_stream(text_bytes=500) for _ in range(3)))
    estimate = engine.admission.estimate
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(fingerprint=5, may_reserve=False), 0.0)
    assert len(estimate.reservations) == 0
    with pytest.raises(Overloaded) as error:
        engine.admission.enqueue(new_stream(fingerprint=5), 0.0)
    assert len(estimate.reservations) == 1
    with pytest.raises(Overloaded):
        engine.admission.enqueue(new_stream(fingerprint=5, may_reserve=False), error.value.retry_after - 0.1)
    assert len(estimate.reservations) == 1
