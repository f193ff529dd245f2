# SPDX-License-Identifier: Apache-2.0
"""Text reports, plots and their rendering."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from polyvox.bench.capacity import Capacity, Trial, parse_slo, violations
from polyvox.bench.load import ClientLag, Load
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.plots import Plot, Series, capacity_plots, run_plots, timeline
from polyvox.bench.render import check_path, html_report, spaced_ticks, svg, write
from polyvox.bench.report import HEADINGS, row, serving_report
from polyvox.bench.results import Run
from polyvox.bench.summary import distribution
from polyvox.errors import InvalidRequest, PolyvoxError

RATE = 24_000


def run(level: float, mode: str = "closed") -> Run:
    """Three streams: one without underruns, one with an underrun of 300 ms, one that fails."""
    good = RequestTrace(0, 0, 4, True, 0.0, 0.0, 0.05, [(0.1, RATE), (0.5, RATE)], 0.5, onset=1200)
    stalled = RequestTrace(1, 1, 4, True, 1.0, 1.0, None, [(1.1, RATE), (2.4, RATE)], 2.4, onset=0)
    failed = RequestTrace(2, 2, 4, True, 2.0, 2.0, ended=2.1, error="http 503", detail="busy")
    lag = ClientLag(distribution([0.001, 0.002]), 0.1, 1)
    return Run(Load(mode, level), lag, [good, stalled, failed])  # type: ignore[arg-type]


def labels(plot: Plot) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg(plot)).iter() if element.tag.endswith("text")]


def test_the_report_has_the_layout_of_serving_benchmarks_and_the_metrics() -> None:
    lines = serving_report(run(2)).splitlines()
    assert lines[0].strip("=") == " Serving Benchmark Result "
    assert len({len(line) for line in lines}) == 1
    values = dict(line.rsplit(maxsplit=1) for line in lines if line[0].isalpha() or line[:2] == "  ")
    assert values["Successful requests:"] == "2"
    assert values["Failed requests:"] == "1"
    assert values["  http 503:"] == "1"
    assert values["P95 TTFA (ms):"] == "150.00"
    assert values["P50 TTFP (ms):"] == "100.00"
    assert values["Mean TTFB (ms):"] == "75.00"
    assert values["Longest (ms):"] == "300.00"  # with a start buffer, too: the first packet fills it
    assert values["Maximum request concurrency:"] == "2"
    assert len(row(run(2))) == len(HEADINGS)
    assert "Request rate configured (RPS):" in serving_report(run(2, "open"))
    assert "Listeners:" in serving_report(run(2, "listeners"))


def test_plots_are_grouped_by_mode_and_show_metrics_by_load() -> None:
    titles = [plot.title for plot in run_plots([run(1), run(4), run(4), run(2.5, "open")])]
    assert len(titles) == 7
    assert titles[-1] == "Playback by stream: 2.5 req/s"
    ttfa = run_plots([run(1), run(4), run(4)])[0]
    assert [series.name for series in ttfa.series] == ["p50", "p95", "p99", "client lag, p99"]
    assert list(ttfa.series[3].points) == [(1, 2.0), (4, 2.0)]
    assert [level for level, _ in ttfa.series[0].samples] == [1, 4, 4]
    assert [level for level, _ in ttfa.series[1].points] == [1, 4]
    assert [value for _, value in ttfa.series[1].points] == pytest.approx([150, 150])
    assert run_plots([]) == []


def test_the_continuity_plot_includes_the_share_of_successful_requests() -> None:
    continuity = run_plots([run(1), run(4)])[1]
    shown = {series.name: series.points[0][1] for series in continuity.series}
    assert shown.pop("successful requests") == pytest.approx(200 / 3)
    assert shown == {"no buffer": 50, "50 ms": 50, "100 ms": 50, "200 ms": 50}
    assert "100" in labels(continuity)


def test_the_load_axis_labels_the_measured_loads_without_overlap() -> None:
    narrow, wide = run_plots([run(1), run(3)])[0], run_plots([run(level) for level in (1, 64, 127, 128)])[0]
    assert {"1", "3"} <= set(labels(narrow))
    assert (narrow.log_x, wide.log_x) == (False, True)
    assert "64" in labels(wide)
    assert "128" not in labels(wide)
    assert spaced_ticks([1, 2, 90, 100], log=False) == [1, 90, 100]
    assert spaced_ticks([5], log=True) == [5]


def test_a_timeline_shows_underruns() -> None:
    bars = timeline(run(2)).bars
    assert [(bar.row, bar.kind) for bar in bars] == [
        (0, "waiting"), (0, "playing"), (1, "waiting"), (1, "playing"), (1, "underrun"), (1, "playing")
    ]  # fmt: skip
    assert [bars[4].begin, bars[4].end] == pytest.approx([2.1, 2.4])


def test_a_capacity_search_is_plotted_run_by_run_and_against_its_objectives() -> None:
    def trial_run(level: float, gap: float) -> Run:
        trace = RequestTrace(0, 0, 4, True, 0.0, 0.0, 0.05, [(0.1, RATE), (1.1 + gap, RATE)], 2.4, onset=0)
        return Run(Load("closed", level), ClientLag(None, 0.1, 1), [trace])

    runs = [trial_run(1, 0.0), trial_run(2, 0.0), trial_run(2, 0.2), trial_run(1.5, 0.0)]
    objectives = parse_slo("underrun_longest=50ms")
    trials = [Trial(run.load.level, 1, tuple(violations(run.summary, objectives)), run.summary) for run in runs]
    search, bounded, *others = capacity_plots(Capacity(1.5, 2, tuple(trials)), runs, objectives)
    assert [(bar.end, bar.kind) for bar in search.bars] == [
        (1, "passed"), (2, "passed"), (2, "failed"), (1.5, "passed")
    ]  # fmt: skip
    assert bounded.title == "underrun_longest ≤ 50 ms"
    passing, failing, objective = bounded.series
    assert (passing.points, objective.points) == (((1, 0), (1.5, 0)), ((1, 50), (1.5, 50), (2, 50)))
    assert [value for _, value in failing.points] == pytest.approx([100])  # the mean of two repeats, one of which fails
    assert [value for _, value in failing.samples] == pytest.approx([0, 200])
    assert [plot.title for plot in others] == [plot.title for plot in run_plots(runs)]


def test_an_html_report_is_self_contained_and_escapes_its_text() -> None:
    plots = run_plots([run(1), run(8)])
    page = html_report("A <b>", plots, [(HEADINGS, [row(run(1))])], ["x < y & z"])
    assert page.startswith("<!doctype html>")
    assert "A &lt;b&gt;" in page
    assert "x &lt; y &amp; z" in page
    assert page.count("<svg") == len(plots) == 4
    assert 'src="' not in page
    assert 'href="http' not in page
    assert page == html_report("A <b>", plots, [(HEADINGS, [row(run(1))])], ["x < y & z"])
    for plot in plots:
        assert plot.title in labels(plot)


def test_logarithmic_and_empty_plots_can_be_drawn() -> None:
    plot = Plot("P", "x", "ms", (Series("p50", ((1.0, 3.5), (10.0, 120.0))),), log_x=True, log_y=True)
    assert "p50" in labels(plot)
    assert labels(Plot("Empty", "x", "y", (Series("none", ()),)))
    assert labels(Plot("Zero", "x", "y", (Series("zero", ((1.0, 0.0),)),)))


def test_an_unusable_plot_file_is_rejected_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "plot.gif", tmp_path / "plot"):
        with pytest.raises(InvalidRequest, match=r"\.html"):
            check_path(path)
        with pytest.raises(InvalidRequest):
            write(path, "t", [])
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    for name in ("plot.png", "plot.html"):
        with pytest.raises(PolyvoxError, match=r"pip install '\.\[bench\]' in the clone"):
            check_path(tmp_path / name)


def test_plots_are_written_as_html_and_png(tmp_path: Path) -> None:
    write(tmp_path / "plot.html", "t", run_plots([run(1)]))
    assert (tmp_path / "plot.html").read_text().count("<svg") == 4
    write(tmp_path / "plot.png", "t", run_plots([run(1), run(2)]))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
