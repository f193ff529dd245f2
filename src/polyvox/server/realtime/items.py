# SPDX-License-Identifier: Apache-2.0
"""The items of a realtime conversation: messages, function calls and their outputs, in order and bounded."""

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from polyvox.audio.pcm import Pcm, pcm_bytes
from polyvox.errors import PolyvoxError
from polyvox.server.realtime.spoken_transcript import SpokenTranscript
from polyvox.server.responses import APIError

MAX_ITEMS = 1000
MAX_CONVERSATION_BYTES = 16_000_000  # of text, images and audio
ITEM_BYTES = 200  # of an item without content
ROOT = "root"  # as previous_item_id: before all items

ItemStatus = Literal["in_progress", "completed", "incomplete"]
PartType = Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]


@dataclass(frozen=True, slots=True)
class InputAudio:
    """Audio of the user."""

    pcm: Pcm
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.sample_rate


@dataclass(slots=True)
class ContentPart:
    """A part of a message. text: of audio its transcript, None while it is not known.

    transcription: the task that sets the text, or the failure. speech: of output_audio, to cut it at a word.
    """

    type: PartType
    text: str | None = None
    audio: InputAudio | None = None
    image_url: str | None = None
    detail: str | None = None
    speech: SpokenTranscript | None = None
    transcription: "asyncio.Task[None] | None" = None
    failure: PolyvoxError | None = None

    @property
    def num_bytes(self) -> int:
        audio = 0 if self.audio is None else self.audio.pcm.nbytes
        return len(self.text or "") + len(self.image_url or "") + audio

    def as_dict(self, with_audio: bool = False) -> dict[str, Any]:
        if self.type == "input_image":
            return {"type": self.type, "image_url": self.image_url, "detail": self.detail or "auto"}
        if self.type in ("input_text", "output_text"):
            return {"type": self.type, "text": self.text or ""}
        found: dict[str, Any] = {"type": self.type, "transcript": self.text}
        if with_audio and self.audio is not None:
            found["audio"] = base64.b64encode(pcm_bytes(self.audio.pcm)).decode()
        return found


@dataclass(slots=True)
class MessageItem:
    id: str
    role: Literal["user", "assistant", "system"]
    content: list[ContentPart] = field(default_factory=list)
    status: ItemStatus = "completed"

    @property
    def num_bytes(self) -> int:
        return ITEM_BYTES + sum(part.num_bytes for part in self.content)

    def as_dict(self, with_audio: bool = False) -> dict[str, Any]:
        known = [] if self.status == "in_progress" else self.content
        content = [part.as_dict(with_audio) for part in known]
        return {**_frame(self.id, "message", self.status), "role": self.role, "content": content}


@dataclass(slots=True)
class FunctionCallItem:
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "completed"

    @property
    def num_bytes(self) -> int:
        return ITEM_BYTES + len(self.name) + len(self.arguments)

    def as_dict(self, with_audio: bool = False) -> dict[str, Any]:  # noqa: ARG002
        frame = _frame(self.id, "function_call", self.status)
        return {**frame, "call_id": self.call_id, "name": self.name, "arguments": self.arguments}


@dataclass(slots=True)
class FunctionOutputItem:
    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"

    @property
    def num_bytes(self) -> int:
        return ITEM_BYTES + len(self.output)

    def as_dict(self, with_audio: bool = False) -> dict[str, Any]:  # noqa: ARG002
        frame = _frame(self.id, "function_call_output", self.status)
        return {**frame, "call_id": self.call_id, "output": self.output}


ConversationItem = MessageItem | FunctionCallItem | FunctionOutputItem


def _frame(id: str, type: str, status: ItemStatus) -> dict[str, Any]:
    return {"id": id, "object": "realtime.item", "type": type, "status": status}


class ConversationItems:
    """The items in order. Beyond MAX_ITEMS or MAX_CONVERSATION_BYTES the oldest are dropped."""

    def __init__(self) -> None:
        self._items: list[ConversationItem] = []

    def __iter__(self) -> Iterator[ConversationItem]:
        return iter(self._items)

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def find(self, id: str, code: str) -> ConversationItem:
        """Raises APIError with the code if there is no such item."""
        for item in self._items:
            if item.id == id:
                return item
        raise APIError(404, code, f"The conversation has no item '{id[:64]}'.", "item_id")

    def insert(self, item: ConversationItem, after: str | None = None) -> str | None:
        """Adds an item after another one, ROOT or, by default, the last; returns the id of the one before it."""
        index = len(self._items)
        if after == ROOT:
            index = 0
        elif after is not None:
            index = self._items.index(self.find(after, "item_create_invalid_previous_item_id")) + 1
        if any(known.id == item.id for known in self._items):
            message = f"The conversation has an item '{item.id[:64]}' already."
            raise APIError(409, "item_create_duplicate_item_id", message, "item.id")
        self._items.insert(index, item)
        return self._items[index - 1].id if index else None

    def delete(self, id: str) -> None:
        self._items.remove(self.find(id, "item_delete_invalid_item_id"))

    def drop_oldest(self) -> list[str]:
        """Drops what exceeds the limits, never the last item; returns the ids."""
        dropped = []
        num_bytes = sum(item.num_bytes for item in self._items)
        while len(self._items) > 1 and (len(self._items) > MAX_ITEMS or num_bytes > MAX_CONVERSATION_BYTES):
            oldest = self._items.pop(0)
            num_bytes -= oldest.num_bytes
            dropped.append(oldest.id)
        return dropped
