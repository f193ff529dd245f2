# SPDX-License-Identifier: Apache-2.0
"""Limits the concurrent requests of one caller, counted in the engine's process for all server processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from polyvox.engine.interface import AsyncEngine
from polyvox.errors import Overloaded
from polyvox.server.settings import Settings

# ASGI scope entry: the caller's ConcurrencyLimiter; None until a late key has arrived
LIMITER = "polyvox.limiter"


class ConcurrencyLimitExceeded(Overloaded):
    """A caller has as many concurrent requests as it may have."""

    status = 429
    code = "too_many_requests"

    def __init__(self, limit: int, setting: str) -> None:
        super().__init__(f"The limit of {limit} concurrent requests is reached ({setting}).", retry_after=1)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Caller:
    """key: a name of the API key that does not reveal it, empty where no key is needed. address: of the client."""

    key: str
    address: str


class ConcurrencyLimiter:
    """The limits of one caller. Where no keys are configured, the limit per key applies to each address."""

    def __init__(self, engine: AsyncEngine, caller: Caller, settings: Settings) -> None:
        self.caller = caller
        self._engine = engine
        limits = (
            (f"key:{caller.key or caller.address}", settings.max_streams_per_key, "max_streams_per_key"),
            (f"address:{caller.address}", settings.max_streams_per_address, "max_streams_per_address"),
        )
        self._limits = [(name, limit, setting) for name, limit, setting in limits if limit is not None]

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Counts one request; raises ConcurrencyLimitExceeded."""
        acquired: list[str] = []
        try:
            for name, limit, setting in self._limits:
                if not await self._engine.acquire_key(name, limit):
                    raise ConcurrencyLimitExceeded(limit, setting)
                acquired.append(name)
            yield
        finally:
            for name in acquired:
                self._engine.release_key(name)
