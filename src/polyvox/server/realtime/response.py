# SPDX-License-Identifier: Apache-2.0
"""One response of a realtime session: the LLM is asked, and its answer is sent as events, spoken or as text."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal

from polyvox.alignment import TimedText
from polyvox.errors import PolyvoxError
from polyvox.server.conversation.chat_format import usage_of
from polyvox.server.conversation.chat_response import outcome_of, record_answer
from polyvox.server.conversation.spoken_answer import SpokenAnswer, start_utterance
from polyvox.server.logs import log_request
from polyvox.server.realtime.events import error_fields, new_id
from polyvox.server.realtime.output import ResponseOutput, ResponseStatus
from polyvox.server.realtime.session_config import RealtimeConfig
from polyvox.server.realtime.session_context import SessionContext
from polyvox.server.realtime.spoken_transcript import PlaybackClock
from polyvox.server.request_log import RequestRecord
from polyvox.server.synthesis.reader import ReaderTimer
from polyvox.server.synthesis.utterance import Utterance
from polyvox.thinkers.interface import Delta, End

CancelReason = Literal["turn_detected", "client_cancelled"]
# The reasons of incomplete responses, by the finish reason of the LLM.
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseProgress:
    """How far the client has read a response."""

    def __init__(self, timeout: float) -> None:
        self.reader = ReaderTimer(timeout)
        self.utterance: Utterance | None = None  # if it is spoken

    @property
    def playing_seconds(self) -> float:
        return 0.0 if self.utterance is None else self.utterance.playing_seconds


class RealtimeResponse:
    """Runs once. A failure ends the response only, not the session.

    get_messages: the messages for the LLM, when all transcripts are known.
    """

    def __init__(
        self,
        context: SessionContext,
        config: RealtimeConfig,
        request_id: str,
        get_messages: Callable[[], Awaitable[list[dict[str, Any]]]],
        in_conversation: bool,
        metadata: dict[str, str] | None,
    ) -> None:
        self._state, self._limiter, self._sender = context.state, context.limiter, context.sender
        self._config, self._request_id, self._get_messages = config, request_id, get_messages
        self._conversation_id = context.conversation.id if in_conversation else None
        self._metadata = metadata
        self.id = new_id("resp")
        self._progress = ResponseProgress(context.state.settings.reader_timeout)
        self._output = ResponseOutput(
            self.id,
            context.sender,
            self._progress,
            context.clock if in_conversation else PlaybackClock(),
            context.conversation.add if in_conversation else None,
            config.fields.is_spoken,
            tuple(config.fields.audio.output.timestamp_granularities or ()),
        )
        self._status: ResponseStatus = "in_progress"
        self._details: dict[str, Any] | None = None
        self._answer: SpokenAnswer | None = None
        self._end: End | None = None
        self._task: asyncio.Task[None] | None = None  # while it can be cancelled: before the LLM is asked
        self._cancel_reason: CancelReason | None = None
        self._start_time = time.monotonic()

    @property
    def is_in_conversation(self) -> bool:
        return self._conversation_id is not None

    @property
    def busy(self) -> bool:
        return self._status == "in_progress"

    def cancel(self, reason: CancelReason) -> None:
        """Ends the response; `run` sends its end and returns. Idempotent."""
        self._cancel_reason = self._cancel_reason or reason
        if self._answer is not None:
            self._answer.stop()
        elif self._task is not None:
            self._task.cancel()

    def _is_cancelled(self) -> bool:
        return self._cancel_reason is not None

    async def run(self) -> None:
        """Sends all events of the response, from response.created to response.done."""
        await self._sender.send("response.created", {"response": self._as_dict()})
        outcome = "cancelled"
        try:
            async with self._limiter.request():
                await self._run()
            outcome = "finished" if self._status != "cancelled" else "cancelled"
        except PolyvoxError as error:
            outcome = outcome_of(error)
            self._fail(error)
        finally:
            self._state.metrics.llm_requests.labels(outcome).inc()
        await self._finish()

    async def _run(self) -> None:
        prepared = await self._prepare()
        if prepared is None or self._is_cancelled():
            await self._close_utterance()
            self._set_cancelled()
            return
        state = self._state
        limit, by_tokens = state.settings.max_text_chars, state.info.takes_conversations
        thinker = state.conversation.require_llm()
        self._answer = answer = SpokenAnswer(thinker, prepared, self._progress.utterance, limit, by_tokens)
        try:
            await self._send_answer(answer)
        finally:
            record_answer(state, answer, self._request_id)
        if self._is_cancelled() and self._end is None:
            self._set_cancelled()
        else:
            assert self._end is not None
            reason = INCOMPLETE.get(self._end.finish_reason)
            self._status = "incomplete" if reason else "completed"
            self._details = {"type": "incomplete", "reason": reason} if reason else None

    async def _prepare(self) -> dict[str, Any] | None:
        """The chat completion for the LLM, after its utterance is accepted; None if the response was cancelled."""
        if self._is_cancelled():
            return None
        self._task = asyncio.current_task()
        try:
            body = {**self._config.fields.chat_fields(), "messages": await self._get_messages()}
            self._state.synthesis.check_draining()
            if self._config.fields.is_spoken:
                owner = self._limiter.caller.key
                self._progress.utterance = utterance = await start_utterance(
                    self._state.synthesis, self._config.options, self._request_id, owner, body
                )
                self._output.recording = utterance.recording
            return body
        except asyncio.CancelledError:
            if not self._is_cancelled() or self._task is None:  # the session ends
                raise
            self._task.uncancel()
            return None
        finally:
            self._task = None

    async def _send_answer(self, answer: SpokenAnswer) -> None:
        seconds = 0.0
        async with aclosing(answer.events()) as events:
            async for event in events:
                match event:
                    case Delta():
                        await self._output.add_text(event.text)
                        for choice in event.chunk["choices"]:
                            await self._output.add_calls(choice["delta"].get("tool_calls") or [])
                    case TimedText():
                        await self._output.add_times(event)
                    case bytes():
                        await self._output.add_audio(event, self._progress.playing_seconds - seconds)
                        seconds = self._progress.playing_seconds
                    case End():
                        self._end = event

    async def _close_utterance(self) -> None:
        if self._progress.utterance is not None:
            await self._progress.utterance.close()

    def _set_cancelled(self) -> None:
        self._status = "cancelled"
        self._details = {"type": "cancelled", "reason": self._cancel_reason}
        self._state.metrics.aborts.labels("cancel").inc()

    def _fail(self, error: PolyvoxError) -> None:
        self._status = "failed"
        fields = error_fields(error)
        self._details = {"type": "failed", "error": {name: fields[name] for name in ("type", "code", "message")}}
        utterance = self._progress.utterance
        if utterance is None or utterance.record.finish_reason is None:
            self._state.record_rejected(error, self._request_id)
        else:
            self._state.metrics.aborts.labels("error").inc()

    async def _finish(self) -> None:
        self._state.metrics.realtime_responses.labels(self._status).inc()
        fields: dict[str, object] = {"status": self._status, "seconds": round(time.monotonic() - self._start_time, 3)}
        if self._details is not None and "reason" in self._details:
            fields["reason"] = self._details["reason"]
        log_request("response finished", self._request_id, fields)
        await self._output.finish(self._status)
        await self._sender.send("response.done", {"response": self._as_dict()}, self._progress)

    def _as_dict(self) -> dict[str, Any]:
        fields = self._config.fields
        output = fields.audio.output
        done = self._status != "in_progress"
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": self._status,
            "status_details": self._details,
            "output": [item.as_dict() for item in self._output.items] if done else [],
            "conversation_id": self._conversation_id,
            "output_modalities": ["audio"] if fields.is_spoken else ["text"],
            "max_output_tokens": fields.max_output_tokens,
            "audio": {"output": {"format": output.format.as_dict(), "voice": output.voice_name}},
            "metadata": self._metadata,
            "usage": self._usage() if done else None,
        }

    def _usage(self) -> dict[str, Any]:
        utterance = self._progress.utterance
        record = RequestRecord("", "", 0.0, 0) if utterance is None else utterance.record
        counted = usage_of(self._end or End("stop"), record)
        details = counted["completion_tokens_details"]
        given = counted.get("prompt_tokens_details")
        cached = given.get("cached_tokens") if isinstance(given, dict) else None
        prompt = counted["prompt_tokens"]
        return {
            "total_tokens": counted["total_tokens"],
            "input_tokens": prompt,
            "output_tokens": counted["completion_tokens"],
            "input_token_details": {
                "text_tokens": prompt,
                "audio_tokens": 0,
                "cached_tokens": cached if isinstance(cached, int) else 0,
            },
            "output_token_details": {
                "text_tokens": details["text_tokens"],
                "audio_tokens": details["audio_tokens"],
            },
        }
