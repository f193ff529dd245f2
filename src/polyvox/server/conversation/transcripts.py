# SPDX-License-Identifier: Apache-2.0
"""Transcripts of earlier answers: clients refer to them in the history by the id of their audio."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.server.shared_store import SharedStore, StoreLimits

LIFETIME = 3600  # seconds
MAX_CHARS, MAX_TRANSCRIPTS = 10_000_000, 50_000  # of a server; the oldest are deleted
MAX_RESOLVED_CHARS = 1_000_000  # of all transcripts in one request: a short one could name a long one many times
HINT = "Send the transcript as the content of the message instead."


class TranscriptStore:
    """Transcripts by the key that made them and the id of their audio.

    folder: shared by all server processes, None for memory. The limits are those of this process.
    """

    def __init__(
        self, folder: Path | None = None, max_chars: int = MAX_CHARS, max_transcripts: int = MAX_TRANSCRIPTS
    ) -> None:
        self._store = SharedStore(folder, StoreLimits(max_transcripts, max_chars, LIFETIME), "transcripts")

    async def put(self, owner: str, audio_id: str, text: str) -> None:
        """Returns when all server processes can read it, or after a timeout: a disk may stall."""
        self._store.put(owner, audio_id, text)
        await self._store.flush()

    async def get(self, owner: str, audio_id: str) -> str | None:
        """Raises Overloaded if the disk stalls."""
        return await self._store.get(owner, audio_id)

    def close(self) -> None:
        self._store.close()

    async def resolve(self, owner: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with text in place of the audio of earlier answers; raises InvalidRequest for an unknown id."""
        texts: dict[str, str] = {}  # by audio id: each is read once
        num_chars = 0
        resolved = []
        for index, message in enumerate(messages):
            rest = {key: value for key, value in message.items() if key != "audio"}
            audio, field = message.get("audio"), f"messages[{index}].audio"
            if audio is not None and not rest.get("content"):
                if not isinstance(audio, Mapping) or not isinstance(audio.get("id"), str):
                    raise InvalidRequest(field, NOT_SHOWN, "must have the id of an earlier answer")
                if (audio_id := audio["id"]) not in texts:
                    texts[audio_id] = await self._read(owner, audio_id, field)
                num_chars += len(texts[audio_id])
                if num_chars > MAX_RESOLVED_CHARS:
                    limit = f"{MAX_RESOLVED_CHARS:,} characters"
                    raise InvalidRequest(field, NOT_SHOWN, f"the transcripts of a request must have at most {limit}")
                rest["content"] = texts[audio_id]
            resolved.append(rest)
        return resolved

    async def _read(self, owner: str, audio_id: str, field: str) -> str:
        if (text := await self.get(owner, audio_id)) is None:
            raise InvalidRequest(field, audio_id, "the id is unknown or has expired", HINT)
        return text


def new_audio_id() -> str:
    return f"audio_{secrets.token_hex(12)}"
