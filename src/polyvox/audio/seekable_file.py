# SPDX-License-Identifier: Apache-2.0
"""The part of the file protocol that encoders use."""

import io
from typing import Protocol


class SeekableFile(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int: ...
    def tell(self) -> int: ...  # vocabulary: allow (the file protocol)
