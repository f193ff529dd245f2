# SPDX-License-Identifier: Apache-2.0
"""A client of /v1/realtime."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from server.live_server import RunningServer
from server.websocket_clients import WebSocketClient, connect_websocket

PATH = "/v1/realtime"


class RealtimeClient:
    """One session. All events are kept in order."""

    def __init__(self, socket: WebSocketClient) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.socket.send(type=type, **fields)

    def receive(self) -> dict[str, Any]:
        event = self.socket.receive()
        assert isinstance(event, dict)
        self.events.append(event)
        return event

    def until(self, type: str) -> list[dict[str, Any]]:
        """All events up to one of a type."""
        found = [self.receive()]
        while found[-1]["type"] != type:
            found.append(self.receive())
        return found

    def next(self, type: str) -> dict[str, Any]:
        return self.until(type)[-1]

    def update(self, **session: Any) -> dict[str, Any]:
        """Updates the session; returns it."""
        self.send("session.update", session={"type": "realtime", **session})
        updated: dict[str, Any] = self.next("session.updated")["session"]
        return updated

    def say(self, text: str, **fields: Any) -> None:
        """Adds a message of the user."""
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content, **fields})

    def respond(self, **response: Any) -> list[dict[str, Any]]:
        """Creates a response; returns its events."""
        self.send("response.create", response=response)
        return self.until("response.done")

    def fail(self, type: str, **fields: Any) -> dict[str, Any]:
        """Sends an event that is rejected; returns the error."""
        self.send(type, event_id="mine", **fields)
        error: dict[str, Any] = self.next("error")["error"]
        assert error["event_id"] == "mine"
        return error


def texts(events: list[dict[str, Any]], kind: str = "output_audio_transcript") -> str:
    return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")


def audio(events: list[dict[str, Any]]) -> bytes:
    found = [event["delta"] for event in events if event["type"] == "response.output_audio.delta"]
    return b"".join(map(base64.b64decode, found))


@contextmanager
def realtime(server: RunningServer, query: str = "", **more: Any) -> Iterator[RealtimeClient]:
    """A session whose session.created has arrived."""
    with connect_websocket(server, PATH + query, **more) as socket:
        client = RealtimeClient(socket)
        assert client.receive()["type"] == "session.created"
        yield client
