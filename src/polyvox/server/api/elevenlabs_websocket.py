# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' WebSockets: stream-input has one utterance, multi-stream-input several at once, called contexts."""

import asyncio
import base64
import re
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, NoReturn

from fastapi import APIRouter, WebSocket
from pydantic import Field

from polyvox.alignment import TimedText
from polyvox.errors import InvalidRequest, Overloaded, PolyvoxError
from polyvox.server.api.elevenlabs import VoiceSettings, parse_options, parse_speed
from polyvox.server.api.elevenlabs_dictionaries import DictionaryLocator, find_lexicons
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import (
    POLICY_VIOLATION,
    TRY_AGAIN,
    ClientDisconnected,
    IdleTimeout,
    WebSocketConnection,
    run_session,
    serve_websocket,
)
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.middleware.auth import bearer_token
from polyvox.server.requests import RequestModel, is_strict, parse_integer, validate
from polyvox.server.responses import ELEVENLABS_FIELDS, APIError, error_body
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.timestamps import WebSocketAlignment

router = APIRouter()

INACTIVITY_TIMEOUT, MAX_INACTIVITY_TIMEOUT = 20.0, 180.0  # seconds, as ElevenLabs
MAX_CONTEXTS = 16  # per connection; ElevenLabs has 5
MAX_CONTEXT_NAME = 200
ERROR_LINGER = 2.0  # seconds for a first message after an invalid query
DEFAULT_CONTEXT = "default"

_SENTENCE_END = re.compile(r"[.!?…。！？｡][\"'”’)\]」』]*\s*$")
# Other spellings of field names that clients use.
SPELLINGS = {"contextId": "context_id", "xi-api-key": "xi_api_key"}
NO_ALIGNMENT = {"normalizedAlignment": None, "alignment": None}


class InputMessage(RequestModel):
    """A message of a client, on both WebSockets. Fields that control ElevenLabs' own buffering are ignored."""

    text: str | None = None
    context_id: str | None = Field(default=None, max_length=MAX_CONTEXT_NAME)
    voice_settings: VoiceSettings | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    xi_api_key: str | None = Field(default=None, repr=False)
    authorization: str | None = Field(default=None, repr=False)
    pronunciation_dictionary_locators: list[DictionaryLocator] | None = None


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket) -> None:
    await serve_websocket(websocket, lambda connection: ContextSession(connection, multiple=False).run())


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket) -> None:
    await serve_websocket(websocket, lambda connection: ContextSession(connection, multiple=True).run())


class ContextSession:
    """One connection. Each context is an utterance with a task of its own."""

    def __init__(self, connection: WebSocketConnection, multiple: bool) -> None:
        self._connection, self._multiple = connection, multiple
        self._options = SynthesisOptions()
        self._strict = is_strict(connection.query.get("strict", ""))
        self._inactivity_timeout, self._auto_mode, self._times_from_start = INACTIVITY_TIMEOUT, False, False
        self._contexts: dict[str, LiveUtterance] = {}  # by name
        self._tasks: dict[asyncio.Task[None], LiveUtterance] = {}
        self._failed: deque[str] = deque(maxlen=MAX_CONTEXTS)  # names whose text is discarded
        self._num_contexts = 0
        self._task_failed = asyncio.Event()

    async def run(self) -> None:
        try:
            first = None
            if self._connection.limiter is None:  # nothing is read or reported before the key
                first = await self._connection.receive_json(INACTIVITY_TIMEOUT)
                bearer = bearer_token(str(first.get("authorization", "")))
                self._connection.authenticate(str(first.get("xi_api_key") or first.get("xi-api-key") or bearer))
            await self._parse_query()
        except (PolyvoxError, IdleTimeout) as error:
            reason = _timeout_error(INACTIVITY_TIMEOUT) if isinstance(error, IdleTimeout) else error
            await self._close_with(reason, repeat=self._multiple and isinstance(error, InvalidRequest))
        await run_session(self._connection, self._receive_loop(first), self._tasks, self._task_failed)

    async def _parse_query(self) -> None:
        query = self._connection.query
        ignored = IgnoredFields(self._strict)
        sync_alignment = query.get("sync_alignment", "").lower()
        options = parse_options(
            self._connection.path["voice_id"],
            query.get("output_format"),
            query.get("language_code"),
            self._connection.state.info,
            ignored,
        )
        self._options = replace(
            options,
            seed=parse_integer("seed", query["seed"]) if "seed" in query else None,
            normalize=query.get("apply_text_normalization") != "off",
            live=True,
            timestamps=() if sync_alignment == "false" else ("character",),
        )
        self._times_from_start = sync_alignment == "true"
        self._auto_mode = query.get("auto_mode", "").lower() == "true"
        if "inactivity_timeout" in query:
            timeout = max(1.0, parse_integer("inactivity_timeout", query["inactivity_timeout"]))
            self._inactivity_timeout = min(timeout, MAX_INACTIVITY_TIMEOUT)
        await self._connection.state.synthesis.validate(self._options)
        ignored.report(self._connection.request_id)

    def _is_busy(self) -> bool:
        return any(utterance.busy for utterance in self._tasks.values())

    async def _receive_loop(self, first: dict[str, Any] | None) -> None:
        """Handles messages until the client ends the session; then all contexts finish."""
        while True:
            context = None
            try:
                found = first or await self._connection.receive_json(self._inactivity_timeout, self._is_busy)
                first = None
                message = validate(InputMessage, {SPELLINGS.get(name, name): value for name, value in found.items()})
                context = message.context_id
                if message.pronunciation_dictionary_locators is not None:
                    await self._set_lexicons(message.pronunciation_dictionary_locators)
                if message.voice_settings is not None:
                    ignored = IgnoredFields(self._strict)
                    ignored.add_unknown(message.voice_settings.unknown_fields())
                    ignored.report(self._connection.request_id)
                if not (self._handle_multiple(message) if self._multiple else self._handle_single(message)):
                    break
            except IdleTimeout:
                await self._close_with(_timeout_error(self._inactivity_timeout))
            except PolyvoxError as error:
                self._connection.state.record_rejected(error, self._connection.request_id)
                await self._connection.send_json(self._error_message(error, context))
                self._connection.count_invalid()
        for utterance in self._contexts.values():
            utterance.finish()

    async def _set_lexicons(self, locators: list[DictionaryLocator]) -> None:
        """For the contexts that follow."""
        connection, ignored = self._connection, IgnoredFields(self._strict)
        assert connection.limiter is not None, "not authenticated"
        lexicons = await find_lexicons(connection.state, connection.limiter.caller.key, locators, ignored)
        self._options = replace(self._options, lexicons=lexicons)
        ignored.report(connection.request_id)

    async def _close_with(self, error: PolyvoxError, repeat: bool = False) -> NoReturn:
        """repeat: also as an error of the first context: LiveKit waits for the end of its context only."""
        self._connection.state.record_rejected(error, self._connection.request_id)
        await self._connection.send_json(self._error_message(error))
        if repeat:
            with suppress(IdleTimeout, PolyvoxError):
                found = await self._connection.receive_json(ERROR_LINGER)
                context = found.get("context_id") or found.get("contextId")
                await self._connection.send_json(self._error_message(error, str(context or DEFAULT_CONTEXT)))
        await self._connection.close(_close_code(error), str(error))
        raise ClientDisconnected

    def _handle_single(self, message: InputMessage) -> bool:
        """stream-input: an empty text ends the utterance."""
        utterance = self._context("", message)
        if message.text == "" or message.close_socket:
            return False
        self._append(utterance, message.text or "", bool(message.flush))
        return True

    def _handle_multiple(self, message: InputMessage) -> bool:
        """multi-stream-input: each message belongs to a context."""
        name, text = message.context_id or DEFAULT_CONTEXT, message.text or ""
        if message.close_socket:
            return False
        if message.close_context:
            self._close_context(name)
            return True
        if name in self._failed:
            if message.flush:  # the end of the text that could not be synthesised
                self._failed.remove(name)
            elif text.strip():
                raise InvalidRequest("context_id", name, "the context has failed; flush or close it first")
            return True
        existing = self._contexts.get(name)
        if not text and (existing is None or existing.text_ended.is_set()):
            return True  # a keep-alive message
        self._append(self._context(name, message), text, bool(message.flush))
        return True

    def _append(self, utterance: LiveUtterance, text: str, flush: bool) -> None:
        """In auto mode each text is a phrase: words end with it, and a complete sentence is submitted at once."""
        is_phrase = self._auto_mode and bool(text.strip())
        utterance.append(text + " " if is_phrase and not text[-1].isspace() else text)
        if flush or (is_phrase and _SENTENCE_END.search(text)):
            utterance.flush()
        if is_phrase:  # many phrases carry a flush, so only a flush without text marks the end
            utterance.flushed = False

    def _context(self, name: str, message: InputMessage) -> LiveUtterance:
        utterance = self._contexts.get(name)
        if utterance is None or utterance.text_ended.is_set():
            if len(self._tasks) >= MAX_CONTEXTS:
                raise InvalidRequest("context_id", name, f"at most {MAX_CONTEXTS} contexts may be open")
            options = replace(self._options, speed=parse_speed(message.voice_settings))
            utterance = LiveUtterance(self._connection, options, f"{self._connection.request_id}.{self._num_contexts}")
            self._num_contexts += 1
            self._contexts[name] = utterance
            task = asyncio.create_task(self._send_audio(name, utterance))
            self._tasks[task] = utterance
            task.add_done_callback(self._on_task_done)
        return utterance

    def _close_context(self, name: str) -> None:
        """Flushed text is synthesised to its end. With text that is not flushed, or a second close, it is cancelled."""
        if name in self._failed:
            self._failed.remove(name)
        if (utterance := self._contexts.get(name)) is None:
            return
        if utterance.flushed and not utterance.finished:
            utterance.finish()
        else:
            utterance.cancel()

    async def _send_audio(self, name: str, utterance: LiveUtterance) -> None:
        context = {"contextId": name} if self._multiple else {}
        alignment, timed = WebSocketAlignment(self._times_from_start), list[TimedText]()
        try:
            async with aclosing(utterance.events()) as events:
                async for event in events:
                    if isinstance(event, TimedText):
                        timed.append(event)
                    elif isinstance(event, bytes) and not utterance.cancelled:
                        audio = base64.b64encode(event).decode()
                        message = {"audio": audio, "isFinal": None, **alignment.message_fields(timed), **context}
                        await self._connection.send_json(message, utterance)
                        timed.clear()
            if timed and not utterance.cancelled:  # text after the last audio
                message = {"audio": "", "isFinal": None, **alignment.message_fields(timed), **context}
                await self._connection.send_json(message, utterance)
        except PolyvoxError as error:
            utterance.record_failure(error)
            await self._connection.send_json(self._error_message(error, name), utterance)
            if not self._multiple:
                await self._connection.close(_close_code(error), str(error))
            elif not utterance.text_ended.is_set():
                self._failed.append(name)
            return
        finally:
            if self._contexts.get(name) is utterance:
                del self._contexts[name]
        if utterance.cancelled:
            self._connection.state.metrics.aborts.labels("cancel").inc()
        await self._connection.send_json({"audio": None, "isFinal": True, **NO_ALIGNMENT, **context}, utterance)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.pop(task, None)
        else:
            self._task_failed.set()

    def _error_message(self, error: PolyvoxError, context: str | None = None) -> dict[str, Any]:
        body = error_body(error, ELEVENLABS_FIELDS)["error"]
        message = {"message": body["message"], "error": error.code, "code": _close_code(error), "param": body["param"]}
        if isinstance(error, Overloaded):
            message["retry_after"] = body["retry_after"]
        return message | ({"contextId": context} if self._multiple and context else {})


def _close_code(error: PolyvoxError) -> int:
    return TRY_AGAIN if isinstance(error, Overloaded) else POLICY_VIOLATION


def _timeout_error(seconds: float) -> APIError:
    return APIError(408, "input_timeout_exceeded", f"No message arrived for {seconds:g} s.")
