"""Draws plots: an HTML page with SVG, which needs nothing, or PNG, which needs matplotlib."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyvox.bench.plots import Line, Plot
from polyvox.errors import InvalidRequest, PolyvoxError

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]  # headings, and what is below them

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 40, 62
COLOURS = ("#2a6fbb", "#d9822b", "#3a9b5c", "#b0413e", "#7a5bb0", "#5f6b76")
BAR_COLOURS = {"waits": "#c9d3dc", "plays": "#3a9b5c", "dry": "#d0312d"}
TICKS = 6
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1d2733}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:1rem 0}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dee4;text-align:right}"
    "td:first-child,th:first-child{text-align:left}figure{display:inline-block;margin:.5rem}"
    "svg{background:#fff;font:12px system-ui,sans-serif}pre{overflow:auto}.note{color:#8a4b00}"
)


def write(path: Path, title: str, plots: Sequence[Plot], tables: Sequence[Rows], notes: Sequence[str] = ()) -> None:
    """Writes a page or a picture, by the ending of its name."""
    if path.suffix == ".png":
        _write_png(path, title, plots)
    elif path.suffix in (".html", ".htm"):
        path.write_text(page(title, plots, tables, notes), encoding="utf-8")
    else:
        raise InvalidRequest("plot", str(path), "a name that ends in .html or .png")


def check_path(path: Path) -> None:
    """Refuses early what could not be written after an hour of measuring."""
    if path.suffix not in (".html", ".htm", ".png"):
        raise InvalidRequest("plot", str(path), "a name that ends in .html or .png")
    if path.suffix == ".png":
        _pyplot()


def page(title: str, plots: Sequence[Plot], tables: Sequence[Rows], notes: Sequence[str]) -> str:
    """A page that needs no other file."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{escape(title)}</h1>")
    parts += [f"<p class=note>{escape(note)}</p>" for note in notes]
    for headings, rows in tables:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
        parts.append(f"<table><tr>{cells}</tr>")
        parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        parts.append("</table>")
    parts += [f"<figure>{svg(plot)}</figure>" for plot in plots]
    return "\n".join(parts) + "\n</html>\n"


class _Axis:
    """Values to places between two ends; from zero, or by powers of ten."""

    def __init__(self, values: Sequence[float], begin: float, end: float, log: bool) -> None:
        self.log = log
        high = max(values, default=1.0)
        if log:
            low = min((value for value in values if value > 0), default=0.1)
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) or 1)
            self.low, self.high = float(first), float(max(last, first + 1))
            self.ticks = [10.0**power for power in range(int(self.low), int(self.high) + 1)]
        else:
            step = nice_step(high / TICKS if high > 0 else 1.0)
            count = math.ceil(high / step - 1e-9) if high > 0 else 1
            self.low, self.high = 0.0, step * max(count, 1)
            self.ticks = [step * i for i in range(max(count, 1) + 1)]
        self._begin, self._scale = begin, (end - begin) / (self.high - self.low)

    def place(self, value: float) -> float:
        value = math.log10(max(value, 10**self.low)) if self.log else value
        return round(self._begin + (value - self.low) * self._scale, 1)


def nice_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, no smaller."""
    power = 10 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def svg(plot: Plot) -> str:
    """One plot as an SVG element; names and values show when the pointer is on a point."""
    rows = 1 + max((bar.row for bar in plot.bars), default=0)
    height = HEIGHT if not plot.bars else max(HEIGHT, TOP + BOTTOM + 7 * rows)
    points = [point for line in plot.lines for point in line.points]
    across = _Axis([x for x, _ in points] + [bar.end for bar in plot.bars], LEFT, WIDTH - RIGHT, plot.log)
    heights = [y for _, y in points] if not plot.bars else [float(rows)]
    up = _Axis(heights, height - BOTTOM, TOP, plot.log)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">']
    parts.append(f"<title>{escape(plot.title)}</title>")
    parts.append(_text(LEFT, 20, plot.title, "start", "font-weight:600;font-size:14px"))
    for tick in across.ticks:
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
        parts.append(_line(line, COLOURS[number % len(COLOURS)], across, up))
    for bar in plot.bars:
        x, wide = across.place(bar.begin), max(0.4, across.place(bar.end) - across.place(bar.begin))
        y = TOP + 7 * bar.row
        told = f"{plot.kinds.get(bar.kind, bar.kind)}, {bar.begin:.3f} to {bar.end:.3f} s"
        rect = f'<rect x="{x}" y="{y}" width="{wide:.1f}" height="5" fill="{BAR_COLOURS[bar.kind]}">'
        parts.append(f"{rect}<title>{escape(told)}</title></rect>")
    names = [(line.name, COLOURS[i % len(COLOURS)]) for i, line in enumerate(plot.lines)]
    names += [(told, BAR_COLOURS[kind]) for kind, told in plot.kinds.items()]
    parts += _legend(names, height)
    parts.append("</svg>")
    return "".join(parts)


def _line(line: Line, colour: str, across: _Axis, up: _Axis) -> str:
    places = [(across.place(x), up.place(y)) for x, y in line.points]
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    path = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>']
    for (x, y), (level, value) in zip(places, line.points, strict=True):
        told = escape(f"{line.name}: {value:.4g} at {level:g}")
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>{told}</title></circle>')
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
    figure, places = pyplot.subplots(len(plots), 1, figsize=(8, 4 * len(plots)), squeeze=False, layout="constrained")
    figure.suptitle(title)
    for plot, (axes,) in zip(plots, places, strict=True):
        for line in plot.lines:
            xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
            axes.plot(xs, ys, "--" if line.dashed else "o-", label=line.name)
        for bar in plot.bars:
            axes.barh(-bar.row, bar.end - bar.begin, left=bar.begin, color=BAR_COLOURS[bar.kind])
        if plot.lines:
            axes.legend()
        else:
            axes.set_yticks([])
        if plot.log:
            axes.set(xscale="log", yscale="log")
        elif not plot.bars:
            axes.set_ylim(bottom=0)
        axes.set(title=plot.title, xlabel=plot.across, ylabel=plot.up)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
