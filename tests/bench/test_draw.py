"""PagedKVView that hold what was measured, and need nothing else."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from polyvox.bench.capacity import Capacity, Trial, breaches, parse_slo
from polyvox.bench.draw import check_path, nice_step, page, svg, write
from polyvox.bench.load import Lag, Load
from polyvox.bench.metrics import Trace
from polyvox.bench.plots import Line, Plot, of_runs, of_search, timeline
from polyvox.bench.report import HEADINGS, row, serving_report
from polyvox.bench.results import Run
from polyvox.bench.summary import spread
from polyvox.errors import InvalidRequest, PolyvoxError

RATE = 24_000


def run(level: float, mode: str = "closed") -> Run:
    """Three streams: one well, one that runs dry for 300 ms, one that fails."""
    well = Trace(0, 0, 4, True, 0.0, 0.0, 0.05, [(0.1, RATE), (0.5, RATE)], 0.5, onset=1200)
    dry = Trace(1, 1, 4, True, 1.0, 1.0, None, [(1.1, RATE), (2.4, RATE)], 2.4, onset=0)
    failed = Trace(2, 2, 4, True, 2.0, 2.0, ended=2.1, error="http 503", detail="busy")
    return Run(Load(mode, level), Lag(spread([0.001, 0.002]), 0.1, 1), [well, dry, failed])  # type: ignore[arg-type]


def texts(plot: Plot) -> list[str]:
    return [found.text or "" for found in ET.fromstring(svg(plot)).iter() if found.tag in ("text", "title")]


def test_the_report_has_the_familiar_layout_and_the_numbers() -> None:
    told = serving_report(run(2))
    lines = told.splitlines()
    assert lines[0].strip("=") == " Serving Benchmark Result "
    assert len({len(line) for line in lines}) == 1
    split = [line.rsplit(maxsplit=1) for line in lines if line[0].isalpha() or line[:2] == "  "]
    values = dict(split)
    assert values["Successful requests:"] == "2"
    assert values["Failed requests:"] == "1"
    assert values["  http 503:"] == "1"
    assert values["P95 TTFA (ms):"] == "150.00"
    assert values["P50 TTFP (ms):"] == "100.00"
    assert values["Mean TTFB (ms):"] == "75.00"
    assert values["Longest (ms):"] == "300.00"  # also of the player with a start buffer: the first packet fills it
    assert values["Maximum request concurrency:"] == "2"
    assert len(row(run(2))) == len(HEADINGS)
    assert "Request rate configured (RPS):" in serving_report(run(2, "open"))


def test_plots_are_by_load_and_by_kind_of_load() -> None:
    titles = [plot.title for plot in of_runs([run(1), run(4), run(4), run(2.5, "open")])]
    assert len(titles) == 7
    assert titles[-1] == "What listeners heard: 2.5 a second"
    first = of_runs([run(1), run(4), run(4)])[0]
    assert [line.name for line in first.lines] == ["p50", "p95", "p99", "client's own lag, p99"]
    assert list(first.lines[3].points) == [(1, 2.0), (4, 2.0)]
    assert [level for level, _ in first.lines[0].each] == [1, 4, 4]
    assert [level for level, _ in first.lines[1].points] == [1, 4]
    assert [value for _, value in first.lines[1].points] == pytest.approx([150, 150])
    assert of_runs([]) == []


def test_continuity_is_told_beside_how_many_requests_succeeded() -> None:
    continuity = of_runs([run(1), run(4)])[1]
    shown = {line.name: line.points[0][1] for line in continuity.lines}
    assert shown.pop("requests that succeeded") == pytest.approx(200 / 3)
    assert shown == {"no buffer": 50, "50 ms": 50, "100 ms": 50, "200 ms": 50}
    assert "100" in texts(continuity)


def test_numbers_on_the_axis_are_the_loads_that_have_room() -> None:
    few, many = of_runs([run(1), run(3)])[0], of_runs([run(level) for level in (1, 64, 127, 128)])[0]
    assert {"1", "3"} <= set(texts(few))
    assert (few.log_across, many.log_across) == (False, True)
    assert "64" in texts(many)
    assert "128" not in texts(many)


def test_a_timeline_shows_where_players_ran_dry() -> None:
    bars = timeline(run(2)).bars
    assert [(bar.row, bar.kind) for bar in bars] == [
        (0, "waits"), (0, "plays"), (1, "waits"), (1, "plays"), (1, "dry"), (1, "plays")
    ]  # fmt: skip
    dry = bars[4]
    assert [dry.begin, dry.end] == pytest.approx([2.1, 2.4])


def test_a_search_is_drawn_run_by_run_and_against_its_bounds() -> None:
    def searched(level: float, gap: float) -> Run:
        trace = Trace(0, 0, 4, True, 0.0, 0.0, 0.05, [(0.1, RATE), (1.1 + gap, RATE)], 2.4, onset=0)
        return Run(Load("closed", level), Lag(None, 0.1, 1), [trace])

    runs = [searched(1, 0.0), searched(2, 0.0), searched(2, 0.2), searched(1.5, 0.0)]
    limits = parse_slo("underrun_longest=50ms")
    trials = [Trial(run.load.level, 1, tuple(breaches(run.summary, limits)), run.summary) for run in runs]
    tried, bound, *others = of_search(Capacity(1.5, 2, tuple(trials)), runs, limits)
    assert [(bar.end, tried.kinds[bar.kind]) for bar in tried.bars] == [
        (1, "held"), (2, "held"), (2, "broke"), (1.5, "held")
    ]  # fmt: skip
    assert bound.title == "underrun_longest ≤ 50 ms"
    held, broke, allowed = bound.lines
    assert (held.points, allowed.points) == (((1, 0), (1.5, 0)), ((1, 50), (1.5, 50), (2, 50)))
    assert [value for _, value in broke.points] == pytest.approx([100])  # of one run that held and one that did not
    assert [value for _, value in broke.each] == pytest.approx([0, 200])
    assert [plot.title for plot in others] == [plot.title for plot in of_runs(runs)]


def test_a_page_is_whole_and_escapes_what_it_is_given() -> None:
    plots = of_runs([run(1), run(8)])
    made = page("A <b>", plots, [(HEADINGS, [row(run(1))])], ["x < y & z"])
    assert "A &lt;b&gt;" in made
    assert "x &lt; y &amp; z" in made
    assert made.count("<svg") == len(plots) == 4
    assert "http" not in made.replace("http 503", "")  # nothing is fetched
    for plot in plots:
        assert plot.title in texts(plot)


def test_points_say_what_they_are() -> None:
    plot = Plot("P", "x", "ms", (Line("p50", ((1.0, 3.5), (10.0, 120.0))),), log_across=True, log_up=True)
    assert "p50: 3.5 at 1" in texts(plot)
    assert {"1", "10", "100", "1000"} <= set(texts(plot))
    assert texts(Plot("Empty", "x", "y", (Line("none", ()),)))
    assert texts(Plot("Zero", "x", "y", (Line("zero", ((1.0, 0.0),)),)))
    assert [nice_step(rough) for rough in (0.03, 1.0, 1.1, 4.0, 7.0, 23.0)] == [0.05, 1, 2, 5, 10, 50]


def test_what_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "plot.gif", tmp_path / "plot"):
        with pytest.raises(InvalidRequest, match=r"\.html"):
            check_path(path)
        with pytest.raises(InvalidRequest):
            write(path, "t", [], [])
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(PolyvoxError, match="matplotlib"):
        check_path(tmp_path / "plot.png")
    write(tmp_path / "plot.html", "t", of_runs([run(1)]), [])
    assert (tmp_path / "plot.html").read_text().startswith("<!doctype html>")


def test_a_picture_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    write(tmp_path / "plot.png", "t", of_runs([run(1), run(2)]), [])
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
