# SPDX-License-Identifier: Apache-2.0
"""The choice of a replica, the number of replicas and the counts per key, without Ray."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.ray.autoscaling import CAPACITY, DEMAND, TARGET_UTILIZATION, capacity_policy, desired_replicas
from polyvox.ray.key_leases import LEASE_SECONDS, KeyLeases
from polyvox.ray.routing import ReplicaLoad, rank_replicas

NUM_DRAWS = 4000


def share_of_first(loads: list[ReplicaLoad | None]) -> list[float]:
    draw = random.Random(1)
    first = Counter(rank_replicas(loads, draw)[0] for _ in range(NUM_DRAWS))
    return [first[index] / NUM_DRAWS for index in range(len(loads))]


def test_requests_are_spread_in_proportion_to_free_capacity() -> None:
    shares = share_of_first([ReplicaLoad(100, 60), ReplicaLoad(100, 30), ReplicaLoad(100, 10)])
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.03)


def test_what_ends_until_the_next_report_counts_as_free() -> None:
    shares = share_of_first([ReplicaLoad(1500, 10, turnover=270), ReplicaLoad(1500, 100, turnover=270)])
    assert shares == pytest.approx([280 / 650, 370 / 650], abs=0.03)


def test_a_full_replica_is_the_last_choice() -> None:
    loads = [ReplicaLoad(10, -3, wait=2.0), ReplicaLoad(10, 1), None, ReplicaLoad(10, 0, wait=0.5)]
    for seed in range(50):
        assert rank_replicas(loads, random.Random(seed))[2:] == [3, 0]


def test_of_full_replicas_the_one_with_the_shortest_wait_is_chosen() -> None:
    loads = [ReplicaLoad(10, -2, wait=3.0), ReplicaLoad(10, -1, wait=1.0), ReplicaLoad(20, -1, wait=1.0)]
    assert rank_replicas(loads, random.Random(0)) == [2, 1, 0]


def test_replicas_that_have_not_reported_get_a_mean_share() -> None:
    assert share_of_first([None, None]) == pytest.approx([0.5, 0.5], abs=0.05)
    assert share_of_first([ReplicaLoad(10, 6), None, ReplicaLoad(10, 2)]) == pytest.approx(
        [0.5, 1 / 3, 1 / 6], abs=0.05
    )


@given(
    st.lists(
        st.none() | st.builds(ReplicaLoad, st.integers(0, 9), st.integers(-9, 9), st.floats(0, 9), st.floats(0, 9))
    )
)
def test_every_replica_has_one_rank(loads: list[ReplicaLoad | None]) -> None:
    assert sorted(rank_replicas(loads, random.Random(0))) == list(range(len(loads)))


# Autoscaling


def test_replicas_follow_demand_at_the_target_utilization() -> None:
    capacity = {"a": 100.0, "b": 100.0}
    assert desired_replicas({"a": 70, "b": 70}, capacity, 2) == pytest.approx(2)
    assert desired_replicas({"a": 140, "b": 140}, capacity, 2) == pytest.approx(4)
    assert desired_replicas({"a": 0, "b": 0}, capacity, 2) == 0
    assert desired_replicas({"a": 35}, {"a": 50.0}, 1) * TARGET_UTILIZATION == pytest.approx(0.7)


def test_the_number_of_replicas_stays_until_one_has_reported() -> None:
    assert desired_replicas({}, {}, 3) == 3
    assert desired_replicas({"a": 5}, {"a": 0}, 3) == 3


def context(metrics: dict[str, dict[str, float]] | None, running: list[str]) -> Any:
    return SimpleNamespace(aggregated_metrics=metrics, running_replicas=running, target_num_replicas=2)


def test_the_policy_ignores_replicas_that_have_stopped() -> None:
    metrics = {DEMAND: {"a": 70.0, "gone": 500.0}, CAPACITY: {"a": 100.0, "gone": 1.0}}
    assert capacity_policy(context(metrics, ["a"]))[0] == pytest.approx(1)
    assert capacity_policy(context(None, ["a"]))[0] == 2


# Counts per key


def test_a_key_is_limited_over_all_replicas() -> None:
    leases = KeyLeases()
    assert leases.acquire("r1", "anna", 2, now=0)
    assert leases.acquire("r2", "anna", 2, now=0)
    assert not leases.acquire("r1", "anna", 2, now=1)
    assert leases.acquire("r1", "bob", 2, now=1)
    leases.release("r2", "anna")
    assert leases.acquire("r1", "anna", 2, now=2)


def test_the_counts_of_a_dead_replica_expire() -> None:
    leases = KeyLeases()
    leases.acquire("dead", "anna", 2, now=0)
    leases.acquire("alive", "anna", 2, now=0)
    leases.renew("alive", {"anna": 1}, now=LEASE_SECONDS / 2)
    assert leases.total("anna", now=LEASE_SECONDS - 0.01) == 2
    assert leases.total("anna", now=LEASE_SECONDS) == 1
    assert len(leases) == 1
    leases.release("dead", "anna")  # late
    assert leases.total("anna", now=LEASE_SECONDS) == 1


def test_renewals_restore_the_counts_after_a_restart() -> None:
    leases = KeyLeases()  # a new one
    leases.renew("r1", {"anna": 3}, now=0)
    leases.renew("r2", {"anna": 1, "bob": 1}, now=0)
    assert leases.total("anna", now=1) == 4
    leases.renew("r2", {}, now=2)
    assert leases.total("anna", now=2) == 3
    assert leases.total("bob", now=2) == 0


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "renew", "wait"]), st.sampled_from("xy"), st.sampled_from("ab"))
)


@given(OPERATIONS)
def test_totals_are_the_sums_of_unexpired_leases(operations: list[tuple[str, str, str]]) -> None:
    leases, now = KeyLeases(), 0.0
    counts = {replica: Counter[str]() for replica in "xy"}
    expires = dict.fromkeys("xy", 0.0)
    for operation, replica, key in operations:
        now += LEASE_SECONDS / 3 if operation == "wait" else 0.0
        for name in "xy":
            if expires[name] <= now:
                counts[name].clear()
        total = counts["x"][key] + counts["y"][key]
        if operation == "acquire":
            assert leases.acquire(replica, key, 3, now) is (total < 3)
            if total < 3:
                counts[replica][key] += 1
                expires[replica] = now + LEASE_SECONDS
        elif operation == "release" and counts[replica][key]:
            leases.release(replica, key)
            counts[replica][key] -= 1
        elif operation == "renew":
            leases.renew(replica, dict(counts[replica]), now)
            expires[replica] = now + LEASE_SECONDS
        assert leases.total(key, now) == counts["x"][key] + counts["y"][key]
