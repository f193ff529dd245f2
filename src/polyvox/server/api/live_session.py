# SPDX-License-Identifier: Apache-2.0
"""A WebSocket whose utterances each have a task that sends their audio, for the protocols of Cartesia and Deepgram."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import Any

from polyvox.alignment import TimedText, WordTime
from polyvox.errors import PolyvoxError
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import (
    POLICY_VIOLATION,
    ClientDisconnected,
    IdleTimeout,
    WebSocketConnection,
    run_session,
)
from polyvox.server.responses import APIError
from polyvox.server.synthesis.options import SynthesisOptions

MAX_UTTERANCES = 16  # at once


class LiveSession(ABC):
    """Base class: receives messages until `handle` returns False, then waits for all audio to be sent."""

    def __init__(self, connection: WebSocketConnection, idle_timeout: float) -> None:
        self.connection, self._idle_timeout = connection, idle_timeout
        self._tasks: dict[asyncio.Task[None], LiveUtterance] = {}
        self._task_failed = asyncio.Event()
        self._num_utterances = 0

    @abstractmethod
    async def handle(self, message: dict[str, Any]) -> bool:
        """Handles one message; False if it ends the session."""

    @abstractmethod
    async def send_audio(self, utterance: LiveUtterance, part: bytes) -> None:
        """Sends a part of the audio of an utterance."""

    async def send_words(self, utterance: LiveUtterance, words: list[WordTime]) -> None:  # noqa: B027
        """Sends the times of words. Only utterances that were started with word times have any."""

    @abstractmethod
    async def send_end(self, utterance: LiveUtterance) -> None:
        """Sends the message after the last audio. Not called after an error."""

    @abstractmethod
    async def send_error(self, error: PolyvoxError, utterance: LiveUtterance | None = None) -> None:
        """utterance: the one that has failed."""

    async def run(self) -> None:
        await run_session(self.connection, self._receive_loop(), self._tasks, self._task_failed)

    def start(self, options: SynthesisOptions) -> LiveUtterance:
        """A new utterance. Raises APIError if too many are running."""
        if len(self._tasks) >= MAX_UTTERANCES:
            raise APIError(400, "too_many_utterances", f"At most {MAX_UTTERANCES} utterances may be open.")
        utterance = LiveUtterance(self.connection, options, f"{self.connection.request_id}.{self._num_utterances}")
        self._num_utterances += 1
        task = asyncio.create_task(self.speak(utterance))
        self._tasks[task] = utterance
        task.add_done_callback(self._on_task_done)
        return utterance

    async def speak(self, utterance: LiveUtterance) -> None:
        """Sends the audio of one utterance and its end."""
        try:
            async with aclosing(utterance.events()) as events:
                async for event in events:
                    if isinstance(event, bytes) and not utterance.cancelled:
                        await self.send_audio(utterance, event)
                    elif isinstance(event, TimedText) and event.words and not utterance.cancelled:
                        await self.send_words(utterance, event.words)
        except PolyvoxError as error:
            utterance.record_failure(error)
            await self.send_error(error, utterance)
            return
        if utterance.cancelled:
            self.connection.state.metrics.aborts.labels("cancel").inc()
        else:
            await self.send_end(utterance)

    def cancel_utterances(self) -> None:
        for utterance in self._tasks.values():
            utterance.cancel()

    async def _receive_loop(self) -> None:
        while True:
            try:
                if not await self.handle(await self.connection.receive_json(self._idle_timeout, self._is_busy)):
                    return
            except IdleTimeout:
                await self.send_error(APIError(408, "timeout", f"No message arrived for {self._idle_timeout:g} s."))
                await self.connection.close(POLICY_VIOLATION, "Idle timeout.")
                raise ClientDisconnected from None
            except PolyvoxError as error:
                self.connection.state.record_rejected(error, self.connection.request_id)
                await self.send_error(error)
                self.connection.count_invalid()

    def _is_busy(self) -> bool:
        return any(utterance.busy for utterance in self._tasks.values())

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.pop(task, None)
        else:
            self._task_failed.set()
