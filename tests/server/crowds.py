"""Clients that behave badly, over plain sockets."""

import json
import random
import socket
from typing import Any

from hosting.hosted import eventually
from server.fakes import HeldEngine
from server.serving import Serving


def begin(
    server: Serving, text: str = "Hello there.", receive_buffer: int | None = None, **fields: Any
) -> socket.socket:
    """Asks for speech and reads nothing yet."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"input": text, "response_format": "pcm", **fields}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def storm(server: Serving, engine: HeldEngine, clients: int, seed: int = 0) -> None:
    """Clients that go at random moments: before the answer, with it, in the midst of it. Nothing is left of them.

    The engine holds every stream back before its end, so that only a cancellation can end it.
    """
    chance = random.Random(seed)
    open_ones: list[socket.socket] = []
    for number in range(clients):
        format = chance.choice(["pcm", "mp3", "opus", "wav"])
        text = chance.choice(["Hello there.", "One. Two. Three."])
        stream_format = chance.choice(["audio", "sse"])
        fields: dict[str, Any] = {"response_format": format, "stream_format": stream_format, "max_new_tokens": 1000}
        connection = begin(server, text, seed=number, **fields)
        if chance.random() < 0.5:
            connection.recv(chance.randrange(1, 5000))
        open_ones.append(connection)
        while len(open_ones) > chance.randrange(1, 20):
            open_ones.pop(chance.randrange(len(open_ones))).close()
    for connection in open_ones:
        connection.close()
    eventually(lambda: engine.streams == 0 and not server.desk.speaker.open)
