# SPDX-License-Identifier: Apache-2.0
"""Values that any server process can read for a while after a request: its record, and the transcript of its answer."""

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import ParamSpec, TypeVar

from polyvox.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")

MAX_PENDING = 1000  # reads and writes: while a disk stalls, further ones are dropped
READ_TIMEOUT = 5.0  # seconds
FLUSH_TIMEOUT = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Of the values that one server process stores; the oldest ones are deleted."""

    max_values: float = inf
    max_chars: float = inf
    lifetime: float = inf  # seconds


@dataclass(frozen=True, slots=True)
class StoredValue:
    stored_at: float  # seconds since 1970
    num_chars: int
    text: str | None  # None: in a file


class SharedStore:
    """The latest texts by owner and id: in memory, or in files of a folder that all server processes share.

    A text is found only by its owner: ids are chosen by clients, and two keys may choose the same. Files are read and
    written by one thread, in the order of the calls; only the process that wrote a file deletes it, or any process
    that starts after its lifetime. subject: for errors.
    """

    def __init__(self, folder: Path | None, limits: StoreLimits, subject: str) -> None:
        self._folder, self._limits, self._subject = folder, limits, subject
        self._latest: OrderedDict[str, StoredValue] = OrderedDict()
        self.num_chars = 0  # of the values that this process has stored
        self._files = ThreadPoolExecutor(1, f"polyvox-{subject.replace(' ', '-')}")
        self._free_calls = threading.BoundedSemaphore(MAX_PENDING)
        if folder is not None:
            self._call(self._delete_expired)  # of processes that have died

    def put(self, owner: str, id: str, text: str) -> bool:
        """Stores a text; false if it is dropped, because the disk stalls."""
        name = _name(owner, id)
        if self._folder is not None and self._call(self._write, name, text) is None:
            return False
        if (before := self._latest.pop(name, None)) is not None:
            self.num_chars -= before.num_chars
        self._latest[name] = StoredValue(time.time(), len(text), text if self._folder is None else None)
        self.num_chars += len(text)
        while self._latest and self._exceeds_limits():
            oldest, value = self._latest.popitem(last=False)
            self.num_chars -= value.num_chars
            if self._folder is not None:
                self._call(self._delete, oldest)
        return True

    async def get(self, owner: str, id: str) -> str | None:
        """The text, or None if it is unknown or has expired. Raises Overloaded if the disk stalls."""
        name = _name(owner, id)
        if self._folder is None:
            value = self._latest.get(name)
            return None if value is None or self._is_expired(value.stored_at) else value.text
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT):
                if (reading := self._call(self._read, name)) is not None:
                    return await asyncio.shield(asyncio.wrap_future(reading))
        message = f"The {self._subject} cannot be read now: the disk does not answer."
        raise Overloaded(message, READ_TIMEOUT, "disk_timeout")

    async def flush(self) -> None:
        """Returns when all texts can be read by other processes, or after FLUSH_TIMEOUT: a disk may stall."""
        if self._folder is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_TIMEOUT):
                    if (waiting := self._call(lambda: None)) is not None:
                        await asyncio.shield(asyncio.wrap_future(waiting))

    def close(self) -> None:
        self._files.shutdown(wait=False)

    def _exceeds_limits(self) -> bool:
        limits, oldest = self._limits, next(iter(self._latest.values()))
        too_many = len(self._latest) > limits.max_values or self.num_chars > limits.max_chars
        return too_many or self._is_expired(oldest.stored_at)

    def _is_expired(self, stored_at: float) -> bool:
        return time.time() - stored_at > self._limits.lifetime

    def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T] | None:
        """Runs work in the thread after all earlier calls; None if MAX_PENDING calls are pending already."""
        if not self._free_calls.acquire(blocking=False):
            return None
        future = self._files.submit(work, *args, **kwargs)
        future.add_done_callback(lambda _: self._free_calls.release())
        return future

    def _write(self, name: str, text: str) -> None:
        path = self._path(name)
        partial = path.with_suffix(".partial")
        with suppress(OSError):  # a full disk loses the text, not the request
            partial.write_bytes(text.encode("utf-8", "surrogatepass"))
            partial.replace(path)

    def _delete(self, name: str) -> None:
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def _delete_expired(self) -> None:
        assert self._folder is not None
        for path in self._folder.iterdir():
            with suppress(OSError):
                if self._is_expired(path.stat().st_mtime):
                    path.unlink(missing_ok=True)

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        with suppress(OSError):
            if not self._is_expired(path.stat().st_mtime):
                return path.read_bytes().decode("utf-8", "surrogatepass")
        return None

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / name


def _name(owner: str, id: str) -> str:
    """Also a file name: ids may have any characters."""
    return hashlib.sha256(f"{owner}\n{id}".encode("utf-8", "replace")).hexdigest()
