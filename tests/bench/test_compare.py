"""Verdicts on results whose difference is known, and the warnings that go with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyvox.bench.compare import METRICS, Verdict, cautions, compare, length_ratio
from polyvox.bench.load import Lag, Load
from polyvox.bench.metrics import Trace
from polyvox.bench.report import warnings
from polyvox.bench.results import Run, read, save
from polyvox.bench.summary import spread
from polyvox.errors import InvalidRequest

RATE = 24_000
LAG = Lag(spread([0.001]), 0.1, 1)
CONDITIONS = {"prompts": "534 texts, abc", "date": "now", "target": {"model": "m"}}


def runs(first: float, repeats: int = 3, seconds: float = 2.0, seed: int = 0, between: float = 0.0) -> list[Run]:
    """Repeats of 40 streams whose first packets come about so late; runs differ by `between`."""
    random = np.random.default_rng(seed)
    made = []
    for repeat in range(repeats):
        extra = random.normal(0, between) if between else 0.0
        traces = []
        for index in range(40):
            at = index + first + extra + random.uniform(0, 0.02)
            samples = int(seconds * RATE)
            traces.append(Trace(index, index, 5, True, index, index, arrivals=[(at, samples)], ended=at, onset=0))
        made.append(Run(Load("closed", 4, seed=repeat), LAG, traces))
    return made


def verdicts(first: list[Run], second: list[Run]) -> dict[str, Verdict]:
    (group,) = compare(first, second)
    return {verdict.name: verdict for verdict in group.verdicts}


def test_what_is_faster_is_better_and_by_about_how_much() -> None:
    found = verdicts(runs(0.200), runs(0.100, seed=1))
    assert set(found) == set(METRICS)
    ttfa = found["ttfa_p50"]
    assert ttfa.told == "better"
    assert ttfa.low is not None
    assert ttfa.high is not None
    assert ttfa.low < -0.1 < ttfa.high
    assert ttfa.high - ttfa.low < 0.02
    assert verdicts(runs(0.100), runs(0.200, seed=1))["ttfa_p95"].told == "worse"


def test_more_of_what_should_be_more_is_better() -> None:
    slow, fast = runs(0.1, seconds=1.0), runs(0.1, seconds=2.0, seed=1)
    found = verdicts(slow, fast)
    assert found["throughput"].told == "better"
    assert found["length_mean"].told == "differs"  # neither better nor worse


def test_two_results_of_the_same_server_show_no_difference() -> None:
    wrong = 0
    for seed in range(20):
        found = verdicts(runs(0.1, seed=seed, between=0.01), runs(0.1, seed=100 + seed, between=0.01))
        wrong += found["ttfa_p50"].told != "no difference shown"
    assert wrong <= 6  # three runs are few: an interval of 95 % over them holds a little less


def test_one_run_gives_no_verdict_on_what_only_runs_can_show() -> None:
    found = verdicts(runs(0.1, repeats=1), runs(0.2, repeats=1))
    assert found["throughput"].told == "no verdict: repeats are needed"
    assert found["ttfa_p50"].told == "worse"
    told = cautions((CONDITIONS, runs(0.1, repeats=1)), (CONDITIONS, runs(0.2, repeats=1)))
    assert any("--repeats 3" in caution for caution in told)


def test_equal_conditions_need_no_warning_and_others_do() -> None:
    ours = runs(0.1)
    assert cautions((CONDITIONS, ours), (CONDITIONS | {"date": "later"}, runs(0.2))) == []
    (told,) = cautions((CONDITIONS, ours), (CONDITIONS | {"prompts": "3 texts, def"}, ours))
    assert told == "prompts differs: '534 texts, abc' and '3 texts, def'"
    longer = [Run(replace(run.load, seconds=60), run.lag, run.traces) for run in ours]
    assert any("seconds differs" in caution for caution in cautions((CONDITIONS, ours), (CONDITIONS, longer)))


def test_unequal_lengths_of_the_same_texts_are_seen() -> None:
    ours, theirs = runs(0.1, seconds=2.0), runs(0.1, seconds=1.5)
    assert length_ratio(ours, theirs) == pytest.approx(0.75)
    (told,) = cautions((CONDITIONS, ours), (CONDITIONS, theirs))
    assert "75% of the time" in told
    for run in theirs:
        for trace in run.traces:
            trace.prompt += 1000
    assert length_ratio(ours, theirs) is None


def test_results_without_a_load_in_common_are_refused() -> None:
    other = [Run(replace(run.load, level=8), run.lag, run.traces) for run in runs(0.1)]
    with pytest.raises(InvalidRequest, match="no load in common"):
        compare(runs(0.1), other)


def test_a_file_gives_back_what_was_measured(tmp_path: Path) -> None:
    ours = runs(0.123456789, repeats=2)
    ours[0].traces.append(Trace(99, 3, 5, True, 1.0, error="http 503", detail="busy"))
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


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in ("", "{}", '{"format": "polyvox-bench/1"}', '{"format": "polyvox-bench/1", "runs": [{}]}', "[]"):
        path.write_text(content)
        with pytest.raises(InvalidRequest, match=r"a result of|a complete result"):
            read(path)
    with pytest.raises(InvalidRequest):
        read(tmp_path / "none.json")


def test_figures_that_are_the_clients_own_carry_a_note() -> None:
    (run,) = runs(0.1, repeats=1)
    assert warnings([run]) == []
    late = Run(run.load, Lag(spread([0.05]), 0.95, 1), run.traces[:5])
    notes = "\n".join(warnings([late]))
    for part in ("50.0 ms late at p99", "95% of a core", "5 requests are few", "--processes"):
        assert part in notes
    assert "shares its interpreter" in "\n".join(warnings([replace(late, lag=Lag(spread([0.05]), 0.1, 0))]))
    assert "busy with something else" in "\n".join(warnings([replace(late, lag=Lag(spread([0.05]), 0.1, 1))]))
    none = Run(run.load, LAG, [Trace(0, 0, 1, True, 0.0, error="connect", detail="nobody there")])
    assert "nobody there" in warnings([none])[0]


def test_a_handful_of_requests_is_no_verdict() -> None:
    few, many = ([replace(run, traces=run.traces[:count]) for run in runs(0.1)] for count in (3, 4))
    assert verdicts(few, runs(0.9))["ttfa_p50"].told == "no verdict: too few requests"
    assert verdicts(many, runs(0.9))["ttfa_p50"].told == "worse"


def test_word_errors_are_compared_where_both_were_heard() -> None:
    def heard(errors: int) -> list[Run]:
        made = runs(0.1)
        for run in made:
            for trace in run.traces[:20]:
                trace.misheard = (errors if trace.index % 2 else 0, 5)
        return [replace(run) for run in made]

    assert "wer" not in verdicts(heard(1), runs(0.1))
    found = verdicts(heard(1), heard(3))["wer"]
    assert [found.first, found.second] == pytest.approx([0.1, 0.3])
    assert found.told == "worse"
    assert verdicts(heard(1), heard(1))["wer"].told == "no difference shown"
