# SPDX-License-Identifier: Apache-2.0
"""Prometheus queries of the dashboard. A query names its metric, which must be defined with the right type."""

from dataclasses import dataclass

from polyvox.server.metrics import Kind, definitions

DEFINITIONS = {definition.name: definition for definition in definitions()}
SELECTOR = '{job=~"$job",instance=~"$instance"}'


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str


def metric(name: str, kind: Kind) -> str:
    """The selector of a metric. Raises KeyError or ValueError if it is not defined so."""
    if DEFINITIONS[name].kind != kind:
        raise ValueError(f"{name} is a {DEFINITIONS[name].kind}, not a {kind}")
    return f"{name}{'_bucket' if kind == 'histogram' else ''}{SELECTOR}"


def gauge(name: str, aggregation: str, legend: str, by: str = "") -> Query:
    grouping = f" by ({_label(name, by)}) " if by else ""
    return Query(f"{aggregation}{grouping}({metric(name, 'gauge')})", legend)


def rate(name: str, legend: str, by: str = "") -> Query:
    grouping = f" by ({_label(name, by)}) " if by else ""
    return Query(f"sum{grouping}(rate({metric(name, 'counter')}[$__rate_interval]))", legend)


def increase(name: str, legend: str) -> Query:
    return Query(f"sum(increase({metric(name, 'counter')}[$__rate_interval]))", legend)


def quantiles(name: str, *percentiles: int) -> list[Query]:
    return [_quantile(name, percentile, "le", f"p{percentile}") for percentile in percentiles]


def quantile_by(name: str, percentile: int, label: str) -> Query:
    return _quantile(name, percentile, f"le, {_label(name, label)}", f"{{{{{label}}}}}")


def _quantile(name: str, percentile: int, grouping: str, legend: str) -> Query:
    buckets = f"sum by ({grouping}) (rate({metric(name, 'histogram')}[$__rate_interval]))"
    return Query(f"histogram_quantile({percentile / 100:g}, {buckets})", legend)


def _label(name: str, label: str) -> str:
    if label not in DEFINITIONS[name].labels:
        raise ValueError(f"{name} has no label {label}")
    return label


def mean(name: str) -> Query:
    metric(name, "histogram")
    per_second = [f"sum(rate({name}_{part}{SELECTOR}[$__rate_interval]))" for part in ("sum", "count")]
    return Query(" / ".join(per_second), "mean")
