"""What the engine's process and a server say to each other: messages over one Unix socket, samples by a ring."""

import logging
import pickle
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import Samples
from polyvox.engine.interface import Result
from polyvox.errors import PolyvoxError
from polyvox.ipc.audio_ring import AudioRing, shared_file
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

SOCKET = "engine.sock"
HANDSHAKE_SECONDS = 5.0
MAX_OUTGOING = 64 << 20  # bytes that may wait for an engine which does not read: some hundred cloned voices


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """Where an engine's process is found. It can be pickled; the folder's mode says who may come in."""

    folder: Path
    sample_rate: int
    start_seconds: float  # how long the engine took to start

    @property
    def notice(self) -> Path:
        """Exists once the engine is not started again any more, and says why."""
        return self.folder / "given-up"


# From a server, which numbers its streams and its questions.


class Submit(NamedTuple):
    id: int
    request: Request
    credit: int  # chunks that may be on their way to the reader


class AskStats(NamedTuple):
    id: int


class AskAbout(NamedTuple):
    id: int


class Clone(NamedTuple):
    id: int
    samples: Samples
    transcript: str | None


class Append(NamedTuple):
    id: int
    text: str | NDArray[np.float32] | None  # or its rows; None: no more will come
    last: bool = False  # these rows are the last


class Cancel(NamedTuple):
    id: int


class Taken(NamedTuple):
    """The ring is copied up to a position, and readers have taken so many chunks of their streams."""

    position: int
    chunks: dict[int, int]


# From the engine.


class Piece(NamedTuple):
    """A chunk whose samples lie next in the ring."""

    id: int
    number: int
    samples: int
    final: bool


# The seed of a stream, stats, what the model is, the voice of a recording, a refusal.
Reply = int | dict[str, float] | ModelInfo | ClonedVoice | PolyvoxError


class Wakeup(NamedTuple):
    """All that is new for one server: answers, chunks, ends, in this order."""

    replies: dict[int, Reply]
    pieces: list[Piece]
    ended: dict[int, Result]


class MessageChannel:
    """Messages in both directions. shutdown() ends every wait in send and receive."""

    def __init__(self, connection: socket.socket, patience: float) -> None:
        connection.settimeout(None)
        # A peer that stands still must not hold its writer for ever.
        timeval = struct.pack("ll", int(patience), int(patience % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._socket, self._incoming = connection, connection.makefile("rb")

    def send(self, message: object) -> None:
        """For one thread. Where the peer is gone or reads nothing for too long, it is lost, and receive() ends."""
        self._write(_packed(message))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            log.debug("not sent, as the connection is lost: %r", error)
            self.shutdown()  # half a message may be out

    def receive(self) -> object:
        """The next message; raises EOFError or OSError where none will come."""
        try:
            return pickle.load(self._incoming)
        except pickle.UnpicklingError as error:
            raise EOFError("half a message") from error

    def shutdown(self) -> None:
        with suppress(OSError):  # it was, or the peer is gone
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shutdown()
        self._incoming.close()
        self._socket.close()


class MessageWriter(MessageChannel):
    """A wire whose send never waits, for any thread: another one writes, in order."""

    def __init__(self, connection: socket.socket, patience: float) -> None:
        super().__init__(connection, patience)
        self._news = threading.Condition()  # guards what follows
        self._outgoing: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._writer = threading.Thread(target=self._drain, name="polyvox-wire-writer", daemon=True)
        self._writer.start()

    def send(self, message: object) -> None:
        """Where more waits than a peer that reads would ever leave, the connection ends."""
        data = _packed(message)
        with self._news:
            if self._closed:
                return
            if self._bytes > MAX_OUTGOING:  # before this one, however large that is
                log.warning("the engine has left %d bytes unread, and the connection is given up", self._bytes)
                self.shutdown()
                return
            self._outgoing.append(data)
            self._bytes += len(data)
            self._news.notify()

    def shutdown(self) -> None:
        super().shutdown()
        with self._news:
            self._closed = True
            self._outgoing.clear()
            self._news.notify()

    def close(self) -> None:
        self.shutdown()
        self._writer.join()
        super().close()

    def _drain(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._outgoing or self._closed)
                if self._closed:
                    return
                data = self._outgoing.popleft()
            self._write(data)
            with self._news:
                self._bytes -= len(data)


def _packed(message: object) -> bytes:
    return pickle.dumps(message, protocol=5)


def knock(door: EngineEndpoint, patience: float) -> tuple[MessageWriter, AudioRing]:
    """A server's way in; raises OSError or EOFError where nobody answers."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        connection.connect(str(door.folder / SOCKET))
        _, files, _, _ = socket.recv_fds(connection, 1, 1)
        if not files:
            raise EOFError
        with open(files[0], "rb") as file:
            ring = AudioRing(file.fileno())
            return MessageWriter(connection, patience), ring  # last: it has a thread
    except BaseException:
        connection.close()
        raise


def let_in(connection: socket.socket, samples: int, patience: float) -> tuple[MessageChannel, AudioRing]:
    """The engine's answer to a knock: a ring of so many samples."""
    with open(shared_file(samples), "rb") as file:
        socket.send_fds(connection, [b"R"], [file.fileno()])
        return MessageChannel(connection, patience), AudioRing(file.fileno())
