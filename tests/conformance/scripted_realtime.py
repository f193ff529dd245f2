# SPDX-License-Identifier: Apache-2.0
"""A scripted server of /v1/realtime in the browser's network layer, for what a real server does not do on request."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page, WebSocketRoute

SAMPLE_RATE = 24_000


@dataclass
class ScriptedRealtime:
    """Answers each response.create with the words, at fixed times of silent audio. Events of the page are recorded."""

    words: Sequence[tuple[float, str]] = ((0.0, "Hi"), (0.5, "there,"), (1.0, "again."))  # start and word
    seconds: float = 2.0
    completes: bool = True  # answers end
    refuses: bool = False  # connections are closed at their first event
    events: list[dict[str, Any]] = field(default_factory=list)
    sockets: list[WebSocketRoute] = field(default_factory=list)

    def install(self, page: Page) -> None:
        page.route_web_socket("**/v1/realtime*", self._open)

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """The events of this type that the page has sent."""
        return [event for event in self.events if event["type"] == kind]

    def messages(self) -> list[tuple[str, str]]:
        """Role and text of the messages that the page has sent."""
        items = [event["item"] for event in self.sent("conversation.item.create")]
        return [(item["role"], item["content"][0]["text"]) for item in items]

    def send(self, kind: str, **fields: Any) -> None:
        self.sockets[-1].send(json.dumps({"type": kind, "event_id": "event_1", **fields}))

    def finish(self, status: str, **details: Any) -> None:
        self.send("response.done", response={"status": status, "status_details": details})

    def _open(self, socket: WebSocketRoute) -> None:
        self.sockets.append(socket)
        socket.on_message(self._receive)

    def _receive(self, message: str | bytes) -> None:
        event = json.loads(message)
        self.events.append(event)
        if self.refuses:
            self.sockets[-1].close(code=1008, reason="No sessions left.")
            return
        match event["type"]:
            case "response.create":
                self._answer(f"item_{len(self.sent('response.create'))}")
            case "response.cancel":
                self.finish("cancelled", reason="client_cancelled")
            case "conversation.item.retrieve":
                played = self.sent("conversation.item.truncate")[-1]["audio_end_ms"] / 1000
                text = " ".join(word for start, word in self.words if start < played)
                item = {"id": event["item_id"], "content": [{"type": "output_audio", "transcript": text}]}
                self.send("conversation.item.retrieved", item=item)

    def _answer(self, item_id: str) -> None:
        location = {"item_id": item_id, "output_index": 0, "content_index": 0}
        self.send("response.created", response={"status": "in_progress"})
        self.send("response.output_item.added", item={"id": item_id, "type": "message"})
        text, words = "", []
        for start, word in self.words:
            text += " " * bool(text) + word
            position = {"text_start": len(text) - len(word), "text_end": len(text)}
            words.append({"word": word, "start": start, "end": start + 0.1, **position})
        self.send("response.output_audio_transcript.delta", delta=text, **location)
        self.send("response.output_audio.words", words=words, estimated=True, **location)
        audio = bytes(2 * round(self.seconds * SAMPLE_RATE))
        self.send("response.output_audio.delta", delta=base64.b64encode(audio).decode(), **location)
        if self.completes:
            self.finish("completed")
