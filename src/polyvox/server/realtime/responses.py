# SPDX-License-Identifier: Apache-2.0
"""The responses of a realtime session: one of the conversation at a time, and some beside it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from polyvox.server.realtime.items import ConversationItem
from polyvox.server.realtime.response import CancelReason, RealtimeResponse
from polyvox.server.realtime.session_config import RealtimeConfig
from polyvox.server.realtime.session_context import SessionContext
from polyvox.server.responses import APIError

MAX_RESPONSES = 4  # at once


class ResponseRunner:
    """Starts and cancels responses. on_done: called when a response of the conversation has ended by itself."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._running: dict[RealtimeResponse, asyncio.Task[None]] = {}
        self._num_started = 0
        self.has_audio = False  # a response with audio was started
        self.on_done: Callable[[], None] = lambda: None

    @property
    def current(self) -> RealtimeResponse | None:
        """The response of the conversation."""
        return next((response for response in self._running if response.is_in_conversation), None)

    def start(
        self,
        config: RealtimeConfig,
        items: Iterable[ConversationItem] | None = None,
        in_conversation: bool = True,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """items: what the LLM reads instead of the conversation. Raises APIError if too many responses run."""
        if in_conversation and self.current is not None:
            message = f"The conversation has an active response: {self.current.id}. Wait until it ends, or cancel it."
            raise APIError(409, "conversation_already_has_active_response", message)
        if len(self._running) >= MAX_RESPONSES:
            raise APIError(429, "too_many_responses", f"At most {MAX_RESPONSES} responses may run at once.")

        async def get_messages() -> list[dict[str, Any]]:
            conversation = self._context.conversation
            read = conversation.items if items is None else items
            return await conversation.messages(config.fields.instructions, read)

        request_id = f"{self._context.request_id}.{self._num_started}"
        response = RealtimeResponse(self._context, config, request_id, get_messages, in_conversation, metadata)
        self._num_started += 1
        self.has_audio = self.has_audio or config.fields.is_spoken
        self._running[response] = self._context.tasks.start(self._run(response), response)

    async def cancel(self, response_id: str | None, reason: CancelReason) -> bool:
        """Cancels a response, by default that of the conversation, and waits for its end; False if it has ended."""
        found = self.current
        if response_id is not None:
            found = next((response for response in self._running if response.id == response_id), None)
        if found is None:
            return False
        found.cancel(reason)
        await asyncio.wait({self._running[found]})
        return True

    async def wait_sent(self) -> None:
        """Until all events of a response of the conversation that has ended are sent: the client may know of its end
        before the write of its last event returns."""
        if (current := self.current) is not None and not current.busy:
            await asyncio.wait({self._running[current]})

    async def wait(self) -> None:
        """Until the response of the conversation has ended."""
        if (current := self.current) is not None:
            await asyncio.wait({self._running[current]})

    async def _run(self, response: RealtimeResponse) -> None:
        try:
            await response.run()
        finally:
            del self._running[response]
        if response.is_in_conversation:
            self.on_done()
