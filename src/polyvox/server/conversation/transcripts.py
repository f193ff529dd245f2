# SPDX-License-Identifier: Apache-2.0
"""Transcripts of earlier answers: clients refer to them in the history by the id of their audio."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Any

from polyvox.errors import NOT_SHOWN, InvalidRequest

LIFETIME = 3600  # seconds
# Of all transcripts of a server process; the oldest are dropped.
MAX_CHARS, MAX_TRANSCRIPTS = 10_000_000, 50_000
HINT = "Send the transcript as the content of the message instead."


class TranscriptStore:
    """The transcripts of one server process, by the key that made them and the id of their audio."""

    def __init__(self, max_chars: int = MAX_CHARS, max_transcripts: int = MAX_TRANSCRIPTS) -> None:
        self._max_chars, self._max_transcripts, self.num_chars = max_chars, max_transcripts, 0
        self._texts: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def put(self, owner: str, audio_id: str, text: str) -> None:
        self._texts[owner, audio_id] = monotonic() + LIFETIME, text
        self.num_chars += len(text)
        while self._texts and self._must_drop_oldest():
            self.num_chars -= len(self._texts.popitem(last=False)[1][1])

    def get(self, owner: str, audio_id: str) -> str | None:
        expires, text = self._texts.get((owner, audio_id), (0.0, ""))
        return text if monotonic() < expires else None

    def _must_drop_oldest(self) -> bool:
        expires, _ = next(iter(self._texts.values()))
        is_full = self.num_chars > self._max_chars or len(self._texts) > self._max_transcripts
        return is_full or expires < monotonic()

    def resolve(self, owner: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with text in place of the audio of earlier answers; raises InvalidRequest for an unknown id."""
        return [self._resolve(owner, message, index) for index, message in enumerate(messages)]

    def _resolve(self, owner: str, message: dict[str, Any], index: int) -> dict[str, Any]:
        if "audio" not in message:
            return message
        rest = {key: value for key, value in message.items() if key != "audio"}
        audio = message["audio"]
        if rest.get("content") or audio is None:
            return rest
        field = f"messages[{index}].audio"
        if not isinstance(audio, Mapping) or not isinstance(audio.get("id"), str):
            raise InvalidRequest(field, NOT_SHOWN, "must have the id of an earlier answer")
        text = self.get(owner, audio["id"])
        if text is None:
            raise InvalidRequest(field, audio["id"], "the id is unknown or has expired", HINT)
        return {**rest, "content": text}


def new_audio_id() -> str:
    return f"audio_{secrets.token_hex(12)}"
