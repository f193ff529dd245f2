# SPDX-License-Identifier: Apache-2.0
"""Draws the panels of the Grafana dashboard from a Prometheus, as a page for a screenshot. Grafana is not needed."""

import html
import json
import re
from pathlib import Path
from typing import Any

import httpx

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/dashboards/polyvox.json"
WIDTH, HEIGHT = 380, 150  # pixels of a chart
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")
Series = tuple[str, list[tuple[float, float]]]


def expanded(expression: str) -> str:
    """The query with the values that Grafana would set."""
    return re.sub(r'(job|instance)=~"\$\1"', r'\1=~".*"', expression.replace("$__rate_interval", "30s"))


def query(client: httpx.Client, target: dict[str, Any], start: float, end: float) -> list[Series]:
    parameters: dict[str, str | float] = {
        "query": expanded(target["expr"]),
        "start": start,
        "end": end,
        "step": max(1.0, (end - start) / 120),
    }
    answer = client.get("/api/v1/query_range", params=parameters).json()
    assert answer["status"] == "success", answer
    found = []
    for result in answer["data"]["result"]:
        legend = target["legendFormat"]
        for name, value in result["metric"].items():
            legend = legend.replace(f"{{{{{name}}}}}", value)
        points = [(time, float(value)) for time, value in result["values"] if value not in ("NaN", "+Inf", "-Inf")]
        if points:
            found.append((legend, points))
    return found


def chart(series: list[Series], start: float, end: float) -> str:
    highest = max((value for _, points in series for _, value in points), default=1.0) or 1.0
    lines = []
    for index, (_, points) in enumerate(series):
        coordinates = " ".join(
            f"{(time - start) / (end - start) * WIDTH:.1f},{HEIGHT - value / highest * (HEIGHT - 15):.1f}"
            for time, value in points
        )
        color = COLORS[index % len(COLORS)]
        lines.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{coordinates}"/>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}"><text x="2" y="11">{highest:.3g}</text>{"".join(lines)}</svg>'


def render(client: httpx.Client, start: float, end: float) -> str:
    """The page with all panels of the dashboard."""
    parts = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            parts.append(f"<h2>{title}</h2>")
            continue
        series = [found for target in panel["targets"] for found in query(client, target, start, end)]
        legend = " ".join(
            f'<span style="color:{COLORS[index % len(COLORS)]}">{html.escape(name)}</span>'
            for index, (name, _) in enumerate(series)
        )
        if panel["type"] == "stat":
            value = f"{series[0][1][-1][1]:.3g}" if series else "–"
            value = series[0][0] if series and panel["options"]["textMode"] == "name" else value
            parts.append(f'<div class="stat"><b>{title}</b><p>{html.escape(value)}</p></div>')
        else:
            parts.append(f'<div class="panel"><b>{title}</b>{chart(series, start, end)}<small>{legend}</small></div>')
    style = (
        "body{font:13px sans-serif;width:1230px;margin:8px}h2{font-size:15px;margin:6px 0}"
        ".panel,.stat{display:inline-block;vertical-align:top;border:1px solid #ccc;padding:6px;margin:3px}"
        f".panel{{width:{WIDTH}px;height:{HEIGHT + 66}px;overflow:hidden}}"
        ".stat{width:176px;height:64px}.stat p{font-size:22px;margin:6px 0;white-space:nowrap;overflow:hidden}"
        "svg{display:block;background:#f7f7f7}svg text{font-size:10px;fill:#666}small span{margin-right:6px}"
    )
    return f"<!doctype html><meta charset=utf-8><style>{style}</style><h1>Polyvox</h1>{''.join(parts)}"
