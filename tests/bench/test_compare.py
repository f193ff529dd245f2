# SPDX-License-Identifier: Apache-2.0
"""Verdicts and warnings on results with a known difference."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyvox.bench.compare import METRICS, Verdict, comparability_warnings, compare, length_ratio
from polyvox.bench.load import ClientLag, Load
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.report import warnings
from polyvox.bench.results import Run, read, save
from polyvox.bench.summary import distribution
from polyvox.errors import InvalidRequest

RATE = 24_000
LAG = ClientLag(distribution([0.001]), 0.1, 1)
CONDITIONS = {"prompts": "534 texts, abc", "date": "now", "target": {"model": "m"}}


def runs(first: float, repeats: int = 3, seconds: float = 2.0, seed: int = 0, between: float = 0.0) -> list[Run]:
    """Repeats of 40 streams with a TTFP of about `first`; `between` is the deviation between runs."""
    random = np.random.default_rng(seed)
    made = []
    for repeat in range(repeats):
        extra = random.normal(0, between) if between else 0.0
        traces = []
        for index in range(40):
            at = index + first + extra + random.uniform(0, 0.02)
            samples = int(seconds * RATE)
            traces.append(
                RequestTrace(index, index, 5, True, index, index, arrivals=[(at, samples)], ended=at, onset=0)
            )
        made.append(Run(Load("closed", 4, seed=repeat), LAG, traces))
    return made


def verdicts(first: list[Run], second: list[Run]) -> dict[str, Verdict]:
    (group,) = compare(first, second)
    return {verdict.name: verdict for verdict in group.verdicts}


def test_a_lower_latency_is_better_and_the_interval_contains_the_difference() -> None:
    found = verdicts(runs(0.200), runs(0.100, seed=1))
    assert set(found) == set(METRICS)
    ttfa = found["ttfa_p50"]
    assert ttfa.text == "better"
    assert ttfa.low is not None
    assert ttfa.high is not None
    assert ttfa.low < -0.1 < ttfa.high
    assert ttfa.high - ttfa.low < 0.02
    assert verdicts(runs(0.100), runs(0.200, seed=1))["ttfa_p95"].text == "worse"


def test_a_higher_throughput_is_better_and_a_longer_audio_is_neutral() -> None:
    slow, fast = runs(0.1, seconds=1.0), runs(0.1, seconds=2.0, seed=1)
    found = verdicts(slow, fast)
    assert found["throughput"].text == "better"
    assert found["length_mean"].text == "differs"


def test_two_results_of_the_same_server_show_no_difference() -> None:
    wrong = 0
    for seed in range(20):
        found = verdicts(runs(0.1, seed=seed, between=0.01), runs(0.1, seed=100 + seed, between=0.01))
        wrong += found["ttfa_p50"].text != "no significant difference"
    assert wrong <= 6  # with three runs, a 95 % interval covers slightly less


def test_one_run_gives_no_verdict_on_per_run_metrics() -> None:
    found = verdicts(runs(0.1, repeats=1), runs(0.2, repeats=1))
    assert found["throughput"].text == "no verdict: needs --repeats"
    assert found["ttfa_p50"].text == "worse"
    shown = comparability_warnings((CONDITIONS, runs(0.1, repeats=1)), (CONDITIONS, runs(0.2, repeats=1)))
    assert any("--repeats 3" in warning for warning in shown)


def test_different_conditions_cause_a_warning() -> None:
    ours = runs(0.1)
    assert comparability_warnings((CONDITIONS, ours), (CONDITIONS | {"date": "later"}, runs(0.2))) == []
    (warning,) = comparability_warnings((CONDITIONS, ours), (CONDITIONS | {"prompts": "3 texts, def"}, ours))
    assert warning == "prompts differs: '534 texts, abc' and '3 texts, def'"
    longer = [Run(replace(run.load, seconds=60), run.lag, run.traces) for run in ours]
    assert any(
        "seconds differs" in warning for warning in comparability_warnings((CONDITIONS, ours), (CONDITIONS, longer))
    )


def test_different_audio_lengths_for_the_same_texts_cause_a_warning() -> None:
    ours, theirs = runs(0.1, seconds=2.0), runs(0.1, seconds=1.5)
    assert length_ratio(ours, theirs) == pytest.approx(0.75)
    (warning,) = comparability_warnings((CONDITIONS, ours), (CONDITIONS, theirs))
    assert "75% as long" in warning
    for run in theirs:
        for trace in run.traces:
            trace.prompt += 1000
    assert length_ratio(ours, theirs) is None


def test_results_without_a_common_load_are_rejected() -> None:
    other = [Run(replace(run.load, level=8), run.lag, run.traces) for run in runs(0.1)]
    with pytest.raises(InvalidRequest, match="no load in common"):
        compare(runs(0.1), other)


def test_a_result_file_preserves_the_measurements(tmp_path: Path) -> None:
    ours = runs(0.123456789, repeats=2)
    ours[0].traces.append(RequestTrace(99, 3, 5, True, 1.0, error="http 503", detail="busy"))
    save(tmp_path / "a.json", CONDITIONS, [replace(run) for run in ours])
    conditions, back = read(tmp_path / "a.json")
    assert conditions == CONDITIONS
    assert [run.load for run in back] == [run.load for run in ours]
    assert back[0].lag == LAG
    assert back[0].traces[-1].detail == "busy"
    assert back[0].summary.failed == 1
    assert back[1].summary.ttfa is not None
    assert back[1].summary.ttfa.p50 == pytest.approx(ours[1].summary.ttfa.p50, abs=2e-6)  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


def test_a_file_of_another_format_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in ("", "{}", '{"format": "polyvox-bench/2"}', '{"format": "polyvox-bench/2", "runs": [{}]}', "[]"):
        path.write_text(content)
        with pytest.raises(InvalidRequest, match=r"a result of|a complete result"):
            read(path)
    with pytest.raises(InvalidRequest):
        read(tmp_path / "none.json")


def test_a_slow_client_causes_a_warning() -> None:
    (run,) = runs(0.1, repeats=1)
    assert warnings([run]) == []
    late = Run(run.load, ClientLag(distribution([0.05]), 0.95, 1), run.traces[:5])
    notes = "\n".join(warnings([late]))
    for part in ("50.0 ms at p99", "95% of a core", "5 requests are too few", "--processes"):
        assert part in notes
    assert "shares the GIL" in "\n".join(warnings([replace(late, lag=ClientLag(distribution([0.05]), 0.1, 0))]))
    assert "other processes" in "\n".join(warnings([replace(late, lag=ClientLag(distribution([0.05]), 0.1, 1))]))
    none = Run(run.load, LAG, [RequestTrace(0, 0, 1, True, 0.0, error="connect", detail="connection refused")])
    assert "connection refused" in warnings([none])[0]


def test_too_few_requests_give_no_verdict() -> None:
    few, many = ([replace(run, traces=run.traces[:count]) for run in runs(0.1)] for count in (3, 4))
    assert verdicts(few, runs(0.9))["ttfa_p50"].text == "no verdict: too few requests"
    assert verdicts(many, runs(0.9))["ttfa_p50"].text == "worse"


def test_the_wer_is_compared_if_both_results_have_it() -> None:
    def transcribed(errors: int) -> list[Run]:
        made = runs(0.1)
        for run in made:
            for trace in run.traces[:20]:
                trace.word_errors = (errors if trace.index % 2 else 0, 5)
        return [replace(run) for run in made]

    assert "wer" not in verdicts(transcribed(1), runs(0.1))
    found = verdicts(transcribed(1), transcribed(3))["wer"]
    assert [found.first, found.second] == pytest.approx([0.1, 0.3])
    assert found.text == "worse"
    assert verdicts(transcribed(1), transcribed(1))["wer"].text == "no significant difference"
