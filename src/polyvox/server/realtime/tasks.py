# SPDX-License-Identifier: Apache-2.0
"""The tasks of one realtime session."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from polyvox.server.api.websocket_connection import SessionWork


class Background:
    """Work that no one misses if the session ends."""

    busy = False


class SessionTasks:
    """Tasks by their work. `failed` is set when one has failed, which ends the session."""

    def __init__(self) -> None:
        self.running: dict[asyncio.Task[None], SessionWork] = {}
        self.failed = asyncio.Event()

    @property
    def busy(self) -> bool:
        return any(work.busy for work in self.running.values())

    def start(self, run: Coroutine[Any, Any, None], work: SessionWork | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(run)
        self.running[task] = work or Background()
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self.running.pop(task, None)
        else:
            self.failed.set()
