# SPDX-License-Identifier: Apache-2.0
"""Events of the Wyoming protocol: a line of JSON, then optional data in JSON and an optional payload."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from polyvox.server.requests import parse_json
from polyvox.server.responses import APIError

PROTOCOL_VERSION = "1.10.2"
MAX_LINE_BYTES = 64 * 1024
MAX_DATA_BYTES = 512 * 1024
MAX_PAYLOAD_BYTES = 1024 * 1024  # of an event that is ignored: a client of speech synthesis has no audio to send


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    data: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {"type": self.type, "version": PROTOCOL_VERSION}
        data = json.dumps(self.data).encode() if self.data else b""
        if data:
            header["data_length"] = len(data)
        if self.payload:
            header["payload_length"] = len(self.payload)
        return json.dumps(header).encode() + b"\n" + data + self.payload


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event; None at the end of the connection. Raises APIError for anything but an event."""
    try:
        line = await reader.readuntil(b"\n")
        header = await parse_json(line, "event")
        data = header.get("data") or {}
        if not isinstance(header.get("type"), str) or not isinstance(data, dict):
            raise APIError(400, "invalid_event", "An event must have a type, and data that is an object.")
        if num_bytes := _length(header, "data_length", MAX_DATA_BYTES):
            data = {**data, **await parse_json(await reader.readexactly(num_bytes), "data of the event")}
        if num_bytes := _length(header, "payload_length", MAX_PAYLOAD_BYTES):
            await reader.readexactly(num_bytes)
    except (asyncio.IncompleteReadError, OSError):
        return None
    except asyncio.LimitOverrunError:
        raise APIError(413, "too_large", f"A line must have at most {MAX_LINE_BYTES:,} bytes.") from None
    return Event(header["type"], data)


def _length(header: dict[str, Any], name: str, max_bytes: int) -> int:
    value = header.get(name) or 0
    if not isinstance(value, int) or not 0 <= value <= max_bytes:
        raise APIError(
            413, "too_large", f"Invalid value for '{name}': must be between 0 and {max_bytes} (got {value!r})."
        )
    return value
