# SPDX-License-Identifier: Apache-2.0
"""The choice of a replica for a request, by the capacity that replicas report. Plain values, no Ray."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a router knows of a replica.

    free: utterances that could start now, by the engine's last report, less the requests that have begun since; it is
    negative if some must wait. turnover: utterances that end between two reports. wait: expected seconds until a new
    utterance starts.
    """

    capacity: int
    free: float
    turnover: float = 0.0
    wait: float = 0.0

    @property
    def weight(self) -> float:
        """Utterances that can start until the next report."""
        return max(0.0, self.free + self.turnover)


def rank_replicas(loads: Sequence[ReplicaLoad | None], draw: random.Random) -> list[int]:
    """The indexes of replicas in the order in which a request tries them.

    Replicas that can start an utterance come first, drawn at random with the utterances that they can start as weights:
    several routers with reports of the same age would otherwise all choose the same replica. Then those with the
    shortest wait. None, a replica that has not reported yet, counts as one with the mean weight.
    """
    known = [load.weight for load in loads if load is not None]
    mean = sum(known) / len(known) if known else 1.0
    weights = [mean if load is None else load.weight for load in loads]
    # The largest of u^(1/w) are a weighted draw without replacement.
    keys = [draw.random() ** (1 / weight) if weight > 0 else -1.0 for weight in weights]
    waits = [0.0 if load is None else load.wait - load.free / max(load.capacity, 1) for load in loads]
    return sorted(range(len(loads)), key=lambda index: (-keys[index], waits[index]))
