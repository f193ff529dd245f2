# SPDX-License-Identifier: Apache-2.0
"""Records of finished requests, kept for `GET /v1/audio/speech/{request_id}`."""

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from polyvox.audio.clip import FinishReason
from polyvox.engine.interface import Result
from polyvox.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")

MAX_RECORDS = 1000  # per server process
MAX_PENDING = 1000  # reads and writes: while a disk stalls, further ones are dropped
READ_TIMEOUT = 5.0  # seconds
FLUSH_TIMEOUT = 1.0  # seconds


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
    seconds: float = 0.0
    underruns: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    owner: str = ""

    def add(self, result: Result) -> None:
        """Adds the result of one segment."""
        self.sentences += 1
        self.text_tokens += result.text_tokens
        self.frames += result.frames
        self.queue_wait = max(self.queue_wait, result.queue_wait)
        self.underruns += result.underruns

    def as_dict(self) -> dict[str, Any]:
        """All fields but the owner."""
        values = asdict(self)
        del values["owner"]
        return values

    def usage(self) -> dict[str, int]:
        total = self.text_tokens + self.frames
        return {"input_tokens": self.text_tokens, "output_tokens": self.frames, "total_tokens": total}


class RequestLog:
    """The latest records: in memory, or in files of a folder that all server processes share.

    A record is found only by its owner: ids are chosen by clients, and two keys may choose the same. Files are read and
    written by one thread, in the order of the calls.
    """

    def __init__(self, folder: Path | None = None, max_records: int = MAX_RECORDS) -> None:
        self._folder, self._max_records = folder, max_records
        self._latest: OrderedDict[str, dict[str, Any] | None] = OrderedDict()
        self._files = ThreadPoolExecutor(1, "polyvox-request-log")
        self._free_calls = threading.BoundedSemaphore(MAX_PENDING)

    def put(self, record: RequestRecord) -> bool:
        """Stores a record; false if it is dropped, because the disk stalls."""
        name, values = _name(record.owner, record.request_id), record.as_dict() | {"usage": record.usage()}
        if self._folder is not None and self._call(self._write, name, values) is None:
            return False
        self._latest.pop(name, None)
        self._latest[name] = values if self._folder is None else None
        if len(self._latest) > self._max_records:
            expired, _ = self._latest.popitem(last=False)
            if self._folder is not None:
                self._call(self._delete, expired)
        return True

    async def get(self, owner: str, request_id: str) -> dict[str, Any] | None:
        """The record, or None. Raises Overloaded if the disk stalls."""
        name = _name(owner, request_id)
        if self._folder is None:
            return self._latest.get(name)
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT):
                if (reading := self._call(self._read, name)) is not None:
                    return await asyncio.shield(asyncio.wrap_future(reading))
        raise Overloaded("The request records cannot be read now: the disk does not answer.", READ_TIMEOUT)

    async def flush(self) -> None:
        """Returns when all records can be read by other processes, or after FLUSH_TIMEOUT: a disk may stall."""
        if self._folder is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_TIMEOUT):
                    if (waiting := self._call(lambda: None)) is not None:
                        await asyncio.shield(asyncio.wrap_future(waiting))

    def close(self) -> None:
        self._files.shutdown(wait=False)

    def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T] | None:
        """Runs work in the thread after all earlier calls; None if MAX_PENDING calls are pending already."""
        if not self._free_calls.acquire(blocking=False):
            return None
        future = self._files.submit(work, *args, **kwargs)
        future.add_done_callback(lambda _: self._free_calls.release())
        return future

    def _write(self, name: str, values: dict[str, Any]) -> None:
        path = self._path(name)
        partial = path.with_suffix(".partial")
        with suppress(OSError):  # a full disk loses the record, not the request
            partial.write_text(json.dumps(values))
            partial.replace(path)

    def _delete(self, name: str) -> None:
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self._path(name).read_text())
            return found
        return None

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.json"


def _name(owner: str, request_id: str) -> str:
    """Also a file name: ids may have any characters."""
    return hashlib.sha256(f"{owner}\n{request_id}".encode("utf-8", "replace")).hexdigest()
