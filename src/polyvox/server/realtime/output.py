# SPDX-License-Identifier: Apache-2.0
"""The output of one response: its items, and the events that show how they grow."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from polyvox.alignment import TimedText
from polyvox.server.api.websocket_connection import ReadProgress
from polyvox.server.realtime.events import EventSender, new_id
from polyvox.server.realtime.items import ContentPart, ConversationItem, FunctionCallItem, MessageItem
from polyvox.server.realtime.spoken_transcript import PlaybackClock, SpokenTranscript
from polyvox.server.synthesis.speech_recording import SpeechRecording
from polyvox.server.synthesis.timestamps import TimestampGranularity, timestamp_messages
from polyvox.thinkers.interface import ThinkerFailed

MAX_CALLS, MAX_ARGUMENT_CHARS = 64, 1_000_000  # of one response
ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
# Adds an item to the conversation and returns the id of the item before it.
AddItem = Callable[[ConversationItem], Awaitable[str | None]]


class ResponseOutput:
    """Sends the items of one response as they grow: a message, and function calls.

    add_item: None for a response that is not part of the conversation. spoken: the message has audio.
    """

    def __init__(
        self,
        response_id: str,
        sender: EventSender,
        progress: ReadProgress,
        clock: PlaybackClock,
        add_item: AddItem | None,
        spoken: bool,
        timestamps: tuple[TimestampGranularity, ...],
    ) -> None:
        self._response_id, self._sender, self._progress = response_id, sender, progress
        self._clock, self._add_item, self._spoken, self._timestamps = clock, add_item, spoken, timestamps
        self.items: list[MessageItem | FunctionCallItem] = []
        self.message: MessageItem | None = None
        self.recording: SpeechRecording | None = None  # of the spoken message
        self._previous: dict[str, str | None] = {}  # the id of the item before each
        self._texts: list[str] = []
        self._calls: dict[object, FunctionCallItem] = {}  # the latest of each index of the LLM
        self._num_argument_chars = 0

    @property
    def speech(self) -> SpokenTranscript | None:
        """Of the message, if it is spoken."""
        return None if self.message is None else self.message.content[0].speech

    async def add_text(self, text: str) -> None:
        if not text:
            return
        message = await self._start_message()
        self._texts.append(text)
        if self.speech is not None:
            self.speech.add_text(text)
        kind = "output_audio_transcript" if self._spoken else "output_text"
        await self._send(f"response.{kind}.delta", message, {"content_index": 0, "delta": text})

    async def add_times(self, timed: TimedText) -> None:
        """Words that start in the audio that follows."""
        if self.message is None:
            return
        for fields in timestamp_messages([timed], self._timestamps, "response.output_audio"):
            type = fields.pop("type")
            await self._send(type, self.message, {"content_index": 0, **fields})

    async def add_audio(self, data: bytes, seconds: float) -> None:
        message = await self._start_message()
        assert self.speech is not None
        delta = base64.b64encode(data).decode()
        await self._send("response.output_audio.delta", message, {"content_index": 0, "delta": delta})
        self.speech.seconds += seconds
        self._clock.add(seconds)

    async def add_calls(self, calls: list[dict[str, Any]]) -> None:
        """Pieces of function calls, in the format of chat completions."""
        for piece in calls:
            function = piece.get("function") or {}
            call = self._find_call(piece)
            call.name += function.get("name") or ""
            arguments = function.get("arguments") or ""
            call.arguments += arguments
            self._num_argument_chars += len(arguments)
            if self._num_argument_chars > MAX_ARGUMENT_CHARS:
                message = f"The arguments of the LLM's function calls have more than {MAX_ARGUMENT_CHARS:,} characters."
                raise ThinkerFailed(message)
            if call not in self.items:
                if not call.name:
                    continue
                await self._start_item(call)
                arguments = call.arguments
            if arguments:
                fields = {"call_id": call.call_id, "delta": arguments}
                await self._send("response.function_call_arguments.delta", call, fields)

    async def finish(self, status: ResponseStatus) -> None:
        """Sends the ends of all items. Of a cancelled response the text that was played is kept, of a failed one that
        whose audio was sent."""
        for item in self.items:
            item.status = "completed" if status == "completed" else "incomplete"
            if isinstance(item, MessageItem):
                await self._finish_message(item, status)
            else:
                fields = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
                await self._send("response.function_call_arguments.done", item, fields)
            await self._send("response.output_item.done", item, {"item": item.as_dict()}, with_id=False)
            if self._add_item is not None:
                done = {"previous_item_id": self._previous[item.id], "item": item.as_dict()}
                await self._sender.send("conversation.item.done", done, self._progress)

    async def _finish_message(self, message: MessageItem, status: ResponseStatus) -> None:
        (part,) = message.content
        text = "".join(self._texts)
        part.text = text
        if self._spoken:
            await self._send("response.output_audio.done", message, {"content_index": 0})
            await self._send("response.output_audio_transcript.done", message, {"content_index": 0, "transcript": text})
            shown = {"type": "audio", "transcript": text}
        else:
            await self._send("response.output_text.done", message, {"content_index": 0, "text": text})
            shown = {"type": "text", "text": text}
        await self._send("response.content_part.done", message, {"content_index": 0, "part": shown})
        if (speech := part.speech) is not None:
            speech.is_complete = status in ("completed", "incomplete")
            played = speech.seconds - self._clock.remaining if status == "cancelled" else speech.seconds
            part.text = await speech.text_played(played)

    async def _start_message(self) -> MessageItem:
        if self.message is None:
            part = ContentPart("output_audio" if self._spoken else "output_text", "")
            part.speech = SpokenTranscript(self.recording) if self._spoken else None
            self.message = MessageItem(new_id("item"), "assistant", [part], "in_progress")
            await self._start_item(self.message)
            shown = {"type": "audio", "transcript": ""} if self._spoken else {"type": "text", "text": ""}
            await self._send("response.content_part.added", self.message, {"content_index": 0, "part": shown})
        return self.message

    async def _start_item(self, item: MessageItem | FunctionCallItem) -> None:
        self.items.append(item)
        await self._send("response.output_item.added", item, {"item": item.as_dict()}, with_id=False)
        if self._add_item is not None:
            self._previous[item.id] = await self._add_item(item)

    def _find_call(self, piece: dict[str, Any]) -> FunctionCallItem:
        """The call that a piece belongs to. Some LLMs number all calls 0 and give each an id."""
        given, index = piece.get("id"), piece.get("index")
        call = self._calls.get(index)
        if call is None or (given and given != call.call_id):
            if len(self.items) > MAX_CALLS:
                raise ThinkerFailed(f"The LLM made more than {MAX_CALLS} function calls in one answer.")
            call = FunctionCallItem(new_id("item"), str(given or new_id("call")), "", status="in_progress")
            self._calls[index] = call
        return call

    async def _send(self, type: str, item: ConversationItem, fields: dict[str, Any], with_id: bool = True) -> None:
        position: dict[str, Any] = {"response_id": self._response_id, "output_index": self.items.index(item)}  # type: ignore[arg-type]
        if with_id:
            position["item_id"] = item.id
        await self._sender.send(type, {**position, **fields}, self._progress)
