# SPDX-License-Identifier: Apache-2.0
"""Records of finished requests, kept for `GET /v1/audio/speech/{request_id}`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyvox.audio.clip import FinishReason
from polyvox.engine.interface import Result
from polyvox.server.shared_store import SharedStore, StoreLimits

MAX_RECORDS = 1000  # per server process


@dataclass(slots=True)
class RequestRecord:
    """Statistics of one request; complete once finish_reason is set. owner: the name of the key that made it."""

    request_id: str
    model: str
    created: float  # seconds since 1970
    seed: int
    characters: int = 0
    language: str | None = None  # of the text, or its languages in order, separated by commas
    sentences: int = 0
    text_tokens: int = 0
    frames: int = 0
    audio_seconds: float = 0.0
    queue_wait: float = 0.0
    # Seconds from the request to the first bytes and to the end, without the time spent waiting for live text.
    first_audio: float | None = None
    stages: dict[str, float] | None = None  # seconds of each stage before the first bytes; see first_packet.py
    seconds: float = 0.0
    underruns: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    owner: str = ""
    replica: int | None = None  # the index of the engine that ran it, if there are several

    def add(self, result: Result) -> None:
        """Adds the result of one segment."""
        self.sentences += 1
        self.text_tokens += result.text_tokens
        self.frames += result.frames
        self.queue_wait = max(self.queue_wait, result.queue_wait)
        self.underruns += result.underruns

    def as_dict(self) -> dict[str, Any]:
        """All fields but the owner, and the replica only if there are several."""
        values = asdict(self)
        del values["owner"]
        if self.replica is None:
            del values["replica"]
        return values

    def usage(self) -> dict[str, int]:
        total = self.text_tokens + self.frames
        return {"input_tokens": self.text_tokens, "output_tokens": self.frames, "total_tokens": total}


class RequestLog:
    """The latest records, found by their owner. folder: shared by all server processes; None for memory."""

    def __init__(self, folder: Path | None = None, max_records: int = MAX_RECORDS) -> None:
        self._store = SharedStore(folder, StoreLimits(max_values=max_records), "request records")

    def put(self, record: RequestRecord) -> bool:
        """Stores a record; false if it is dropped, because the disk stalls."""
        values = record.as_dict() | {"usage": record.usage()}
        return self._store.put(record.owner, record.request_id, json.dumps(values))

    async def get(self, owner: str, request_id: str) -> dict[str, Any] | None:
        """The record, or None. Raises Overloaded if the disk stalls."""
        text = await self._store.get(owner, request_id)
        return None if text is None else json.loads(text)

    async def flush(self) -> None:
        """Returns when all records can be read by other processes, or after a timeout: a disk may stall."""
        await self._store.flush()

    def close(self) -> None:
        self._store.close()
