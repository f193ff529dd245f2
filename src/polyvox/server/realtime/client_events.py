# SPDX-License-Identifier: Apache-2.0
"""The events that a realtime client sends, and the items in them."""

from typing import Any, Literal

from pydantic import Field

from polyvox.errors import InvalidRequest
from polyvox.server.realtime.events import new_id
from polyvox.server.realtime.input_audio import decode_audio, to_samples
from polyvox.server.realtime.items import (
    ContentPart,
    ConversationItem,
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    MessageItem,
)
from polyvox.server.realtime.session_config import AudioFormat
from polyvox.server.requests import RequestModel
from polyvox.server.responses import APIError

MAX_ID_CHARS = 128
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512  # as OpenAI
MAX_PARTS, MAX_INPUT_ITEMS = 64, 1000
# The parts that a message of each role may have; the second names are those of older clients.
PART_TYPES = {
    "user": {"input_text": "input_text", "input_audio": "input_audio", "input_image": "input_image"},
    "system": {"input_text": "input_text"},
    "assistant": {"output_text": "output_text", "text": "output_text", "output_audio": "output_audio"},
}


class PartFields(RequestModel):
    type: str
    text: str | None = None
    audio: str | None = Field(default=None, repr=False)
    transcript: str | None = None
    image_url: str | None = Field(default=None, repr=False)
    detail: Literal["auto", "low", "high"] | None = None


class ItemFields(RequestModel):
    id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_CHARS)
    type: Literal["message", "function_call", "function_call_output"]
    role: Literal["user", "assistant", "system"] | None = None
    content: list[PartFields] = Field(default=[], max_length=MAX_PARTS)
    call_id: str | None = Field(default=None, max_length=MAX_ID_CHARS)
    name: str | None = None
    arguments: str = ""
    output: str = ""


class SessionUpdate(RequestModel):
    session: dict[str, Any]


class AudioAppend(RequestModel):
    audio: str = Field(repr=False)


class ItemCreate(RequestModel):
    item: ItemFields
    previous_item_id: str | None = None


class ItemReference(RequestModel):
    item_id: str


class ItemTruncate(ItemReference):
    content_index: int = Field(ge=0)
    audio_end_ms: int = Field(ge=0)


class ResponseCreate(RequestModel):
    response: dict[str, Any] = Field(default={})


class ResponseCancel(RequestModel):
    response_id: str | None = None


class ResponseFields(RequestModel):
    """The fields of response.create that are not fields of the session."""

    conversation: Literal["auto", "none"] = "auto"
    metadata: dict[str, str] | None = Field(default=None, max_length=MAX_METADATA)
    input: list[dict[str, Any]] | None = Field(default=None, max_length=MAX_INPUT_ITEMS)

    def check(self) -> None:
        """Raises InvalidRequest for metadata that is too long."""
        for name, value in (self.metadata or {}).items():
            if len(name) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                requirement = f"must have keys of {MAX_METADATA_KEY} and values of {MAX_METADATA_VALUE} characters"
                raise InvalidRequest("response.metadata", {name: value}, requirement)


async def parse_item(fields: ItemFields, format: AudioFormat) -> ConversationItem:
    """Raises InvalidRequest or APIError. format: of input_audio."""
    id = fields.id or new_id("item")
    match fields.type:
        case "function_call":
            if not fields.name:
                raise APIError(422, "missing_field", "Missing required field 'item.name'.", "item.name")
            return FunctionCallItem(id, fields.call_id or new_id("call"), fields.name, fields.arguments)
        case "function_call_output":
            if not fields.call_id:
                raise APIError(422, "missing_field", "Missing required field 'item.call_id'.", "item.call_id")
            return FunctionOutputItem(id, fields.call_id, fields.output)
    if fields.role is None:
        raise APIError(422, "missing_field", "Missing required field 'item.role'.", "item.role")
    content = [await _parse_part(part, index, fields.role, format) for index, part in enumerate(fields.content)]
    return MessageItem(id, fields.role, content)


async def _parse_part(part: PartFields, index: int, role: str, format: AudioFormat) -> ContentPart:
    name = f"item.content[{index}]"
    if part.type not in PART_TYPES[role]:
        raise InvalidRequest(f"{name}.type", part.type, PART_TYPES[role])
    match PART_TYPES[role][part.type]:
        case "input_audio":
            if part.audio is None and part.transcript is None:
                raise APIError(422, "missing_field", f"Missing required field '{name}.audio'.", f"{name}.audio")
            if part.transcript is not None:  # what the LLM reads
                return ContentPart("input_audio", part.transcript)
            data = await decode_audio(part.audio or "", format, f"{name}.audio")
            return ContentPart("input_audio", audio=InputAudio(to_samples(data, format), format.sample_rate))
        case "input_image":
            if not part.image_url:
                raise APIError(422, "missing_field", f"Missing required field '{name}.image_url'.", f"{name}.image_url")
            return ContentPart("input_image", image_url=part.image_url, detail=part.detail)
        case "output_audio":
            return ContentPart("output_audio", part.transcript or part.text or "")
        case "output_text":
            return ContentPart("output_text", part.text or "")
    if part.text is None:
        raise APIError(422, "missing_field", f"Missing required field '{name}.text'.", f"{name}.text")
    return ContentPart("input_text", part.text)
