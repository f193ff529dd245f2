# SPDX-License-Identifier: Apache-2.0
"""`AsyncEngine` over several engines, the replicas: a request goes to the one with the most spare capacity."""

import asyncio
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from polyvox.audio.samples import Samples
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_status import EngineStatus
from polyvox.engine.interface import AsyncEngine, AsyncStream
from polyvox.errors import EngineDown, Overloaded
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds in which a replica must decide over a request before the next one is asked.
ANSWER_TIMEOUT = 5.0
MAX_UTTERANCES = 65_536  # whose replica is remembered; more than all replicas run at once
MAX_UNREPORTED = 65_536
# Statistics that are not added over the replicas.
SMALLEST = ("lead_min", "lead_p10")
LARGEST = ("stuck_seconds", "broken", "step_batch", "step_seconds")


class ReplicaEngine(AsyncEngine, Protocol):
    """An engine that reports its load."""

    def load(self) -> EngineLoad:
        """The last report; cheap."""

    def hold_key(self, key: str) -> None:
        """Counts a request of a key that another replica has admitted."""


@dataclass(slots=True, eq=False)
class _Replica:
    """A replica, and the requests of this process that its reports do not contain yet."""

    engine: ReplicaEngine
    num_asked: int = 0  # requests that it has not answered
    accepted_at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_UNREPORTED))

    def num_unreported(self, load: EngineLoad) -> int:
        while self.accepted_at and self.accepted_at[0] < load.taken_at:
            self.accepted_at.popleft()
        return self.num_asked + len(self.accepted_at)


class ReplicaSet:
    """Sends each request to the replica with the most spare capacity, by the reports of the replicas.

    Requests that a report does not contain yet are counted here; of num_servers processes that use the same replicas,
    each assumes that the others sent as many. A replica that rejects a request, or is down, passes it to the next one.
    All segments of an utterance go to one replica while it runs.
    """

    def __init__(
        self,
        engines: Sequence[ReplicaEngine],
        num_servers: int = 1,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.replicas: Sequence[ReplicaEngine] = tuple(engines)
        self.replica: int | None = None
        self._replicas = [_Replica(engine) for engine in engines]
        self._num_servers, self._clock, self._draw = num_servers, clock, draw
        self._utterances: OrderedDict[int, _Replica] = OrderedDict()  # where the last segment went, the oldest first

    @property
    def sample_rate(self) -> int:
        return max(engine.sample_rate for engine in self.replicas)  # 0 until one has started

    def status(self) -> EngineStatus:
        """Running if one replica runs. Otherwise the state of the one that is expected first."""
        statuses, now = [engine.status() for engine in self.replicas], self._clock()
        best = min(statuses, key=lambda one: (not one.running, one.retry_after(now)))
        down_since = [one.down_since for one in statuses if one.down_since is not None]
        return replace(
            best,
            num_restarts=sum(one.num_restarts for one in statuses),
            # Since the last one of them failed, none runs.
            down_since=max(down_since) if len(down_since) == len(statuses) else None,
        )

    async def submit(self, request: Request) -> AsyncStream:
        """Raises Overloaded if all replicas reject the request. The time to retry after is reserved at one of them."""
        candidates = self._ranked(request)
        rejections: list[tuple[float, int]] = []
        failures: list[EngineDown] = []
        for index, replica in enumerate(candidates):
            timeout = ANSWER_TIMEOUT if index + 1 < len(candidates) else None
            try:
                return await self._ask(replica, replace(request, may_reserve=len(candidates) == 1), timeout)
            except EngineDown as error:
                failures.append(error)
            except Overloaded as error:
                rejections.append((error.retry_after, index))
                if len(candidates) == 1:
                    raise
        if rejections:
            try:
                return await self._ask(candidates[min(rejections)[1]], request)
            except EngineDown as error:
                failures.append(error)
        raise min(failures, key=lambda error: error.retry_after, default=self._down())

    async def info(self) -> ModelInfo:
        return await self._call_first(self._serving(), lambda engine: engine.info())

    async def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """Clones with the replica that has the most spare capacity. The voice can be used with all of them."""
        engines = [replica.engine for replica in self._ranked(Request("", whole_file=True))]
        return await self._call_first(engines, lambda engine: engine.clone(samples, transcript))

    async def stats(self) -> dict[str, float]:
        """The sums over the replicas that run, the smallest leads and the longest steps."""
        answers = await asyncio.gather(*(engine.stats() for engine in self._serving()), return_exceptions=True)
        stats = [answer for answer in answers if isinstance(answer, dict)]
        if not stats:
            raise self._down()
        return merge_stats(stats)

    async def acquire_key(self, key: str, limit: int) -> bool:
        """The replica that has served for the longest decides: a restarted one may not have the counts of all servers.

        The others count too, so that the next one can decide if it fails.
        """
        serving = self._serving()
        for index, deciding in enumerate(serving):
            with suppress(EngineDown, TimeoutError):
                async with asyncio.timeout(ANSWER_TIMEOUT if index + 1 < len(serving) else None):
                    acquired = await deciding.acquire_key(key, limit)
                for engine in self.replicas:
                    if acquired and engine is not deciding:
                        engine.hold_key(key)
                return acquired
        raise self._down()

    def release_key(self, key: str) -> None:
        for engine in self.replicas:
            engine.release_key(key)

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self.replicas))

    async def _ask(self, replica: _Replica, request: Request, timeout: float | None = None) -> AsyncStream:
        """Submits a request to a replica; raises EngineDown if it does not answer in time."""
        replica.num_asked += 1
        try:
            async with asyncio.timeout(timeout):
                stream = await replica.engine.submit(request)
        except TimeoutError:
            message = f"Replica {replica.engine.replica} did not answer within {timeout:g} s."
            log.warning("replica not answering", extra={"replica": replica.engine.replica, "timeout": timeout})
            raise EngineDown(message, retry_after=ANSWER_TIMEOUT) from None
        finally:
            replica.num_asked -= 1
        replica.accepted_at.append(self._clock())
        if request.utterance_id:
            self._utterances[request.utterance_id] = replica
            self._utterances.move_to_end(request.utterance_id)
            if len(self._utterances) > MAX_UTTERANCES:
                self._utterances.popitem(last=False)
        return stream

    def _ranked(self, request: Request) -> list[_Replica]:
        """Replicas for a request, the best one first. A stuck replica is asked only if there is no other."""
        now = self._clock()
        running = [(one, one.engine.load()) for one in self._replicas if one.engine.status().running]
        able = [(one, load) for one, load in running if not load.draining]
        able = [(one, load) for one, load in able if not load.is_stuck(now)] or able

        def spare(item: tuple[_Replica, EngineLoad]) -> tuple[float, float]:
            replica, load = item
            num_sent = self._num_servers * replica.num_unreported(load)
            return load.spare(request.whole_file, num_sent), self._draw()

        ranked = [replica for replica, _ in sorted(able, key=spare, reverse=True)]
        last = self._utterances.get(request.utterance_id)
        if any(replica is last and not load.is_stuck(now) for replica, load in running):
            assert last is not None
            ranked = [last, *(one for one in ranked if one is not last)]
        return ranked

    def _serving(self) -> list[ReplicaEngine]:
        """Replicas that run, those that have run for the longest first and the stuck ones last."""
        now = self._clock()
        running = [(engine, status) for engine in self.replicas if (status := engine.status()).running]
        running.sort(key=lambda one: (one[0].load().is_stuck(now), one[1].running_since))
        return [engine for engine, _ in running]

    async def _call_first(self, engines: Sequence[ReplicaEngine], call: Callable[[ReplicaEngine], Awaitable[T]]) -> T:
        """The answer of the first of these replicas that is not down."""
        for engine in engines:
            try:
                return await call(engine)
            except EngineDown as error:
                log.warning("replica not answering", extra={"replica": engine.replica, "error": str(error)})
        raise self._down()

    def _down(self) -> EngineDown:
        seconds = min(engine.status().retry_after(self._clock()) for engine in self.replicas)
        return EngineDown(f"No replica is ready. Try again in {seconds:.0f} s.", seconds)


def merge_stats(stats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The statistics of several engines as those of one."""
    merged: dict[str, float] = {}
    for name in {name: None for one in stats for name in one}:
        values = [one[name] for one in stats if name in one]
        merged[name] = min(values) if name in SMALLEST else max(values) if name in LARGEST else sum(values)
    return merged
