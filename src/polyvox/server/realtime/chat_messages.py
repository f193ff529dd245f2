# SPDX-License-Identifier: Apache-2.0
"""The items of a realtime conversation as the messages of a chat completion."""

import base64
from collections.abc import Iterable
from typing import Any

from polyvox.audio.pcm import pcm_bytes
from polyvox.audio.wav import wav_header
from polyvox.server.realtime.items import (
    ContentPart,
    ConversationItem,
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    MessageItem,
)

SILENCE = "(silence)"  # the message of a user who says nothing


def chat_messages(instructions: str, items: Iterable[ConversationItem]) -> list[dict[str, Any]]:
    """The messages for the LLM.

    Function calls without an output and outputs without a call are left out, because LLMs reject them; the outputs
    follow their calls. Items have audio only if the LLM can hear it; otherwise its transcript.
    """
    found = list(items)
    outputs = {item.call_id: item for item in found if isinstance(item, FunctionOutputItem)}
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    answer: dict[str, Any] | None = None  # the message of the assistant that further calls belong to
    for item in found:
        match item:
            case MessageItem():
                answer = None
                if (content := _content(item)) is not None:
                    messages.append({"role": item.role, "content": content})
                    answer = messages[-1] if item.role == "assistant" else None
            case FunctionCallItem() if item.call_id in outputs:
                if answer is None:
                    answer = {"role": "assistant", "content": None}
                    messages.append(answer)
                function = {"name": item.name, "arguments": item.arguments}
                answer.setdefault("tool_calls", []).append(
                    {"id": item.call_id, "type": "function", "function": function}
                )
                output = outputs.pop(item.call_id)
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output.output})
            case FunctionOutputItem():
                answer = None
    return messages


def _content(item: MessageItem) -> str | list[dict[str, Any]] | None:
    """A string, or parts if it has images or audio; None if it has nothing."""
    parts = [part for part in map(_part, item.content) if part is not None]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts) or None
    return parts


def _part(part: ContentPart) -> dict[str, Any] | None:
    if part.type == "input_image":
        return {"type": "image_url", "image_url": {"url": part.image_url, "detail": part.detail or "auto"}}
    if part.audio is not None:
        return {"type": "input_audio", "input_audio": {"data": _wav_base64(part.audio), "format": "wav"}}
    return {"type": "text", "text": part.text} if part.text else None


def _wav_base64(audio: InputAudio) -> str:
    data = pcm_bytes(audio.pcm)
    return base64.b64encode(wav_header(audio.sample_rate, len(data)) + data).decode()
