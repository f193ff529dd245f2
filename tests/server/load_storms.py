# SPDX-License-Identifier: Apache-2.0
"""Clients that disconnect or stop reading, over plain sockets."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ipc.engine_processes import eventually
from server.live_server import RunningServer
from server.multi_worker import RunningWorkers


def begin(
    server: RunningServer | RunningWorkers,
    text: str = "Hello there.",
    receive_buffer: int | None = None,
    key: str = "",
    path: str = "/v1/audio/speech",
    **fields: Any,
) -> socket.socket:
    """Sends a speech request and reads nothing yet."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"input": text, "response_format": "pcm", **fields}).encode()
    more = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}content-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def storm(server: RunningServer | RunningWorkers, clients: int, seed: int = 0) -> None:
    """Clients that disconnect at random moments: before, at the start of, or during the response.

    The engine must pause every stream before its end, so that only a cancellation can end it.
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


def seconds_until(free: Callable[[], bool]) -> float:
    """How long it takes from now until nothing is left."""
    began = time.monotonic()
    eventually(lambda: free() or threading.Event().wait(0.01))
    return time.monotonic() - began


def read_response(connection: socket.socket) -> bytes:
    """The whole answer, to its end or to that of the connection."""
    body = b""
    with suppress(ConnectionError):
        while not body.endswith(b"0\r\n\r\n") and (part := connection.recv(1 << 16)):
            body += part
    connection.close()
    return body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def is_whole(answer: bytes) -> bool:
    return status_of(answer) == 200 and answer.endswith(b"0\r\n\r\n")
