# SPDX-License-Identifier: Apache-2.0
"""What limits the number of streams in real time, as the engine's statistics and all of their readers state it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

LIMIT_PREFIX = "capacity_by_"  # of the engine's statistics with the streams that each limit allows
# Names of the limits in the statistics, and in sentences.
LIMITS = {
    "gpu_time": "GPU time",
    "cpu_time": "CPU time",
    "host": "host",
    "memory": "memory",
    "max_streams": "max_streams",
}


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """Streams that could run in real time if there were one limit only."""

    device_time: float  # calls of the model
    host: float  # Python's work for each frame of a GPU; infinite on a CPU, where the device's time contains it
    slots: int

    def stats(self, gpu: bool, slots_limited_by: str) -> dict[str, float]:
        """The engine's statistics. slots_limited_by: memory or max_streams."""
        limits = {"gpu_time" if gpu else "cpu_time": self.device_time, "host": self.host, slots_limited_by: self.slots}
        return {f"{LIMIT_PREFIX}{name}": float(int(value)) for name, value in limits.items() if isfinite(value)}


def find_limit(stats: Mapping[str, float]) -> str | None:
    """The limit that determines the capacity, by its name in the statistics; None if they have none."""
    return min(_limits(stats), key=_limits(stats).__getitem__, default=None)


def describe_capacity(stats: Mapping[str, float]) -> str:
    """The capacity, what limits it, and the other limits: "1,604 streams in real time, limited by GPU time"."""
    limits, limit = _limits(stats), find_limit(stats)
    capacity = stats.get("capacity", 0.0)
    streams = f"{capacity:,.0f} stream{'' if capacity == 1 else 's'} in real time"
    if limit is None:
        return streams
    others = ", ".join(f"{LIMITS[name]} {value:,.0f}" for name, value in limits.items() if name != limit)
    return f"{streams}, limited by {LIMITS[limit]}" + (f" ({others})" if others else "")


def _limits(stats: Mapping[str, float]) -> dict[str, float]:
    return {name: stats[LIMIT_PREFIX + name] for name in LIMITS if LIMIT_PREFIX + name in stats}
