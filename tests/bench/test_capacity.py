# SPDX-License-Identifier: Apache-2.0
"""The capacity search, on servers with known capacity."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.bench.capacity import CapacitySearch, Objective, parse_slo, violations
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.summary import Summary, summarise
from polyvox.cli.bench import capacity_answer as answer
from polyvox.errors import InvalidRequest

RATE = 24_000


def summary_of(first: float, gap: float = 0.0, error: str | None = None) -> Summary:
    """A run of one stream: the arrival of its first packet, and how late its second one is."""
    arrivals = [(first, RATE), (first + 1 + gap, RATE)]
    return summarise([RequestTrace(0, 0, 1, True, 0.0, arrivals=arrivals, ended=9.0, onset=0, error=error)])


def server(max_load: float, calls: list[float] | None = None) -> Callable[[float, int], Summary]:
    """A server with a TTFP of 50 ms and underruns above `max_load`."""

    def measure(level: float, _seed: int) -> Summary:
        if calls is not None:
            calls.append(level)
        return summary_of(0.05, 0.0 if level <= max_load else 0.02 * level)

    return measure


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 600), st.integers(1, 40))
def test_the_highest_concurrency_that_meets_the_slo_is_found(max_load: int, initial: int) -> None:
    found = CapacitySearch("closed", initial=initial, max_load=1024, repeats=1, precision=0.0).find(
        server(max_load), parse_slo("underrun=0")
    )
    assert (found.max_passing, found.min_failing) == (max_load, max_load + 1)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 300))
def test_the_highest_rate_is_found_within_the_precision(max_load: float) -> None:
    found = CapacitySearch("open", initial=4.0, max_load=1024, min_load=0.1, repeats=1, precision=0.05).find(
        server(max_load), parse_slo("underrun=0")
    )
    assert found.max_passing is not None
    assert found.min_failing is not None
    assert found.max_passing <= max_load < found.min_failing <= found.max_passing * 1.06


def test_the_search_doubles_and_then_bisects() -> None:
    calls: list[float] = []
    CapacitySearch("closed", repeats=1, precision=0.0).find(server(100, calls), parse_slo("underrun=0"))
    assert calls[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 96]
    assert len(calls) <= 15


def test_a_load_fails_if_one_repeat_fails() -> None:
    seeds: list[tuple[float, int]] = []

    def measure(level: float, seed: int) -> Summary:
        seeds.append((level, seed))
        return summary_of(0.05, 0.1 if level > 4 or (level == 3 and seed == 12) else 0.0)

    found = CapacitySearch("closed", repeats=3, precision=0.0, seed=10).find(measure, parse_slo("underrun=0"))
    assert (found.max_passing, found.min_failing) == (4, 5)  # 3 was never tried
    assert [seed for level, seed in seeds if level == 1] == [10, 11, 12]
    assert [seed for level, seed in seeds if level == 8] == [10]  # no repeat after a failure


def test_the_answer_names_the_first_violation() -> None:
    def measure(level: float, _seed: int) -> Summary:
        return summary_of(0.01 * level)

    objectives = parse_slo("underrun=0,ttfa_p95=100ms")
    found = CapacitySearch("closed", repeats=1, precision=0.0, max_load=64).find(measure, objectives)
    assert (found.max_passing, found.min_failing) == (10, 11)
    (violation,) = found.first_violations
    assert violation.objective.name == "ttfa_p95"
    assert violation.value == pytest.approx(0.11)
    assert answer(found, "closed", "the SLO") == (
        "10 concurrent streams meet the SLO. First violation, at 11: ttfa_p95 was 110 ms (objective: ttfa_p95 ≤ 100 ms)"
    )


def test_the_answer_states_when_no_load_fails_or_none_passes() -> None:
    objectives = parse_slo("underrun=0")
    fast = CapacitySearch("closed", repeats=1, max_load=48).find(server(1000), objectives)
    assert (fast.max_passing, fast.min_failing) == (48, None)
    assert "--max-load" in answer(fast, "closed", "the SLO")
    slow = CapacitySearch("closed", initial=8, repeats=1).find(server(0), objectives)
    assert (slow.max_passing, slow.min_failing) == (None, 1)
    assert answer(slow, "closed", "the SLO").startswith(
        "No load meets the SLO. At 1 concurrent streams: underrun was 1"
    )
    assert CapacitySearch("open", initial=8, repeats=1).find(server(0), objectives).max_passing is None


def test_failed_requests_violate_every_slo_that_does_not_allow_them() -> None:
    assert [str(objective) for objective in parse_slo("underrun=0")] == ["failed ≤ 0", "dropped ≤ 0", "underrun ≤ 0"]
    failed = summary_of(0.1, error="http 503")
    assert {violation.objective.name for violation in violations(failed, parse_slo("underrun=0"))} == {"failed"}
    assert violations(failed, parse_slo("failed=1,underrun=0")) == []
    # An objective without a measured value is violated.
    assert [violation.value for violation in violations(failed, parse_slo("failed=1,ttfa_p95=1s"))] == [None]


def test_an_slo_is_parsed_or_rejected() -> None:
    slo = "ttfa_p95=100ms, continuity_100 >= 99%,e2e_p99=2s,rtf_p95=0.8"
    objectives = {objective.name: objective for objective in parse_slo(slo)}
    assert objectives["ttfa_p95"].bound == pytest.approx(0.1)
    assert objectives["continuity_100"] == Objective("continuity_100", 0.99)
    assert objectives["continuity_100"].is_minimum
    assert objectives["continuity_100"].met_by(1.0)
    assert not objectives["continuity_100"].met_by(0.98)
    assert objectives["e2e_p99"].bound == 2
    for wrong in ("", "ttfa_p95", "ttfa_p95=100", "underrun=3ms", "speed=1", "ttfa_p95=fastms", "underrun=1.2.3"):
        with pytest.raises(InvalidRequest):
            parse_slo(wrong)
