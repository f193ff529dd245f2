# SPDX-License-Identifier: Apache-2.0
"""Limits per API key over the cluster: one named actor counts, and each replica renews its counts there."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

import ray
from ray.exceptions import RayError

from polyvox.engine.key_counts import KeyCounts
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ray.key_leases import LEASE_SECONDS, KeyLeases

log = logging.getLogger(__name__)

ACTOR_NAME, NAMESPACE = "polyvox-key-leases", "polyvox"
RENEW_INTERVAL = LEASE_SECONDS / 4
CALL_TIMEOUT = 3.0  # seconds; then the replica applies the limit to its own requests only
IDLE_SECONDS = 120.0  # without a replica, before the actor ends


class KeyLeaseActor:
    """KeyLeases in an actor. Its calls run one at a time, those of one replica in the order in which it sent them."""

    def __init__(self) -> None:
        self._leases = KeyLeases()
        self._last_call = time.monotonic()
        threading.Thread(target=self._end_when_idle, name="polyvox-key-leases", daemon=True).start()

    def acquire(self, replica: str, key: str, limit: int) -> bool:
        return self._leases.acquire(replica, key, limit, self._now())

    def release(self, replica: str, key: str) -> None:
        self._leases.release(replica, key)

    def renew(self, replica: str, counts: Mapping[str, int]) -> None:
        self._leases.renew(replica, counts, self._now())

    def _now(self) -> float:
        self._last_call = time.monotonic()
        return self._last_call

    def _end_when_idle(self) -> None:
        while time.monotonic() - self._last_call < IDLE_SECONDS:
            time.sleep(IDLE_SECONDS / 10)
        ray.kill(ray.get_runtime_context().current_actor)


class ClusterKeyCounts:
    """The requests of this replica, counted with those of all others.

    While the actor does not answer, each replica applies the limits to its own requests.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._own = KeyCounts()
        self._counts: Counter[str] = Counter()
        self._num_renewals = 0
        self._actor = _get_actor()
        self._failed = False

    async def acquire(self, key: str, limit: int) -> bool:
        if not self._own.acquire(key, limit):
            return False
        self._counts[key] += 1  # before the call, so that a renewal includes it
        num_renewals = self._num_renewals
        try:
            granted = await self._call("acquire", key, limit)
        except BaseException:  # cancelled: the client has disconnected
            self.release(key)
            raise
        if granted is not False:
            return True
        if self._num_renewals == num_renewals:
            self._forget(key)
        else:
            self.release(key)  # a renewal after the denied call has counted it
        return False

    def release(self, key: str) -> None:
        self._forget(key)
        self._actor.release.remote(self._replica, key)

    async def renew_forever(self) -> None:
        while True:
            self._num_renewals += 1
            await self._call("renew", dict(self._counts))
            if self._failed:
                with suppress(RayError, ValueError):  # the next renewal tries again
                    self._actor = await asyncio.to_thread(_get_actor)
            await asyncio.sleep(RENEW_INTERVAL)

    def _forget(self, key: str) -> None:
        self._own.release(key)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    async def _call(self, method: str, *arguments: object) -> bool | None:
        """The answer of the actor; None if it does not answer."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                answer: bool | None = await getattr(self._actor, method).remote(self._replica, *arguments)
        except (RayError, TimeoutError) as error:
            if not self._failed:
                log.warning("key limits of this replica only", extra={"error": str(error) or type(error).__name__})
            self._failed = True
            return None
        if self._failed:
            log.info("key limits of the cluster")
        self._failed = False
        return answer


class ClusterEngine(AsyncRemoteEngine):
    """An engine in another process that counts requests per key over the cluster."""

    def __init__(self, endpoint: EngineEndpoint, counts: ClusterKeyCounts) -> None:
        super().__init__(endpoint)
        self._cluster_counts = counts

    async def acquire_key(self, key: str, limit: int) -> bool:
        return await self._cluster_counts.acquire(key, limit)

    def release_key(self, key: str) -> None:
        self._cluster_counts.release(key)


def _get_actor() -> "ray.actor.ActorHandle":
    """The actor of the cluster, which is created if it does not exist, and restarted by Ray if it dies."""
    return (
        ray.remote(KeyLeaseActor)
        .options(
            name=ACTOR_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
        )
        .remote()
    )
