"""The search for the highest load that holds, on servers whose capacity is known."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.bench.capacity import Limit, Search, breaches, parse_slo
from polyvox.bench.metrics import Trace
from polyvox.bench.summary import Summary, summarise
from polyvox.cli.bench import verdict
from polyvox.errors import InvalidRequest

RATE = 24_000


def run_of(first: float, gap: float = 0.0, error: str | None = None) -> Summary:
    """A run of one stream: its first packet after so long, its second so much too late."""
    arrivals = [(first, RATE), (first + 1 + gap, RATE)]
    return summarise([Trace(0, 0, 1, True, 0.0, arrivals=arrivals, ended=9.0, onset=0, error=error)])


def server(most: float, calls: list[float] | None = None) -> Callable[[float, int], Summary]:
    """A server that answers in 50 ms and runs dry above a load."""

    def measure(level: float, _seed: int) -> Summary:
        if calls is not None:
            calls.append(level)
        return run_of(0.05, 0.0 if level <= most else 0.02 * level)

    return measure


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 600), st.integers(1, 40))
def test_the_highest_number_of_streams_that_holds_is_found(most: int, first: int) -> None:
    found = Search("closed", first=first, most=1024, repeats=1, precision=0.0).find(
        server(most), parse_slo("underrun=0")
    )
    assert (found.holds, found.breaks) == (most, most + 1)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 300))
def test_a_rate_is_found_as_closely_as_was_asked(most: float) -> None:
    found = Search("open", first=4.0, most=1024, least=0.1, repeats=1, precision=0.05).find(
        server(most), parse_slo("underrun=0")
    )
    assert found.holds is not None
    assert found.breaks is not None
    assert found.holds <= most < found.breaks <= found.holds * 1.06


def test_few_runs_are_enough() -> None:
    calls: list[float] = []
    Search("closed", repeats=1, precision=0.0).find(server(100, calls), parse_slo("underrun=0"))
    assert calls[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 96]
    assert len(calls) <= 15


def test_a_load_that_breaks_once_in_its_repeats_does_not_hold() -> None:
    seeds: list[tuple[float, int]] = []

    def measure(level: float, seed: int) -> Summary:
        seeds.append((level, seed))
        return run_of(0.05, 0.1 if level > 4 or (level == 3 and seed == 12) else 0.0)

    found = Search("closed", repeats=3, precision=0.0, seed=10).find(measure, parse_slo("underrun=0"))
    assert (found.holds, found.breaks) == (4, 5)  # 3 was never asked
    assert [seed for level, seed in seeds if level == 1] == [10, 11, 12]
    assert [seed for level, seed in seeds if level == 8] == [10]  # one failure is enough


def test_the_answer_says_what_broke_first() -> None:
    def measure(level: float, _seed: int) -> Summary:
        return run_of(0.01 * level)

    limits = parse_slo("underrun=0,ttfa_p95=100ms")
    found = Search("closed", repeats=1, precision=0.0, most=64).find(measure, limits)
    assert (found.holds, found.breaks) == (10, 11)
    (breach,) = found.broke_first
    assert breach.limit.name == "ttfa_p95"
    assert breach.value == pytest.approx(0.11)
    told = verdict(found, "closed", "it")
    assert (
        told == "10 streams at once hold it. What broke first, at 11: ttfa_p95 was 110 ms (allowed: ttfa_p95 ≤ 100 ms)"
    )


def test_where_nothing_breaks_or_nothing_holds_that_is_the_answer() -> None:
    limits = parse_slo("underrun=0")
    never = Search("closed", repeats=1, most=48).find(server(1000), limits)
    assert (never.holds, never.breaks) == (48, None)
    assert "--most" in verdict(never, "closed", "it")
    always = Search("closed", first=8, repeats=1).find(server(0), limits)
    assert (always.holds, always.breaks) == (None, 1)
    assert verdict(always, "closed", "it").startswith("No load held it. At 1 streams at once: underrun was 1")
    slow = Search("open", first=8, repeats=1).find(server(0), limits)
    assert slow.holds is None


def test_failures_break_every_service_level_unless_it_allows_them() -> None:
    assert [str(limit) for limit in parse_slo("underrun=0")] == ["failed ≤ 0", "dropped ≤ 0", "underrun ≤ 0"]
    failed = run_of(0.1, error="http 503")
    assert {breach.limit.name for breach in breaches(failed, parse_slo("underrun=0"))} == {"failed"}
    assert breaches(failed, parse_slo("failed=1,underrun=0")) == []
    # A bound on a time that nobody measured is not held.
    assert [b.value for b in breaches(failed, parse_slo("failed=1,ttfa_p95=1s"))] == [None]


def test_a_service_level_is_read_or_refused() -> None:
    limits = {limit.name: limit for limit in parse_slo("ttfa_p95=100ms, continuity_100 >= 99%,e2e_p99=2s,rtf_p95=0.8")}
    assert limits["ttfa_p95"].bound == pytest.approx(0.1)
    assert limits["continuity_100"] == Limit("continuity_100", 0.99)
    assert limits["continuity_100"].at_least
    assert limits["continuity_100"].holds(1.0)
    assert not limits["continuity_100"].holds(0.98)
    assert limits["e2e_p99"].bound == 2
    for wrong in ("", "ttfa_p95", "ttfa_p95=100", "underrun=3ms", "speed=1", "ttfa_p95=fastms", "underrun=1.2.3"):
        with pytest.raises(InvalidRequest):
            parse_slo(wrong)
