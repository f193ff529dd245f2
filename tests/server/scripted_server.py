# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server in a thread that follows a script: what the scripted LLM and the scripted STT server share."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

from aiohttp import web

START_TIMEOUT = 30.0  # seconds
MAX_BYTES = 100_000_000


class Action(Enum):
    WAIT = "wait"  # until `release`
    DISCONNECT = "disconnect"  # without the end of the response
    SILENCE = "silence"  # as the first step: no event before the next one


class ScriptedServer(ABC):
    """Ends of requests are recorded. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.num_active = self.num_cancelled = 0
        self.connections: set[asyncio.Transport] = set()  # that requests came over
        self.url = ""
        self._released: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def reset(self) -> None:
        assert self._released is not None
        self._loop.call_soon_threadsafe(self._released.clear)
        self.connections.clear()
        self.num_cancelled = 0

    def close_connections(self) -> None:
        for transport in self.connections:
            self._loop.call_soon_threadsafe(transport.abort)

    def release(self) -> None:
        """Lets answers that wait go on, until `reset`."""
        assert self._released is not None
        self._loop.call_soon_threadsafe(self._released.set)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_TIMEOUT)

    @abstractmethod
    def add_routes(self, app: web.Application) -> None: ...

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _listen(self) -> web.AppRunner:
        self._released = asyncio.Event()
        app = web.Application(client_max_size=MAX_BYTES)
        self.add_routes(app)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def _record_connection(self, request: web.Request) -> None:
        assert request.transport is not None
        self.connections.add(request.transport)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """The time in which a request is answered."""
        self.num_active += 1
        try:
            yield
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise
        finally:
            self.num_active -= 1


S = TypeVar("S", bound=ScriptedServer)


@contextmanager
def started(server: S) -> Iterator[S]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
