# SPDX-License-Identifier: Apache-2.0
"""One realtime session: receives the client's events until the connection ends."""

import asyncio
import time
from typing import Any

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.websocket_connection import (
    NORMAL,
    POLICY_VIOLATION,
    TRY_AGAIN,
    ClientDisconnected,
    IdleTimeout,
    WebSocketConnection,
    run_session,
)
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.realtime.client_events import (
    AudioAppend,
    ItemCreate,
    ItemFields,
    ItemReference,
    ItemTruncate,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
    SessionUpdate,
    parse_item,
)
from polyvox.server.realtime.conversation import RealtimeConversation
from polyvox.server.realtime.events import EventSender, new_id
from polyvox.server.realtime.items import ConversationItem
from polyvox.server.realtime.responses import ResponseRunner
from polyvox.server.realtime.session_config import DEFAULTS, RealtimeConfig
from polyvox.server.realtime.session_context import SessionContext
from polyvox.server.realtime.spoken_transcript import PlaybackClock
from polyvox.server.realtime.tasks import SessionTasks
from polyvox.server.realtime.user_turns import UserTurns
from polyvox.server.requests import is_strict, validate
from polyvox.server.responses import APIError

CLIENT_EVENTS = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
)
# Statuses of events that are counted as invalid. Events at the wrong time are normal: clients cancel responses that may
# have ended.
MALFORMED = (400, 413, 422)
LARGE_EVENTS = ('"input_audio_buffer.append"', '"conversation.item.create"', '"response.create"')


class RealtimeSession:
    """Handles the events of one client in their order. Invalid events are answered with an error and have no effect."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection, self._state = connection, connection.state
        self._strict = is_strict(connection.query.get("strict", ""))
        self._sender, self._clock, self._tasks = EventSender(connection), PlaybackClock(), SessionTasks()
        self._conversation = RealtimeConversation(self._sender, self._clock)
        self.id = new_id("sess")
        self._expires_at = time.time() + self._state.settings.realtime_session_timeout

    async def run(self) -> None:
        try:
            self._state.conversation.require_llm()
            with self._state.conversation.realtime_sessions.enter():
                await self._set_up()
                await self._serve()
        except PolyvoxError as error:  # the session cannot start
            self._state.record_rejected(error, self._connection.request_id)
            await self._sender.send_error(error)
            await self._connection.close(TRY_AGAIN if error.status == 503 else POLICY_VIOLATION, str(error))

    async def _set_up(self) -> None:
        state, limiter = self._state, self._connection.limiter
        assert limiter is not None, "not authenticated"
        model = self._connection.query.get("model") or state.settings.llm_model
        self._config = await RealtimeConfig.create(state, {**DEFAULTS, "model": model}, strict=False, prefix="")
        context = SessionContext(
            state, limiter, self._connection.request_id, self._sender, self._conversation, self._clock, self._tasks
        )
        self._responses = ResponseRunner(context)
        self._turns = UserTurns(context, self._responses, self._config)
        self._responses.on_done = self._turns.watch_idle

    async def _serve(self) -> None:
        """Until the client leaves, or the session expires."""
        metrics, settings = self._state.metrics, self._state.settings
        metrics.realtime_sessions.inc()
        try:
            async with asyncio.timeout(settings.realtime_session_timeout):
                await self._sender.send("session.created", {"session": self._as_dict()})
                await run_session(self._connection, self._receive_loop(), self._tasks.running, self._tasks.failed)
        except TimeoutError:
            seconds = settings.realtime_session_timeout
            message = f"The session has reached its maximum duration of {seconds:g} s (realtime_session_timeout)."
            await self._sender.send_error(APIError(408, "session_expired", message))
            await self._connection.close(NORMAL, "The session has expired.")
        finally:
            metrics.realtime_sessions.dec()
            self._responses.on_done = lambda: None  # it refers to the turns, which refer to the responses

    async def _receive_loop(self) -> None:
        timeout = self._state.settings.realtime_idle_timeout
        while True:
            event_id: str | None = None
            try:
                message = await self._connection.receive_json(timeout, lambda: self._tasks.busy)
                found = message.get("event_id")
                event_id = found if isinstance(found, str) else None
                await self._handle(message)
            except IdleTimeout:
                error = APIError(408, "timeout", f"No event arrived for {timeout:g} s (realtime_idle_timeout).")
                await self._sender.send_error(error)
                await self._connection.close(POLICY_VIOLATION, "Idle timeout.")
                raise ClientDisconnected from None
            except PolyvoxError as error:
                self._state.record_rejected(error, self._connection.request_id)
                await self._sender.send_error(error, event_id)
                if error.status in MALFORMED:
                    self._connection.count_invalid()

    async def _handle(self, message: dict[str, Any]) -> None:
        """Raises InvalidRequest or APIError."""
        match message.get("type"):
            case "session.update":
                await self._update(validate(SessionUpdate, message).session)
            case "input_audio_buffer.append":
                await self._turns.append(validate(AudioAppend, message).audio)
            case "input_audio_buffer.commit":
                await self._turns.commit()
            case "input_audio_buffer.clear":
                await self._turns.clear()
            case "conversation.item.create":
                created = validate(ItemCreate, message)
                item = await parse_item(created.item, self._config.fields.audio.input.format)
                await self._conversation.add_complete(item, created.previous_item_id)
                self._turns.transcribe(item)
            case "conversation.item.retrieve":
                await self._conversation.retrieve(validate(ItemReference, message).item_id)
            case "conversation.item.delete":
                await self._conversation.delete(validate(ItemReference, message).item_id)
            case "conversation.item.truncate":
                cut = validate(ItemTruncate, message)
                await self._conversation.truncate(cut.item_id, cut.content_index, cut.audio_end_ms)
            case "response.create":
                await self._create_response(validate(ResponseCreate, message).response)
            case "response.cancel":
                await self._cancel_response(validate(ResponseCancel, message).response_id)
            case other:
                raise InvalidRequest("type", other, CLIENT_EVENTS)

    async def _update(self, given: dict[str, Any]) -> None:
        config = await self._config.updated(self._state, given, self._strict, "session.")
        old, new = (each.fields.audio.output.voice_name for each in (self._config, config))
        if self._responses.has_audio and old != new:
            message = "The voice cannot be changed after the assistant has spoken."
            raise APIError(409, "cannot_update_voice", message, "session.audio.output.voice")
        self._log_ignored(config)
        self._config = config
        self._turns.configure(config)
        await self._sender.send("session.updated", {"session": self._as_dict()})

    async def _create_response(self, given: dict[str, Any]) -> None:
        own = {name: value for name, value in given.items() if name in ResponseFields.model_fields}
        fields = validate(ResponseFields, own)
        fields.check()
        overrides = {name: value for name, value in given.items() if name not in own}
        config = self._config
        if overrides:
            config = await config.updated(self._state, overrides, self._strict, "response.")
            self._log_ignored(config)
        items = None if fields.input is None else [await self._input_item(entry) for entry in fields.input]
        await self._responses.wait_sent()
        for item in items or []:
            self._turns.transcribe(item)
        self._responses.start(config, items, fields.conversation == "auto", fields.metadata)

    def _log_ignored(self, config: RealtimeConfig) -> None:
        ignored = IgnoredFields()
        ignored.names += config.ignored_fields
        ignored.report(self._connection.request_id)

    async def _input_item(self, given: dict[str, Any]) -> ConversationItem:
        """An item of response.create, or one of the conversation that it refers to."""
        if given.get("type") == "item_reference":
            return self._conversation.items.find(str(given.get("id")), "item_retrieve_invalid_item_id")
        return await parse_item(validate(ItemFields, given), self._config.fields.audio.input.format)

    async def _cancel_response(self, response_id: str | None) -> None:
        current = self._responses.current
        if not await self._responses.cancel(response_id, "client_cancelled"):
            raise APIError(409, "response_cancel_not_active", "Cancellation failed: no response is active.")
        if current is not None and response_id in (None, current.id):
            await self._conversation.interrupt()

    def _as_dict(self) -> dict[str, Any]:
        voices = self._state.info.voices
        session = self._config.as_dict(voices[0] if voices else None)
        return {"id": self.id, **session, "expires_at": int(self._expires_at)}
