# SPDX-License-Identifier: Apache-2.0
"""The conversation of a realtime session: changes of its items, with the events that report them."""

import asyncio
from collections.abc import Iterable
from typing import Any

from polyvox.errors import InvalidRequest
from polyvox.server.realtime.chat_messages import chat_messages
from polyvox.server.realtime.events import EventSender, new_id
from polyvox.server.realtime.items import ContentPart, ConversationItem, ConversationItems, MessageItem
from polyvox.server.realtime.spoken_transcript import PlaybackClock, SpokenTranscript

NUM_RECORDED = 2  # answers whose audio is kept, to cut them at a word


class RealtimeConversation:
    """Adds, deletes and truncates items."""

    def __init__(self, sender: EventSender, clock: PlaybackClock) -> None:
        self._sender, self._clock = sender, clock
        self.id = new_id("conv")
        self.items = ConversationItems()

    async def add(self, item: ConversationItem, after: str | None = None) -> str | None:
        """Adds an item, by default at the end; returns the id of the item before it. Raises APIError."""
        previous = self.items.insert(item, after)
        if _spoken_part(item)[1] is not None:
            self._drop_audio()
        await self._sender.send("conversation.item.added", {"previous_item_id": previous, "item": item.as_dict()})
        for id in self.items.drop_oldest():
            await self._sender.send("conversation.item.deleted", {"item_id": id})
        return previous

    async def add_complete(self, item: ConversationItem, after: str | None = None) -> None:
        """Adds an item that does not change any more."""
        previous = await self.add(item, after)
        await self._sender.send("conversation.item.done", {"previous_item_id": previous, "item": item.as_dict()})

    async def retrieve(self, id: str) -> None:
        item = self.items.find(id, "item_retrieve_invalid_item_id")
        await self._sender.send("conversation.item.retrieved", {"item": item.as_dict(with_audio=True)})

    async def delete(self, id: str) -> None:
        self.items.delete(id)
        await self._sender.send("conversation.item.deleted", {"item_id": id})

    async def truncate(self, id: str, content_index: int, audio_end_ms: int) -> None:
        """Cuts a spoken answer at the last word that was played. A time after its end changes nothing."""
        item = self.items.find(id, "item_truncate_invalid_item_id")
        part, speech = _spoken_part(item)
        if part is None or speech is None:
            raise InvalidRequest("item_id", id, "must be a spoken answer of the assistant")
        if content_index != 0:
            raise InvalidRequest("content_index", content_index, "must be 0")
        await self._cut(item.id, part, speech, audio_end_ms)

    async def interrupt(self) -> None:
        """The user speaks: the last answer is cut where a client can be that plays in real time."""
        remaining = self._clock.remaining
        if not remaining:
            return
        for item in reversed(list(self.items)):
            part, speech = _spoken_part(item)
            if part is not None and speech is not None:
                await self._cut(item.id, part, speech, round(1000 * max(0.0, speech.seconds - remaining)))
                return

    async def messages(self, instructions: str, items: Iterable[ConversationItem]) -> list[dict[str, Any]]:
        """The messages for the LLM, when all transcripts are known. Raises the failure of the user's last message."""
        known = list(items)
        parts = [part for item in known if isinstance(item, MessageItem) for part in item.content]
        if pending := [part.transcription for part in parts if part.transcription is not None]:
            await asyncio.wait(pending)
        asked = next((item for item in reversed(known) if isinstance(item, MessageItem) and item.role == "user"), None)
        for part in asked.content if asked is not None else []:
            if part.failure is not None:
                raise part.failure
        return chat_messages(instructions, known)

    def _drop_audio(self) -> None:
        """Keeps the audio of the last answers, which may still be cut."""
        spoken = [speech for item in self.items if (speech := _spoken_part(item)[1]) is not None]
        for speech in spoken[:-NUM_RECORDED]:
            speech.drop_audio()

    async def _cut(self, id: str, part: ContentPart, speech: SpokenTranscript, audio_end_ms: int) -> None:
        self._clock.stop()
        part.text = await speech.cut(audio_end_ms / 1000)
        fields = {"item_id": id, "content_index": 0, "audio_end_ms": audio_end_ms}
        await self._sender.send("conversation.item.truncated", fields)


def _spoken_part(item: ConversationItem) -> tuple[ContentPart | None, SpokenTranscript | None]:
    if isinstance(item, MessageItem) and item.role == "assistant" and item.content:
        return item.content[0], item.content[0].speech
    return None, None
