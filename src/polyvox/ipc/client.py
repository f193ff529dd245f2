"""An engine that runs in another process, as a server sees it: the same interface, and it comes back by itself."""

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import Samples
from polyvox.engine.interface import Chunk, Result
from polyvox.engine.stream_reader import StreamReader
from polyvox.errors import NOT_SHOWN, EngineDown, InvalidRequest, PolyvoxError
from polyvox.ipc import messages
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

CREDIT = 8  # chunks of a stream that may wait for their reader here
PATIENCE = 10.0  # seconds in which the engine must have read a message
RECONNECT_SECONDS = 0.05
GIVEN_UP_SECONDS = 60.0  # for a person to have looked at it
OnReady = Callable[["RemoteStream"], None]


class RemoteStream(StreamReader):
    """A request that the engine's process has taken."""

    def __init__(self, connection: "_Connection", id: int, request: Request, on_ready: OnReady | None) -> None:
        self._connection, self._id, self._on_ready, self._text_open = connection, id, on_ready, request.live
        super().__init__(threading.Condition())  # its buffer never holds more than the stream's credit, and its end
        self._number = 0  # of the next chunk
        self.seed = request.seed or 0  # until the engine has drawn one

    def _took(self, taken: list[Chunk]) -> None:
        self._connection.return_credit(self._id, len(taken))

    def append(self, text: str) -> None:
        """Does not wait for the engine: a text that it cannot take ends the stream with an error that says why."""
        self._append(messages.Append(self._id, text))

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        self._append(messages.Append(self._id, rows, last))

    def finish_text(self) -> None:
        if self._text_open:
            self._append(messages.Append(self._id, None, last=True))

    def _append(self, message: messages.Append) -> None:
        if not self._text_open:
            raise InvalidRequest("append", NOT_SHOWN, "requires a live request whose text is not finished")
        self._text_open = not message.last
        self._connection.wire.send(message)

    def cancel(self) -> None:
        if self.result is None:
            self._connection.wire.send(messages.Cancel(self._id))

    # The receiving thread's

    def put(self, chunks: list[Chunk], result: Result | None) -> None:
        """The last chunk and the result come together: who has seen the one can see the other."""
        with self._ready:
            if self.result is not None:
                return  # it has ended here already
            self._buffer.extend(chunks)
            self._number += len(chunks)
            if result is not None:
                self.result = result
                if result.finish_reason in ("cancelled", "error"):  # nobody wants what is left of it
                    self._buffer.clear()
                    self._buffer.append(Chunk(np.zeros(0, np.float32), self._number, True))
            self._told()
        if self._on_ready is not None:
            try:
                self._on_ready(self)
            except Exception:
                log.exception("a stream is cancelled, as its reader failed")
                self._on_ready = None
                self.cancel()


class _Connection:
    """One connection, from the handshake to its end, and the streams that live and die with it."""

    def __init__(
        self, door: messages.EngineEndpoint, credit: int, timeout: float, down: Callable[[], EngineDown]
    ) -> None:
        self.wire, self._ring = messages.knock(door, PATIENCE)
        self._window, self._timeout, self._down = credit, timeout, down
        self._lock = threading.Lock()  # guards all that follows
        self._over = False
        self._ids = itertools.count()
        self._streams: dict[int, RemoteStream] = {}
        self._calls: dict[int, Future[messages.Reply]] = {}
        self._credit: Counter[int] = Counter()  # chunks that readers have taken and the engine was not told of
        self.wakeups = 0

    def submit(self, request: Request, on_ready: OnReady | None) -> RemoteStream:
        id = next(self._ids)
        stream = RemoteStream(self, id, request, on_ready)
        with self._lock:
            self._streams[id] = stream
        try:
            self._call(messages.Submit(id, request, self._window))
        except BaseException:
            with self._lock:
                self._streams.pop(id, None)
            self.wire.send(messages.Cancel(id))  # it may have been taken after all, too late
            raise
        return stream

    def stats(self) -> dict[str, float]:
        reply = self._call(messages.AskStats(next(self._ids)))
        assert isinstance(reply, dict)
        return {**reply, "wakeups": self.wakeups}

    def info(self) -> ModelInfo:
        reply = self._call(messages.AskAbout(next(self._ids)))
        assert isinstance(reply, ModelInfo)
        return reply

    def clone(self, samples: Samples, transcript: str | None) -> ClonedVoice:
        reply = self._call(messages.Clone(next(self._ids), samples, transcript))
        assert isinstance(reply, ClonedVoice)
        return reply

    def _call(
        self, message: messages.Submit | messages.AskStats | messages.AskAbout | messages.Clone
    ) -> messages.Reply:
        answer: Future[messages.Reply] = Future()
        with self._lock:
            if self._over:
                raise self._down()
            self._calls[message.id] = answer
        self.wire.send(message)
        try:
            reply = answer.result(self._timeout)
        except TimeoutError:
            reply = EngineDown(f"the engine did not answer within {self._timeout:g} s", self._timeout)
        finally:
            with self._lock:
                self._calls.pop(message.id, None)
        if isinstance(reply, PolyvoxError):
            raise reply
        return reply

    def return_credit(self, id: int, chunks: int) -> None:
        """Goes with the next message about the ring, or at once where the engine could run out of it."""
        with self._lock:
            self._credit[id] += chunks
            if self._credit[id] < self._window // 2:
                return
            owed = {id: self._credit.pop(id)}
            position = self._ring.taken
        self.wire.send(messages.Taken(position, owed))

    def receive(self) -> None:
        """The receiving thread's work, until the connection ends."""
        try:
            while True:
                wakeup = self.wire.receive()
                assert isinstance(wakeup, messages.Wakeup)
                self.wakeups += 1
                self._wake(wakeup)
        except (EOFError, OSError) as error:
            log.debug("the connection to the engine has ended: %r", error)
        except Exception:
            log.exception("the connection to the engine is given up, as a message could not be read")

    def _wake(self, wakeup: messages.Wakeup) -> None:
        chunks: dict[int, list[Chunk]] = {id: [] for id in wakeup.ended}
        for id, number, samples, final in wakeup.pieces:
            chunks.setdefault(id, []).append(Chunk(self._ring.read(samples), number, final))
        with self._lock:
            for id, reply in wakeup.replies.items():
                if isinstance(reply, int) and id in self._streams:
                    self._streams[id].seed = reply
                if id in self._calls:
                    self._calls.pop(id).set_result(reply)
            streams = {id: self._streams[id] for id in chunks if id in self._streams}
            for id in wakeup.ended:
                self._streams.pop(id, None)
            owed, self._credit = self._credit, Counter()
        if wakeup.pieces or owed:
            self.wire.send(messages.Taken(self._ring.taken, owed))
        for id, stream in streams.items():
            stream.put(chunks[id], wakeup.ended.get(id))

    def end(self, error: str | None) -> None:
        """Ends all streams and calls, with an error or as cancelled; the receiving thread is out."""
        with self._lock:
            self._over = True
            streams, self._streams = list(self._streams.values()), {}
            calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.set_result(self._down())
        for stream in streams:
            stream.put([], Result("error" if error else "cancelled", stream.seed, error))
        self.wire.close()
        self._ring.close()


class RemoteEngine:
    """An engine behind a door. While its process is down, submit and stats raise EngineDown with a retry time.

    on_ready, where given, is called from the receiving thread when a stream has chunks to take, the last of them
    final; it must not wait, nor call submit or stats, whose answers come by the same thread.
    """

    def __init__(self, door: messages.EngineEndpoint, *, credit: int = CREDIT, timeout: float = 30.0) -> None:
        self.sample_rate = door.sample_rate
        self._door, self._credit, self._timeout = door, credit, timeout
        self._closed = threading.Event()
        self._connection = self._connect()
        self._thread = threading.Thread(target=self._stay_connected, name="polyvox-remote-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_ready: OnReady | None = None) -> RemoteStream:
        return self._live().submit(request, on_ready)

    def info(self) -> ModelInfo:
        return self._live().info()

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        return self._live().clone(samples, transcript)

    def stats(self) -> dict[str, float]:
        return self._live().stats()

    def close(self) -> None:
        """Ends this server's streams and its connection, not the engine's process."""
        self._closed.set()
        if (connection := self._connection) is not None:
            connection.wire.shutdown()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _live(self) -> _Connection:
        if (connection := self._connection) is None:
            raise self._down()
        return connection

    def _down(self) -> EngineDown:
        if self._closed.is_set() or not self._door.folder.exists():
            return EngineDown("the engine was closed", GIVEN_UP_SECONDS)
        with suppress(FileNotFoundError):
            return EngineDown(self._door.notice.read_text(), GIVEN_UP_SECONDS)
        seconds = max(1.0, self._door.start_seconds)
        return EngineDown(f"the engine is being started again; come back in {seconds:.0f} s", seconds)

    def _connect(self) -> _Connection | None:
        try:
            return _Connection(self._door, self._credit, self._timeout, self._down)
        except (EOFError, OSError) as error:
            log.debug("the engine does not answer: %r", error)
            return None

    def _stay_connected(self) -> None:
        while True:
            if (connection := self._connection) is not None:
                if self._closed.is_set():  # and close() may have come too early for this one
                    connection.wire.shutdown()
                connection.receive()
                self._connection = None
                connection.end(None if self._closed.is_set() else "the engine's process ended before this stream did")
            elif self._closed.is_set() or not self._door.folder.exists() or self._door.notice.exists():
                return  # it will not come back
            else:
                self._closed.wait(RECONNECT_SECONDS)
                self._connection = self._connect()
