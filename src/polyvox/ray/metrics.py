# SPDX-License-Identifier: Apache-2.0
"""The metrics of a replica as metrics of Ray, which collects those of all replicas: `ray_polyvox_…`."""

from prometheus_client.parser import text_string_to_metric_families
from ray.util.metrics import Gauge


class MetricsExporter:
    """Sets a gauge of Ray for each sample of Polyvox's own metrics. Counters and buckets stay cumulative."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._gauges: dict[tuple[str, tuple[str, ...]], Gauge] = {}

    def export(self, rendered: bytes) -> None:
        """rendered: metrics in Prometheus's text format."""
        for family in text_string_to_metric_families(rendered.decode()):
            for sample in family.samples:
                labels = {**sample.labels, "replica": self._replica}
                key = sample.name, tuple(sorted(labels))
                if key not in self._gauges:
                    self._gauges[key] = Gauge(sample.name, family.documentation, tuple(labels))
                self._gauges[key].set(sample.value, labels)
