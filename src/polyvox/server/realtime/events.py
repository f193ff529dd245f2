# SPDX-License-Identifier: Apache-2.0
"""Server events of a realtime session: their ids, and errors in OpenAI's format."""

import secrets
from typing import Any

from polyvox.errors import PolyvoxError
from polyvox.server.api.websocket_connection import ReadProgress, WebSocketConnection
from polyvox.server.responses import OPENAI_FIELDS, error_body

# The engine's field names as a session calls them.
SPEECH_FIELDS = ("voice", "language", "instructions", "sample_rate", "speed", "seed", "pronunciations")
FIELD_NAMES = {
    name: f"session.audio.output.{OPENAI_FIELDS.get(name, name)}"
    for name in (*OPENAI_FIELDS, *SPEECH_FIELDS)
    if name != "text"
} | {"format": "session.audio.output.format"}


def new_id(kind: str) -> str:
    """An id such as item_0123456789abcdef01234567; at most 32 characters, as OpenAI's."""
    return f"{kind}_{secrets.token_hex(12)}"


def error_fields(error: PolyvoxError) -> dict[str, Any]:
    """type, code, message and param of an error."""
    fields: dict[str, Any] = error_body(error, FIELD_NAMES)["error"]
    return fields


class EventSender:
    """Sends events to the client of one session."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._prefix, self._num_events = new_id("event"), 0

    async def send(self, type: str, fields: dict[str, Any], progress: ReadProgress | None = None) -> None:
        """progress: of the response that the event is part of, which limits the client's time to read it."""
        self._num_events += 1
        event_id = f"{self._prefix}_{self._num_events}"
        await self._connection.send_json({"type": type, "event_id": event_id, **fields}, progress)

    async def send_error(self, error: PolyvoxError, client_event_id: str | None = None) -> None:
        """client_event_id: of the client's event that caused it."""
        await self.send("error", {"error": {**error_fields(error), "event_id": client_event_id}})
