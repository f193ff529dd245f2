"""How an utterance went, and the last ones for who asks by id: a raw stream of sound has no place to tell it."""

import hashlib
import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyvox.audio.clip import FinishReason
from polyvox.engine.interface import Result

KEPT = 1000  # of each server process


@dataclass(slots=True)
class RequestRecord:
    """How an utterance went; final once finish_reason is there."""

    request_id: str
    model: str
    created: float  # seconds since 1970
    seed: int
    characters: int = 0
    sentences: int = 0
    text_tokens: int = 0
    frames: int = 0
    audio_seconds: float = 0.0
    queue_wait: float = 0.0
    # Seconds from the request to the first bytes and to the end, without those that a live one waited for text.
    first_audio: float | None = None
    seconds: float = 0.0
    underruns: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    def add(self, result: Result) -> None:
        self.sentences += 1
        self.text_tokens += result.text_tokens
        self.frames += result.frames
        self.queue_wait = max(self.queue_wait, result.queue_wait)
        self.underruns += result.underruns

    def told(self) -> dict[str, Any]:
        return asdict(self)

    def usage(self) -> dict[str, int]:
        total = self.text_tokens + self.frames
        return {"input_tokens": self.text_tokens, "output_tokens": self.frames, "total_tokens": total}


class RequestLog:
    """The last ones, in memory; with a folder, in files that all server processes see."""

    def __init__(self, folder: Path | None = None, kept: int = KEPT) -> None:
        self._folder, self._kept = folder, kept
        self._last: OrderedDict[str, dict[str, Any] | None] = OrderedDict()

    def put(self, outcome: RequestRecord) -> None:
        name, told = outcome.request_id, outcome.told() | {"usage": outcome.usage()}
        if self._folder is not None:
            path = self._path(name)
            partial = path.with_suffix(".partial")
            with suppress(OSError):  # a full disk must not end a stream that went well
                partial.write_text(json.dumps(told))
                partial.replace(path)
        self._last.pop(name, None)
        self._last[name] = told if self._folder is None else None
        while len(self._last) > self._kept:
            oldest, _ = self._last.popitem(last=False)
            if self._folder is not None:
                self._path(oldest).unlink(missing_ok=True)

    def get(self, request_id: str) -> dict[str, Any] | None:
        if self._folder is None:
            return self._last.get(request_id)
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self._path(request_id).read_text())
            return found
        return None

    def _path(self, request_id: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(request_id.encode('utf-8', 'replace')).hexdigest()}.json"
