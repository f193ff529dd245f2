# SPDX-License-Identifier: Apache-2.0
"""Temporary files of responses that are sent as one file: small ones in memory, larger ones on disk."""

import io
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO, cast

from polyvox.errors import Overloaded

MAX_MEMORY_BYTES = 1 << 20  # of one file; larger files are on disk
RETRY_SECONDS = 10.0


class SpoolFull(Overloaded):
    """The files of all whole-file responses together have no more space."""

    code = "spool_full"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message} Try again later, or stream the audio.", RETRY_SECONDS)


class Spool:
    """The files of one server process, with a limit of their total size. Files are unnamed, so none is left behind."""

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self.folder, self._max_bytes = None if folder is None else str(folder), max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()  # files are written by encoder threads

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return self._num_bytes

    def resize(self, change: int) -> None:
        """Counts bytes that a file gains or loses; raises SpoolFull."""
        with self._lock:
            if change > 0 and self._num_bytes + change > self._max_bytes:
                share = f"this server process's share of max_spool_bytes ({self._max_bytes:,})"
                raise SpoolFull(f"Whole-file responses would exceed {share}.")
            self._num_bytes += change


class SpooledFile(io.BufferedIOBase):
    """A seekable file that exists until it is closed. One thread at a time."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self.num_bytes = spool, 0
        opened = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES, dir=spool.folder)  # noqa: SIM115 (closed by close)
        self._file = cast(BinaryIO, opened)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Raises SpoolFull."""
        end = self._file.tell() + len(data)  # vocabulary: allow (the file protocol)
        if end > self.num_bytes:
            self._spool.resize(end - self.num_bytes)
            self.num_bytes = end
        try:
            return self._file.write(data)
        except OSError as error:
            raise SpoolFull(f"A whole-file response cannot be stored: {error.strerror}.") from error

    def read(self, size: int | None = -1) -> bytes:
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()  # vocabulary: allow (the file protocol)

    def tell(self) -> int:  # vocabulary: allow (the file protocol)
        return self._file.tell()  # vocabulary: allow (the file protocol)

    def close(self) -> None:
        """Deletes the file. Idempotent, and called at the latest when the object is freed."""
        if not self.closed:
            self._file.close()
            self._spool.resize(-self.num_bytes)
        super().close()
