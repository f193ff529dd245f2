# SPDX-License-Identifier: Apache-2.0
"""The definitions of metrics, and what is generated from them: dashboard, table and alert rules."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ipc.engine_processes import eventually
from polyvox.engine.step_histogram import StepHistogram
from polyvox.server.metrics import COMMON_REJECTIONS, Metrics, definitions
from polyvox.server.synthesis.chunk_timing import ChunkTiming
from server.fakes import PausableEngine
from server.live_server import RunningServer
from tools import dashboard_queries, monitoring

ROOT = Path(__file__).parents[2]
NAMES = {definition.name for definition in definitions()}
HISTOGRAM_PARTS = re.compile(r"_(bucket|sum|count)$")


def named_in(text: str) -> set[str]:
    """The metrics that queries name."""
    found = set(re.findall(r"\bpolyvox_\w+", text))
    return {name if name in NAMES else HISTOGRAM_PARTS.sub("", name) for name in found}


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads(monitoring.DASHBOARD.read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len(NAMES) == len(definitions())
    for definition in definitions():
        assert re.fullmatch(r"polyvox_[a-z_]+", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", definition.name)
        assert definition.description.endswith(".")
        if "econds" in definition.description and definition.kind != "counter":
            assert definition.name.endswith("_seconds"), definition


def test_the_dashboard_and_the_table_are_up_to_date() -> None:
    for path, text in monitoring.rendered().items():
        assert path.read_text() == text, f"{path.name}: run python -m tools.monitoring"


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    assert named_in("\n".join(expressions())) == NAMES


def test_a_query_of_an_unknown_metric_or_of_another_type_is_an_error() -> None:
    with pytest.raises(KeyError):
        dashboard_queries.rate("polyvox_nothing_total", "")
    with pytest.raises(ValueError, match="is a gauge"):
        dashboard_queries.quantiles("polyvox_queue_depth", 50)
    with pytest.raises(ValueError, match="no label"):
        dashboard_queries.rate("polyvox_requests_total", "", by="voice")


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in monitoring.dashboard()["panels"]:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= monitoring.GRID_WIDTH
        covered = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not covered & cells, panel["title"]
        cells |= covered


def test_alert_rules_name_metrics_and_are_documented_and_tested() -> None:
    folder = ROOT / "deploy/prometheus"
    (group,) = yaml.safe_load((folder / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    for rule in group["rules"]:
        assert named_in(rule["expr"]) <= NAMES, rule["alert"]
        reasons = {reason for choice in re.findall(r'reason=~"(.*?)"', rule["expr"]) for reason in choice.split("|")}
        assert reasons <= set(COMMON_REJECTIONS), rule["alert"]
    tests = yaml.safe_load((folder / "alerts_test.yaml").read_text())["tests"]
    fired = {check["alertname"] for test in tests for check in test["alert_rule_test"] if check["exp_alerts"]}
    assert fired == alerts
    assert set(re.findall(r"^\| `(Polyvox\w+)`", monitoring.PAGE.read_text(), re.MULTILINE)) == alerts


def test_every_metric_is_rendered() -> None:
    stats = {**StepHistogram().stats(), "status_running": 1.0, "lead_min": 0.5, "step_batch": 1.0, "step_seconds": 0.1}
    stats |= dict.fromkeys(("streams", "capacity", "waiting", "slots", "slots_free", "pages", "pages_free"), 1.0)
    stats |= dict.fromkeys(
        ("capacity_by_host", "streams_out_of_pages", "steps", "frames", "underruns", "restarts", "ready"), 1.0
    )
    names = set(re.findall(r"^# TYPE (polyvox_\w+)", Metrics().render([stats]).decode(), re.MULTILINE))
    assert {name for name in names if not name.endswith("_created")} == NAMES  # prometheus_client adds those


def test_steps_are_counted_in_cumulative_buckets() -> None:
    histogram = StepHistogram()
    for seconds in (0.001, 0.01, 0.011, 5.0):
        histogram.observe(seconds)
    text = Metrics().render([histogram.stats()]).decode()
    assert 'polyvox_engine_step_seconds_bucket{replica="0",le="0.002"} 1\n' in text
    assert 'polyvox_engine_step_seconds_bucket{replica="0",le="0.01"} 2\n' in text
    assert 'polyvox_engine_step_seconds_bucket{replica="0",le="1.0"} 3\n' in text
    assert 'polyvox_engine_step_seconds_bucket{replica="0",le="+Inf"} 4\n' in text
    assert 'polyvox_engine_step_seconds_sum{replica="0"} 5.022\n' in text
    assert 'polyvox_engine_step_seconds_count{replica="0"} 4\n' in text


def test_the_lead_is_what_the_player_has_left_when_a_chunk_is_ready() -> None:
    observed: list[tuple[float, float]] = []
    timing = ChunkTiming(lambda gap, lead: observed.append((gap, lead)))
    timing.on_ready(0.5, now=10.0)  # plays until 10.5
    timing.on_sent(10.0)
    timing.on_ready(1.0, now=10.2)  # plays until 11.0
    timing.on_sent(10.4)  # the client took 0.2 s to read it
    timing.on_ready(1.5, now=12.0)  # too late: plays from 12.0 to 12.5
    timing.on_sent(12.0)
    timing.on_text_awaited()
    timing.on_ready(2.0, now=20.0)  # not counted
    timing.on_sent(20.0)
    timing.on_ready(2.5, now=20.1)
    assert observed == [pytest.approx((0.2, 0.3)), pytest.approx((1.6, 0.0)), pytest.approx((0.1, 0.4))]


def test_chunks_of_a_stream_are_observed_but_the_first(
    server: RunningServer, client: httpx.Client, engine: PausableEngine
) -> None:
    before = value(client, "polyvox_chunk_gap_seconds_count")
    with client.stream("POST", "/v1/audio/speech", json={"input": "Hi.", "response_format": "pcm"}) as response:
        assert len(response.read()) > 0
    eventually(lambda: not server.state.synthesis.active)
    observed = value(client, "polyvox_chunk_gap_seconds_count")
    assert observed > before
    assert value(client, "polyvox_lead_seconds_count") == observed
    assert engine.requests


def test_requests_are_counted_by_route_and_rejections_by_code(client: httpx.Client) -> None:
    client.get("/v1/models")
    client.get("/v1/models/some-other-name")
    client.get("/no/such/path")
    client.request("BREW", "/v1/models")
    client.post("/v1/audio/speech", json={"input": "Hi.", "voice": "nobody-has-this-name"})
    counted = (
        'polyvox_http_requests_total{method="GET",route="/v1/models",status="200"}',
        'polyvox_http_requests_total{method="GET",route="/v1/models/{name:path}",status="404"}',
        'polyvox_http_requests_total{method="GET",route="other",status="404"}',
        'polyvox_http_requests_total{method="POST",route="/v1/audio/speech",status="404"}',
        'polyvox_rejections_total{reason="voice_not_found"}',
    )

    def all_are_shown() -> bool:
        body = client.get("/metrics").text
        return all(series in body for series in counted)

    eventually(all_are_shown)  # a request is counted after its response is sent
    body = client.get("/metrics").text
    assert "BREW" not in body
    assert "some-other-name" not in body


def value(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])
