# SPDX-License-Identifier: Apache-2.0
"""A value that one process writes and any number of processes read: a file of fixed size, mapped into memory.

All of its space is allocated when it is created, so a write cannot fail on a full disk.
"""

import mmap
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

SIZE = 8192  # bytes
HEADER = struct.Struct("<II")  # length and checksum of the encoded value
READ_ATTEMPTS = 100  # a reader may meet a write, which takes microseconds


class SharedRecord(Generic[T]):
    """One process writes, any number of them read. A checksum detects a read during a write."""

    def __init__(self, path: Path, initial: T, create: bool = False) -> None:
        """create: creates the file with the initial value."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.write(file, bytes(SIZE))
                if hasattr(os, "posix_fallocate"):  # a file system may allocate written blocks later
                    os.posix_fallocate(file, 0, SIZE)
            self._map = mmap.mmap(file, SIZE)
        finally:
            os.close(file)
        self._last = initial
        self._decoder = msgspec.json.Decoder(type(initial))
        if create:
            self.write(initial)

    def write(self, value: T) -> None:
        encoded = msgspec.json.encode(value)
        HEADER.pack_into(self._map, 0, len(encoded), zlib.crc32(encoded))
        self._map[HEADER.size : HEADER.size + len(encoded)] = encoded

    def read(self) -> T:
        for _ in range(READ_ATTEMPTS):
            length, checksum = HEADER.unpack_from(self._map)
            encoded = self._map[HEADER.size : HEADER.size + min(length, SIZE - HEADER.size)]
            # A header of zeros is one that is being written: struct clears it first, and the checksum of nothing is 0.
            if length and zlib.crc32(encoded) == checksum:
                self._last = self._decoder.decode(encoded)
                break
            time.sleep(0)
        return self._last  # the writer was killed during a write: the value before it

    def close(self) -> None:
        self._map.close()
