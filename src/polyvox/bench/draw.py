"""DrawInputs plots: an HTML page with SVG, which needs nothing, or PNG, which needs matplotlib."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyvox.bench.plots import Bar, Line, Plot
from polyvox.errors import InvalidRequest, PolyvoxError

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]  # headings, and what is below them

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 40, 62
COLOURS = ("#9ec5ea", "#e8a15b", "#2a6fbb", "#b0413e", "#5f6b76", "#7a5bb0")
BAR_COLOURS = {"waits": "#c9d3dc", "plays": "#3a9b5c", "dry": "#d0312d"}
TICKS = 6
MARGIN = 1.15  # on both sides of a logarithmic axis whose ticks are given
APART = 30  # pixels between two numbers on the axis across, at least
LINE_WIDTH, WIDER = 1.6, 1.3  # of the last line; by how much each before it is wider, so that none hides another
WIDEST = 4  # steps
PLOTS_IN_A_ROW, PNG_WIDTH, PNG_HEIGHT, PNG_DPI = 3, 4.6, 3.2, 80  # of a picture; inches of one plot
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:86rem;padding:0 1rem;color:#1d2733}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:1rem 0}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dee4;text-align:right}"
    "td:first-child,th:first-child{text-align:left;white-space:nowrap}figure{display:inline-block;margin:.5rem}"
    "svg{background:#fff;font:12px system-ui,sans-serif}pre{overflow:auto}.note{color:#8a4b00}"
)


def write(path: Path, title: str, plots: Sequence[Plot], tables: Sequence[Rows], notes: Sequence[str] = ()) -> None:
    """Writes a page or a picture, by the ending of its name."""
    if path.suffix == ".png":
        _write_png(path, title, plots)
    elif path.suffix in (".html", ".htm"):
        path.write_text(page(title, plots, tables, notes), encoding="utf-8")
    else:
        raise InvalidRequest("plot", str(path), "must end in .html or .png")


def check_path(path: Path) -> None:
    """Refuses early what could not be written after an hour of measuring."""
    if path.suffix not in (".html", ".htm", ".png"):
        raise InvalidRequest("plot", str(path), "must end in .html or .png")
    if path.suffix == ".png":
        _pyplot()


def page(title: str, plots: Sequence[Plot], tables: Sequence[Rows], notes: Sequence[str]) -> str:
    """A page that needs no other file."""
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


class _Axis:
    """Values to places between two ends; from zero, or by powers of ten."""

    def __init__(
        self,
        values: Sequence[float],
        begin: float,
        end: float,
        log: bool,
        ticks: Sequence[float] = (),
        top: float | None = None,
    ) -> None:
        self.log = log
        high = max(values, default=1.0) if top is None else top
        if log:
            low = min((value for value in values if value > 0), default=0.1)
            if ticks:
                self.low, self.high = math.log10(low / MARGIN), math.log10(high * MARGIN)
            else:
                first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) or 1)
                self.low, self.high = float(first), float(max(last, first + 1))
            tens = [10.0**power for power in range(math.ceil(self.low), int(self.high) + 1)]
            self.ticks = list(ticks) or tens
        else:
            step = nice_step(high / TICKS if high > 0 else 1.0)
            count = math.ceil(high / step - 1e-9) if high > 0 else 1
            self.low, self.high = 0.0, step * max(count, 1)
            self.ticks = list(ticks) or [step * i for i in range(max(count, 1) + 1)]
        self._begin, self._scale = begin, (end - begin) / (self.high - self.low)

    def place(self, value: float) -> float:
        value = math.log10(max(value, 10**self.low)) if self.log else value
        return round(self._begin + (value - self.low) * self._scale, 1)

    def apart(self) -> list[float]:
        """The ticks that have room for their numbers."""
        kept: list[float] = []
        for tick in self.ticks:
            if not kept or self.place(tick) - self.place(kept[-1]) >= APART:
                kept.append(tick)
        return kept


def nice_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, no smaller."""
    power = 10 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def svg(plot: Plot) -> str:
    """One plot as an SVG element; names and values show when the pointer is on a point."""
    rows = 1 + max((bar.row for bar in plot.bars), default=0)
    height = HEIGHT if not plot.bars else max(HEIGHT, TOP + BOTTOM + 7 * rows)
    points = [point for line in plot.lines for point in (*line.points, *line.each)]
    widths = [x for x, _ in points] + [bar.end for bar in plot.bars]
    across = _Axis(widths, LEFT, WIDTH - RIGHT, plot.log_across, plot.ticks)
    heights = [y for _, y in points] if not plot.bars else [float(rows)]
    up = _Axis(heights, height - BOTTOM, TOP, plot.log_up, top=plot.top)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">']
    parts.append(f"<title>{escape(plot.title)}</title>")
    parts.append(_text(LEFT, 20, plot.title, "start", "font-weight:600;font-size:14px"))
    for tick in across.apart():
        x = across.place(tick)
        parts.append(f'<path d="M{x} {TOP}V{height - BOTTOM}" stroke="#e6eaee"/>')
        parts.append(_text(x, height - BOTTOM + 16, f"{tick:g}", "middle"))
    for tick in up.ticks if not plot.bars else ():
        y = up.place(tick)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e6eaee"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    parts.append(_text((LEFT + WIDTH) / 2, height - BOTTOM + 32, plot.across, "middle"))
    parts.append(
        f'<text transform="translate(14 {height / 2}) rotate(-90)" text-anchor="middle">{escape(plot.up)}</text>'
    )
    for number, line in enumerate(plot.lines):
        parts.append(_line(line, COLOURS[number % len(COLOURS)], _width(plot, number), across, up))
    for bar in plot.bars:
        x, wide = across.place(bar.begin), max(0.4, across.place(bar.end) - across.place(bar.begin))
        y = TOP + 7 * bar.row
        told = f"{plot.kinds.get(bar.kind, bar.kind)}, {bar.begin:.4g} to {bar.end:.4g} {plot.across}"
        rect = f'<rect x="{x}" y="{y}" width="{wide:.1f}" height="5" fill="{BAR_COLOURS[bar.kind]}">'
        parts.append(f"{rect}<title>{escape(told)}</title></rect>")
    names = [(line.name, COLOURS[i % len(COLOURS)]) for i, line in enumerate(plot.lines)]
    names += [(told, BAR_COLOURS[kind]) for kind, told in plot.kinds.items()]
    parts += _legend(names, height)
    parts.append("</svg>")
    return "".join(parts)


def _width(plot: Plot, number: int) -> float:
    return LINE_WIDTH + WIDER * min(len(plot.lines) - 1 - number, WIDEST)


def _line(line: Line, colour: str, width: float, across: _Axis, up: _Axis) -> str:
    places = [(across.place(x), up.place(y)) for x, y in line.points]
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    path = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:.1f}"{dashes}/>']
    for x, y in line.each:
        parts.append(f'<circle cx="{across.place(x)}" cy="{up.place(y)}" r="2" fill="{colour}" opacity=".45"/>')
    for (x, y), (level, value) in zip(places, line.points, strict=True):
        told = escape(f"{line.name}: {value:.4g} at {level:g}")
        radius = 2 + width / 2
        parts.append(f'<circle cx="{x}" cy="{y}" r="{radius:.1f}" fill="{colour}"><title>{told}</title></circle>')
    return "".join(parts)


def _legend(names: Sequence[tuple[str, str]], height: int) -> list[str]:
    parts, x, y = [], float(LEFT), height - 10
    for name, colour in names:
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, y, name, "start"))
        x += 30 + 6.5 * len(name)
    return parts


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    styled = f' style="{style}"' if style else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{styled}>{escape(text)}</text>'


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise PolyvoxError("Plots as PNG need matplotlib: install it, or name a file that ends in .html") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _write_png(path: Path, title: str, plots: Sequence[Plot]) -> None:
    pyplot = _pyplot()
    rows: list[list[Plot]] = []
    for plot in plots:
        alone = bool(plot.bars)
        if alone or not rows or rows[-1][0].bars or len(rows[-1]) == PLOTS_IN_A_ROW:
            rows.append([])
        rows[-1].append(plot)
    size = (PNG_WIDTH * PLOTS_IN_A_ROW, PNG_HEIGHT * max(len(rows), 1))
    figure = pyplot.figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    places = figure.add_gridspec(max(len(rows), 1), PLOTS_IN_A_ROW)
    for number, row in enumerate(rows):
        for column, plot in enumerate(row):
            _draw(figure.add_subplot(places[number, :] if plot.bars else places[number, column]), plot)
    figure.savefig(path, dpi=PNG_DPI, pil_kwargs={"optimize": True})
    pyplot.close(figure)


def _draw(axes: Any, plot: Plot) -> None:
    axes.set(title=plot.title, xlabel=plot.across, ylabel=plot.up)
    axes.grid(color="#e6eaee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if plot.log_across:
        axes.set_xscale("log")
    if plot.log_up:
        axes.set_yscale("log")
    for number, line in enumerate(plot.lines):
        xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
        colour, width = COLOURS[number % len(COLOURS)], _width(plot, number)
        style = "o--" if line.dashed else "o-"
        axes.plot(xs, ys, style, label=line.name, color=colour, linewidth=width, markersize=3 + width)
        if line.each:
            axes.scatter(*zip(*line.each, strict=True), s=8, color=colour, alpha=0.45)
    for kind, told in plot.kinds.items():
        bars = [bar for bar in plot.bars if bar.kind == kind] or [Bar(0, 0.0, 0.0, kind)]  # for its colour's name
        lengths, begins = [bar.end - bar.begin for bar in bars], [bar.begin for bar in bars]
        axes.barh([bar.row for bar in bars], lengths, left=begins, color=BAR_COLOURS[kind], label=told)
    if plot.bars:
        axes.set_ylim(1 + max(bar.row for bar in plot.bars), -1)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
    elif not plot.log_up:
        axes.set_ylim(0, None if plot.top is None else 1.04 * plot.top)
    if plot.ticks:
        ticks = _Axis(plot.ticks, 0.0, PNG_WIDTH * PNG_DPI, plot.log_across, plot.ticks).apart()
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.legend(fontsize="small", framealpha=0.7, loc="best" if plot.top is None else "lower left")
