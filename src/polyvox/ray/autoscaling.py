# SPDX-License-Identifier: Apache-2.0
"""The number of replicas, from the real-time capacity that they report, not from the number of requests."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

# Share of the capacity that is used on average: the rest absorbs bursts while a new replica starts.
TARGET_UTILIZATION = 0.7
DEMAND, CAPACITY = "polyvox_demand", "polyvox_capacity"  # names of the replicas' metrics


def desired_replicas(demand: Mapping[Any, float], capacity: Mapping[Any, float], current: int) -> float:
    """Replicas that serve the demand at TARGET_UTILIZATION; `current` before any replica has reported.

    demand: by replica, utterances in progress and queued. capacity: by replica, utterances that run
    in real time at once. A fraction: Serve rounds it up after its delays and factors.
    """
    reported = [value for value in capacity.values() if value > 0]
    if not reported:
        return current
    mean = sum(reported) / len(reported)
    return sum(demand.values()) / (TARGET_UTILIZATION * mean)


def capacity_policy(ctx: "AutoscalingContext") -> tuple[float, dict[str, Any]]:
    """The policy function of the deployment. Serve applies delays, factors and bounds to its result."""
    metrics = ctx.aggregated_metrics or {}
    running = set(ctx.running_replicas)
    demand, capacity = (
        {replica: value for replica, value in metrics.get(name, {}).items() if replica in running}
        for name in (DEMAND, CAPACITY)
    )
    return desired_replicas(demand, capacity, ctx.target_num_replicas), {}
