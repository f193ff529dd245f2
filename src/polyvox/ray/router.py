# SPDX-License-Identifier: Apache-2.0
"""The request router of the deployment: it runs in each proxy of Ray Serve and sends requests by reported capacity."""

import random
from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from polyvox.ray.routing import ReplicaLoad, rank_replicas


class CapacityRouter(RequestRouter):  # type: ignore[misc] # Ray has no types here
    """Ranks replicas by the reports of `SpeechReplica.record_routing_stats` and by what has changed since."""

    _draw = random.Random()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,  # noqa: ARG002
    ) -> list[list[RunningReplica]]:
        loads = [self._load(replica) for replica in candidate_replicas]
        return [[candidate_replicas[index]] for index in rank_replicas(loads, self._draw)]

    def _load(self, replica: RunningReplica) -> ReplicaLoad | None:
        """None until the replica has reported.

        Every response has the replica's number of requests, so the difference to that of the report is what began,
        less what ended, since: also through the routers of other nodes.
        """
        report: Mapping[str, Any] = replica.routing_stats
        if not report:
            return None
        num_requests = self.replica_queue_len_cache.get(replica.replica_id)
        num_since = 0 if num_requests is None else num_requests - report["num_requests"]
        return ReplicaLoad(report["capacity"], report["free"] - num_since, report["turnover"], report["wait"])
