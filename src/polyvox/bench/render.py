# SPDX-License-Identifier: Apache-2.0
"""Draws plots with matplotlib: a self-contained HTML report with SVG figures, or one PNG."""

import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyvox.bench.plots import Bar, Plot
from polyvox.errors import InvalidRequest, PolyvoxError, how_to_install

TableData = tuple[Sequence[str], Sequence[Sequence[str]]]  # headings, rows

HTML_SUFFIXES, PNG_SUFFIX = (".html", ".htm"), ".png"
COLUMNS, PLOT_WIDTH, PLOT_HEIGHT, PNG_DPI = 3, 4.6, 3.2, 80  # inches
ROW_HEIGHT = 0.09  # inches of one timeline row
SERIES_COLOURS = ("#9ec5ea", "#e8a15b", "#2a6fbb", "#b0413e", "#5f6b76", "#7a5bb0")
GRID_COLOUR = "#e6eaee"
BAR_COLOURS = {
    "waiting": "#c9d3dc", "playing": "#3a9b5c", "underrun": "#d0312d", "passed": "#3a9b5c", "failed": "#d0312d",
}  # fmt: skip
MIN_TICK_DISTANCE = 0.08  # of the axis, between two labels
LINE_WIDTH, WIDTH_STEP, MAX_WIDTH_STEPS = 1.6, 1.3, 4  # each earlier series is wider, so that none hides another
SVG_OPTIONS = {"svg.fonttype": "none", "svg.hashsalt": "polyvox"}  # searchable text, reproducible ids
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:92rem;padding:0 1rem;color:#1d2733}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:1rem 0}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dee4;text-align:right}"
    "td:first-child,th:first-child{text-align:left;white-space:nowrap}figure{display:inline-block;margin:.5rem}"
    ".note{color:#8a4b00}"
)


def write(
    path: Path, title: str, plots: Sequence[Plot], tables: Sequence[TableData] = (), notes: Sequence[str] = ()
) -> None:
    """Writes an HTML report or a PNG, by the suffix of the path."""
    check_path(path)
    if path.suffix == PNG_SUFFIX:
        _write_png(path, title, plots)
    else:
        path.write_text(html_report(title, plots, tables, notes), encoding="utf-8")


def check_path(path: Path) -> None:
    """Raises an error, before anything is measured, if this file could not be written."""
    if path.suffix not in (*HTML_SUFFIXES, PNG_SUFFIX):
        raise InvalidRequest("plot", str(path), "must end in .html or .png")
    _import_matplotlib()


def html_report(title: str, plots: Sequence[Plot], tables: Sequence[TableData], notes: Sequence[str]) -> str:
    """A page without external resources."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{escape(title)}</h1>")
    parts += [f"<p class=note>{escape(note)}</p>" for note in notes]
    parts += [f"<figure>{svg(plot)}</figure>" for plot in plots]
    for headings, rows in tables:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
        parts.append(f"<table><tr>{cells}</tr>")
        parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        parts.append("</table>")
    return "\n".join(parts) + "\n</html>\n"


def svg(plot: Plot) -> str:
    """One plot as an SVG element."""
    mpl = _import_matplotlib()
    width, height = PLOT_WIDTH, PLOT_HEIGHT
    if plot.bars:
        rows = 1 + max(bar.row for bar in plot.bars)
        width, height = 2 * PLOT_WIDTH, max(PLOT_HEIGHT, 1 + ROW_HEIGHT * rows)
    written = io.StringIO()
    with mpl.rc_context(SVG_OPTIONS):
        figure = mpl.figure.Figure(figsize=(width, height), layout="constrained")
        _draw(figure.subplots(), plot)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _write_png(path: Path, title: str, plots: Sequence[Plot]) -> None:
    """All plots in one picture; a timeline takes a full row."""
    mpl = _import_matplotlib()
    rows: list[list[Plot]] = []
    for plot in plots:
        if plot.bars or not rows or rows[-1][0].bars or len(rows[-1]) == COLUMNS:
            rows.append([])
        rows[-1].append(plot)
    size = (PLOT_WIDTH * COLUMNS, PLOT_HEIGHT * max(len(rows), 1))
    figure = mpl.figure.Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(max(len(rows), 1), COLUMNS)
    for number, row in enumerate(rows):
        for column, plot in enumerate(row):
            _draw(figure.add_subplot(grid[number, :] if plot.bars else grid[number, column]), plot)
    figure.savefig(path, dpi=PNG_DPI, pil_kwargs={"optimize": True})


def _draw(axes: Any, plot: Plot) -> None:
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.grid(color=GRID_COLOUR)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
    _draw_series(axes, plot)
    _draw_bars(axes, plot)
    if not plot.bars and not plot.log_y:
        axes.set_ylim(0, None if plot.y_max is None else 1.04 * plot.y_max)
    if plot.x_ticks:
        ticks = spaced_ticks(plot.x_ticks, plot.log_x)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.legend(fontsize="small", framealpha=0.7, loc="best" if plot.y_max is None else "lower left")


def _draw_series(axes: Any, plot: Plot) -> None:
    for number, series in enumerate(plot.series):
        xs, ys = zip(*series.points, strict=True) if series.points else ((), ())
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        width = LINE_WIDTH + WIDTH_STEP * min(len(plot.series) - 1 - number, MAX_WIDTH_STEPS)
        style = "o--" if series.dashed else "o-"
        axes.plot(xs, ys, style, label=series.name, color=colour, linewidth=width, markersize=3 + width)
        if series.samples:
            axes.scatter(*zip(*series.samples, strict=True), s=8, color=colour, alpha=0.45)


def _draw_bars(axes: Any, plot: Plot) -> None:
    for kind, label in plot.bar_labels.items():
        bars = [bar for bar in plot.bars if bar.kind == kind] or [Bar(0, 0.0, 0.0, kind)]  # for the legend
        lengths, begins = [bar.end - bar.begin for bar in bars], [bar.begin for bar in bars]
        axes.barh([bar.row for bar in bars], lengths, left=begins, color=BAR_COLOURS[kind], label=label)
    if plot.bars:
        axes.set_ylim(1 + max(bar.row for bar in plot.bars), -1)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")


def spaced_ticks(ticks: Sequence[float], log: bool) -> list[float]:
    """The ticks whose labels do not overlap, from the first on."""
    positions = [math.log(tick) if log else tick for tick in ticks]
    start = positions[0] if log else min(0.0, positions[0])
    min_distance = MIN_TICK_DISTANCE * (positions[-1] - start)
    kept: list[int] = []
    for index, position in enumerate(positions):
        if not kept or position - positions[kept[-1]] >= min_distance:
            kept.append(index)
    return [ticks[index] for index in kept]


def _import_matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError:
        raise PolyvoxError(f"Plots require the package matplotlib: {how_to_install('bench')}.") from None
    return matplotlib
