# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana dashboard and the table of docs/metrics.md from the definitions of the metrics.

    python -m tools.monitoring [--check]

With --check nothing is written, and the exit status is 1 if a file is not up to date.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyvox.server.metrics import MetricDefinition
from tools.dashboard_queries import DEFINITIONS, Query, gauge, increase, mean, metric, quantile_by, quantiles, rate

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD = ROOT / "deploy/grafana/dashboards/polyvox.json"
PAGE = ROOT / "docs/metrics.md"
TABLE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->)", re.DOTALL)
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRID_WIDTH, PANEL_WIDTH, PANEL_HEIGHT, STAT_WIDTH, STAT_HEIGHT = 24, 8, 8, 4, 4
Unit = Literal["short", "s", "percentunit", "reqps", "ops", "bytes", "bool_yes_no", "none"]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    description: str
    unit: Unit
    queries: list[Query]
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False
    thresholds: list[tuple[float | None, str]] = field(default_factory=lambda: [(None, "green")])


SUMMARY = [
    Panel(
        "Ready",
        "Servers that are ready, of all that Prometheus scrapes.",
        "none",
        [gauge("polyvox_ready", "sum", "ready")],
        "stat",
        thresholds=[(None, "red"), (1, "green")],
    ),
    Panel(
        "Streams", "Streams that the engine runs.", "none", [gauge("polyvox_engine_streams", "sum", "streams")], "stat"
    ),
    Panel(
        "Capacity",
        "Streams that the engine can serve in real time.",
        "none",
        [gauge("polyvox_streams_admissible", "sum", "capacity")],
        "stat",
    ),
    Panel(
        "TTFA p95",
        "95th percentile of the time to first audio.",
        "s",
        quantiles("polyvox_ttfa_seconds", 95),
        "stat",
        thresholds=[(None, "green"), (0.5, "orange"), (1, "red")],
    ),
    Panel(
        "Underruns",
        "Playback underruns in the interval.",
        "none",
        [increase("polyvox_playback_underruns_total", "underruns")],
        "stat",
        thresholds=[(None, "green"), (1, "red")],
    ),
    Panel(
        "Version",
        "Versions of the servers.",
        "none",
        [Query(f"sum by (version, model) ({metric('polyvox_build_info', 'gauge')})", "{{version}} {{model}}")],
        "stat",
    ),
]
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Streams and capacity",
        [
            Panel(
                "Streams and capacity",
                "Add servers when the streams approach the capacity.",
                "short",
                [
                    gauge("polyvox_engine_streams", "sum", "streams"),
                    gauge("polyvox_streams_admissible", "sum", "capacity"),
                    gauge("polyvox_engine_slots", "sum", "slots"),
                    gauge("polyvox_engine_slots_free", "sum", "free slots"),
                    gauge("polyvox_streams_active", "sum", "active requests"),
                ],
            ),
            Panel(
                "Limits of the capacity",
                "Streams that each limit allows in real time; the smallest determines the capacity.",
                "short",
                [gauge("polyvox_streams_admissible_by_limit", "sum", "{{limit}}", by="limit")],
            ),
            Panel(
                "Streams by status",
                "Status of each stream of the engine.",
                "short",
                [gauge("polyvox_streams", "sum", "{{status}}", by="status")],
                stacked=True,
            ),
            Panel(
                "Queue",
                "Requests that wait for a slot, and how long finished ones waited.",
                "short",
                [
                    gauge("polyvox_queue_depth", "sum", "queued requests"),
                    *(
                        Query(query.expression, f"wait {query.legend} in seconds")
                        for query in quantiles("polyvox_queue_wait_seconds", 50, 95)
                    ),
                ],
            ),
        ],
    ),
    (
        "Latency",
        [
            Panel(
                "Time to first audio",
                "From the request to its first bytes of audio.",
                "s",
                quantiles("polyvox_ttfa_seconds", 50, 95, 99),
            ),
            Panel(
                "First packet by stage, p95",
                "Where the time before a request's first packet goes.",
                "s",
                [quantile_by("polyvox_first_packet_stage_seconds", 95, "stage")],
            ),
            Panel(
                "Lead",
                "Audio that a player still has when the next chunk is ready; 0 is an underrun.",
                "s",
                [
                    *quantiles("polyvox_lead_seconds", 1, 5, 50),
                    gauge("polyvox_engine_min_lead_seconds", "min", "smallest lead in the engine"),
                ],
            ),
            Panel(
                "Gap between chunks",
                "Time from sending a chunk until the next one is ready.",
                "s",
                quantiles("polyvox_chunk_gap_seconds", 50, 95, 99),
            ),
            Panel(
                "Real-time factor",
                "Seconds of work per second of audio. Below 1 a request is faster than its playback.",
                "short",
                quantiles("polyvox_rtf", 50, 95),
            ),
            Panel(
                "Underruns",
                "Players that ran out of audio, per second.",
                "ops",
                [
                    rate("polyvox_playback_underruns_total", "finished requests"),
                    rate("polyvox_engine_underruns_total", "engine"),
                ],
            ),
            Panel(
                "LLM",
                "Time to the LLM's first text, for chat completions.",
                "s",
                quantiles("polyvox_llm_first_token_seconds", 50, 95),
            ),
        ],
    ),
    (
        "Requests",
        [
            Panel(
                "Requests by outcome",
                "Synthesis requests per second.",
                "reqps",
                [rate("polyvox_requests_total", "{{outcome}}", by="outcome")],
                stacked=True,
            ),
            Panel(
                "Refusals by reason",
                "Rejected requests per second, by the code of the error.",
                "reqps",
                [rate("polyvox_rejections_total", "{{reason}}", by="reason")],
                stacked=True,
            ),
            Panel(
                "Aborts and timeouts",
                "Streams that ended early, and what took too long.",
                "ops",
                [
                    rate("polyvox_aborts_total", "aborted: {{reason}}", by="reason"),
                    rate("polyvox_timeouts_total", "timeout: {{kind}}", by="kind"),
                ],
            ),
            Panel(
                "HTTP by status",
                "All HTTP requests and WebSockets (status 101) per second.",
                "reqps",
                [rate("polyvox_http_requests_total", "{{status}}", by="status")],
                stacked=True,
            ),
            Panel(
                "HTTP by route",
                "All HTTP requests and WebSockets per second.",
                "reqps",
                [rate("polyvox_http_requests_total", "{{route}}", by="route")],
                stacked=True,
            ),
            Panel(
                "Realtime sessions",
                "Open sessions of the Realtime API, and their responses per second.",
                "short",
                [
                    gauge("polyvox_realtime_sessions", "sum", "sessions"),
                    rate("polyvox_realtime_responses_total", "responses: {{status}}", by="status"),
                ],
            ),
            Panel(
                "Transcriptions",
                "Requests to the STT server per second, and their duration in seconds.",
                "short",
                [
                    rate("polyvox_stt_requests_total", "{{outcome}}", by="outcome"),
                    *(
                        Query(query.expression, f"duration {query.legend} in seconds")
                        for query in quantiles("polyvox_stt_seconds", 50, 95)
                    ),
                ],
            ),
            Panel(
                "Chat completions",
                "Answers of the LLM per second, by outcome.",
                "reqps",
                [rate("polyvox_llm_requests_total", "{{outcome}}", by="outcome")],
            ),
        ],
    ),
    (
        "Engine",
        [
            Panel(
                "Step time",
                "A step generates one frame of 0.08 s for each stream of its batch.",
                "s",
                [
                    *quantiles("polyvox_engine_step_seconds", 50, 95, 99),
                    mean("polyvox_engine_step_seconds"),
                    gauge("polyvox_engine_last_step_seconds", "max", "last"),
                ],
            ),
            Panel(
                "Steps and frames",
                "Steps per second, frames per second and the batch size of the last step.",
                "short",
                [
                    rate("polyvox_engine_steps_total", "steps"),
                    rate("polyvox_engine_frames_total", "frames"),
                    gauge("polyvox_engine_step_streams", "sum", "batch size"),
                ],
            ),
            Panel(
                "KV cache pages",
                "Pages of the KV cache, which streams share, and streams that ended because no page was free.",
                "short",
                [
                    gauge("polyvox_engine_kv_pages", "sum", "pages"),
                    gauge("polyvox_engine_kv_pages_free", "sum", "free pages"),
                    increase("polyvox_engine_streams_out_of_pages_total", "streams out of pages"),
                ],
            ),
            Panel(
                "Audio",
                "Seconds of audio, and characters of text, per second.",
                "short",
                [rate("polyvox_audio_seconds_total", "audio"), rate("polyvox_characters_total", "characters")],
            ),
            Panel(
                "Restarts",
                "Restarts of the engines in the interval, and engines that are ready, of one or several replicas.",
                "short",
                [
                    increase("polyvox_engine_restarts_total", "restarts"),
                    gauge("polyvox_engine_ready", "sum", "ready engines"),
                ],
            ),
            Panel(
                "Server processes",
                "Largest lag of the event loop, and request records dropped per second.",
                "s",
                [
                    gauge("polyvox_event_loop_lag_seconds", "max", "event loop lag"),
                    rate("polyvox_request_records_dropped_total", "dropped records"),
                ],
            ),
            Panel(
                "Whole files",
                "Size of the responses that are not streamed.",
                "bytes",
                [gauge("polyvox_spool_bytes", "sum", "spool")],
            ),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON format."""
    panels: list[dict[str, Any]] = []
    y = 0
    for index, panel in enumerate(SUMMARY):
        panels.append(_panel(panel, index * STAT_WIDTH, y, STAT_WIDTH, STAT_HEIGHT))
    y += STAT_HEIGHT
    for title, members in ROWS:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _position(0, y, GRID_WIDTH, 1)}
        )
        y += 1
        for index, panel in enumerate(members):
            row, column = divmod(index, GRID_WIDTH // PANEL_WIDTH)
            panels.append(_panel(panel, column * PANEL_WIDTH, y + row * PANEL_HEIGHT, PANEL_WIDTH, PANEL_HEIGHT))
        y += -(-len(members) * PANEL_WIDTH // GRID_WIDTH) * PANEL_HEIGHT
    for number, value in enumerate(panels, 1):
        value["id"] = number
    return {
        "uid": "polyvox",
        "title": "Polyvox",
        "tags": ["polyvox", "tts"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for value, color in panel.thresholds]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "stat":
        options: dict[str, Any] = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "name" if panel.title == "Version" else "auto",
        }
    else:
        defaults["custom"] = {
            "fillOpacity": 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": _position(x, y, width, height),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _position(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source", "current": {}}
    choices = {
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }
    labels = {"job": "polyvox_build_info", "instance": 'polyvox_build_info{job=~"$job"}'}
    return [
        source,
        *(
            {
                "name": name,
                "type": "query",
                "label": name.capitalize(),
                "datasource": DATASOURCE,
                "query": f"label_values({series}, {name})",
                **choices,
            }
            for name, series in labels.items()
        ),
    ]


def table() -> str:
    rows = [_row(definition) for definition in DEFINITIONS.values()]
    return "\n".join(["| metric | type | labels | description |", "|---|---|---|---|", *rows, ""])


def _row(definition: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels)
    return f"| `{definition.name}` | {definition.kind} | {labels} | {definition.description} |"


def rendered() -> dict[Path, str]:
    """The text of each generated file."""
    page = PAGE.read_text(encoding="utf-8")
    return {
        DASHBOARD: json.dumps(dashboard(), indent=2) + "\n",
        PAGE: TABLE.sub(lambda match: match[1] + table() + match[2], page),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Grafana dashboard and the table of docs/metrics.md.")
    parser.add_argument("--check", action="store_true", help="only report whether the files are up to date")
    arguments = parser.parse_args()
    status = 0
    for path, text in rendered().items():
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)}: not up to date; run python -m tools.monitoring")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
