# SPDX-License-Identifier: Apache-2.0
"""The engine's status for all server processes: a file of fixed size that is mapped into memory.

All of its space is allocated when it is created, so a change of status cannot fail on a full disk.
"""

import mmap
import os
import struct
import time
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec

from polyvox.engine.engine_status import EngineState, EngineStatus

SIZE = 4096  # bytes
HEADER = struct.Struct("<II")  # length and checksum of the encoded status
MAX_REASON_CHARS = 800  # at most 4 bytes each
READ_ATTEMPTS = 100  # a reader may meet a write, which takes microseconds


class StatusFile:
    """One process writes, any number of them read. A checksum detects a read during a write."""

    def __init__(self, folder: Path, create: bool = False) -> None:
        """create: for the writer, whose first status is that of an engine that starts."""
        file = os.open(folder / "status", os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.write(file, bytes(SIZE))
                if hasattr(os, "posix_fallocate"):  # a file system may allocate written blocks later
                    os.posix_fallocate(file, 0, SIZE)
            self._map = mmap.mmap(file, SIZE)
        finally:
            os.close(file)
        self._last = EngineStatus(EngineState.STARTING)
        if create:
            self.write(self._last)

    def write(self, status: EngineStatus) -> None:
        encoded = msgspec.json.encode(replace(status, reason=status.reason[:MAX_REASON_CHARS]))
        HEADER.pack_into(self._map, 0, len(encoded), zlib.crc32(encoded))
        self._map[HEADER.size : HEADER.size + len(encoded)] = encoded

    def read(self) -> EngineStatus:
        for _ in range(READ_ATTEMPTS):
            length, checksum = HEADER.unpack_from(self._map)
            encoded = self._map[HEADER.size : HEADER.size + min(length, SIZE - HEADER.size)]
            if zlib.crc32(encoded) == checksum:
                self._last = msgspec.json.decode(encoded, type=EngineStatus)
                break
            time.sleep(0)
        return self._last  # the writer was killed during a write: the status before it

    def close(self) -> None:
        self._map.close()
