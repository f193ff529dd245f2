# SPDX-License-Identifier: Apache-2.0
"""Parses server-sent events from bytes in any fragmentation."""

MAX_EVENT_BYTES = 32_000_000  # of one event: hidden states of some minutes of audio


class EventStreamParser:
    """Returns the data of each complete event. Comments and fields other than `data` are dropped."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()  # the start of a line
        self._data: list[bytes] = []  # lines of the current event
        self._size = 0

    def push(self, part: bytes) -> list[bytes]:
        """The data of the events that are complete; raises ValueError if an event is too large."""
        self._pending += part
        if b"\n" not in part:
            self._check_size()
            return []
        *lines, rest = self._pending.split(b"\n")
        self._pending = bytearray(rest)
        found = []
        for line in lines:
            if (event := self._read_line(bytes(line.removesuffix(b"\r")))) is not None:
                found.append(event)
        self._check_size()
        return found

    def _read_line(self, line: bytes) -> bytes | None:
        """The data of the event that this line ends."""
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data, self._size = [], 0
            return event
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
        return None

    def _check_size(self) -> None:
        if self._size + len(self._pending) > self._max_bytes:
            raise ValueError(f"an event has more than {self._max_bytes:,} bytes")
