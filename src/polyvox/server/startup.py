# SPDX-License-Identifier: Apache-2.0
"""The server while its engine starts for the first time: it accepts connections and reports the progress."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from polyvox.engine.interface import AsyncEngine
from polyvox.errors import EngineDown
from polyvox.server.app_state import AppState
from polyvox.server.request_log import RequestLog
from polyvox.server.settings import Settings

if TYPE_CHECKING:
    from polyvox.server.tracing import Tracing

POLL_INTERVAL = 0.05  # seconds
CONNECT_TIMEOUT = 5.0  # seconds that a request waits for the connection to an engine that has just started


class Startup:
    """Creates the AppState when the engine runs; until then `state` is None.

    shared_dir: see create_app. on_set_up: called when the state is created, with None, or cannot be created, with the
    error.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        settings: Settings,
        request_log: RequestLog,
        shared_dir: Path | None,
        on_set_up: Callable[[Exception | None], None],
        tracing: "Tracing | None",
    ) -> None:
        self.engine, self.settings = engine, settings
        self._request_log, self._shared_dir, self._on_set_up = request_log, shared_dir, on_set_up
        self._tracing = tracing
        self.state: AppState | None = None
        self._created = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="polyvox-startup")

    async def connected(self) -> AppState | None:
        """The state; waits for it if the engine has started, because the connection takes a moment."""
        if self.state is None and self.engine.status().running:
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._created.wait()
        return self.state

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self.state is not None:
            await self.state.health.stop()
            await self.state.conversation.close()
            self.state.synthesis.close()

    async def _run(self) -> None:
        try:
            while self.state is None:
                if self.engine.status().running:
                    with suppress(EngineDown):  # it has failed again
                        self.state = await AppState.create(
                            self.engine, self.settings, self._request_log, self._shared_dir
                        )
                        break
                await asyncio.sleep(POLL_INTERVAL)
        except Exception as error:
            self._on_set_up(error)
            return
        if self._tracing is not None:
            self.state.synthesis.new_trace = self._tracing.new_utterance
        self.state.health.start()
        self._created.set()
        self._on_set_up(None)
