# SPDX-License-Identifier: Apache-2.0
"""Limits the concurrent requests of one caller, counted in the engine's process for all server processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from polyvox.engine.interface import AsyncEngine
from polyvox.errors import Overloaded


class ConcurrencyLimitExceeded(Overloaded):
    """A caller has as many concurrent requests as it may have."""

    status = 429
    code = "too_many_requests"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The limit of {limit} concurrent requests is reached.", retry_after=1)
        self.limit = limit


class ConcurrencyLimiter:
    """The limit of one caller: an API key, or an address where no keys are configured."""

    def __init__(self, engine: AsyncEngine, caller: str, limit: int | None) -> None:
        self._engine, self._caller, self._limit = engine, caller, limit

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Counts one request; raises ConcurrencyLimitExceeded."""
        if self._limit is None:
            yield
            return
        if not await self._engine.acquire_key(self._caller, self._limit):
            raise ConcurrencyLimitExceeded(self._limit)
        try:
            yield
        finally:
            self._engine.release_key(self._caller)
