"""What the engine's process and a server say to each other: messages over one Unix socket, samples by a ring."""

import logging
import pickle
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import Samples
from polyvox.engine.interface import Result
from polyvox.errors import PolyvoxError
from polyvox.hosting.ring import Ring, shared_file
from polyvox.models.identity import ModelFacts
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

SOCKET = "engine.sock"
HANDSHAKE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Door:
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
Reply = int | dict[str, float] | ModelFacts | ClonedVoice | PolyvoxError


class Wakeup(NamedTuple):
    """All that is new for one server: answers, chunks, ends, in this order."""

    replies: dict[int, Reply]
    pieces: list[Piece]
    ended: dict[int, Result]


class Wire:
    """Messages in both directions. shutdown() ends every wait in send and receive."""

    def __init__(self, connection: socket.socket, patience: float) -> None:
        connection.settimeout(None)
        # A peer that stands still must not hold its writer for ever.
        timeval = struct.pack("ll", int(patience), int(patience % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._socket, self._incoming = connection, connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Where the peer is gone, or has not read for too long, the message is lost and receive() ends."""
        data = pickle.dumps(message, protocol=5)
        with self._sending:
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


def knock(door: Door, patience: float) -> tuple[Wire, Ring]:
    """A server's way in; raises OSError or EOFError where nobody answers."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        connection.connect(str(door.folder / SOCKET))
        _, files, _, _ = socket.recv_fds(connection, 1, 1)
        if not files:
            raise EOFError
        with open(files[0], "rb") as file:
            return Wire(connection, patience), Ring(file.fileno())
    except BaseException:
        connection.close()
        raise


def let_in(connection: socket.socket, samples: int, patience: float) -> tuple[Wire, Ring]:
    """The engine's answer to a knock: a ring of so many samples."""
    with open(shared_file(samples), "rb") as file:
        socket.send_fds(connection, [b"R"], [file.fileno()])
        return Wire(connection, patience), Ring(file.fileno())
