"""The engine in a process of its own: it lets servers in, and gives each of them the chunks of its streams.

Every server has two threads here: one hears its messages, one sends. The engine's thread only leaves a note that a
stream is ready, so that no server can delay it, or another server.
"""

import faulthandler
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from polyvox.audio.clip import Samples
from polyvox.engine.interface import Chunk, InProcessEngine, Result, Stream
from polyvox.errors import EngineDown, PolyvoxError
from polyvox.ipc import messages
from polyvox.ipc.audio_ring import AudioRing
from polyvox.models.request import Request

log = logging.getLogger(__name__)

MAX_TEXTS = 10_000  # pieces of one stream that wait to be read
SUBMITTERS = 4  # requests of one server that may be prepared at once
# The engine's thread gives the interpreter up at each call to the device, and must have it back soon.
SWITCH_SECONDS = 1e-4
NOTHING: Samples = np.zeros(0, np.float32)
BEATS = 10  # signs of life in the time after which a process without any is ended


@dataclass(frozen=True, slots=True)
class EngineProcessConfig:
    """How the process treats its servers, how it ends, and when it is given up."""

    ring_samples: int = 1 << 22  # for each server: 16 MiB, three minutes of speech
    patience: float = 10.0  # seconds after which a server that takes nothing is let go
    grace: float = 1.5  # seconds to end in, before it is killed
    start_timeout: float = 600.0
    hang_seconds: float = 30.0  # that a step may take: a device that stalls for some seconds comes back by itself
    failures: int = 3  # so many of them
    window: float = 60.0  # in so many seconds


@dataclass(slots=True)
class _Delivery:
    """A stream on its way to a server."""

    credit: int
    stream: Stream | None = None  # None until the engine has taken the request
    failure: Result | None = None  # its end, where that came of a message and not of the engine
    texts: deque[messages.Append] = field(default_factory=deque)
    writing: bool = False  # a thread is at them


class WorkerConnection:
    """One server: its streams, its ring, its credits; all of them are released when it goes."""

    def __init__(
        self, engine: InProcessEngine, line: messages.MessageChannel, ring: AudioRing, patience: float
    ) -> None:
        self._engine, self._wire, self._ring, self._patience = engine, line, ring, patience
        self._news = threading.Condition()  # guards all that follows; the engine is never called under it
        self._closing = False
        self._deliveries: dict[int, _Delivery] = {}
        self._ready: dict[int, None] = {}  # streams that may have something to take
        self._replies: dict[int, messages.Reply] = {}
        self._heard = time.monotonic()  # when the ring was last empty or last emptied
        # Only the sender's: what was taken from streams and is not yet in the ring.
        self._held: deque[tuple[int, messages.Piece | Result, Samples]] = deque()
        self._sender = threading.Thread(target=self._send, name="polyvox-server-sender", daemon=True)
        self._hearer = threading.Thread(target=self._hear, name="polyvox-server-hearer", daemon=True)
        self._sender.start()
        self._hearer.start()

    @property
    def gone(self) -> bool:
        return not self._hearer.is_alive()

    def close(self) -> None:
        """Lets the server go; any number of times."""
        self._wire.shutdown()
        self._hearer.join()

    # The hearing thread

    def _hear(self) -> None:
        # Preparing a request may take a while, and credits must not wait for it: other threads submit.
        with ThreadPoolExecutor(SUBMITTERS, thread_name_prefix="polyvox-server-submit") as submitting:
            try:
                while True:
                    self._obey(self._wire.receive(), submitting)
            except EOFError:
                log.debug("a server has gone")
            except OSError as error:
                log.info("a server has gone: %r", error)
            except Exception:
                log.exception("a server is let go, as a message of it could not be served")
            submitting.shutdown(wait=False, cancel_futures=True)
            with self._news:
                self._closing = True
                self._news.notify()
            self._wire.shutdown()
            self._sender.join()
            for delivery in list(self._deliveries.values()):
                if delivery.stream is not None:
                    delivery.stream.cancel()
        self._wire.close()
        self._ring.close()

    def _obey(self, message: object, submitting: ThreadPoolExecutor) -> None:
        match message:
            case messages.Submit(id, request, credit):
                with self._news:
                    self._deliveries[id] = _Delivery(credit)
                submitting.submit(self._submit, id, request)
            case messages.Taken(position, chunks):
                self._taken(position, chunks)
            case messages.AskStats(id):
                self._note(id, self._engine.stats())
            case messages.AskAbout(id):
                self._note(id, self._engine.info())
            case messages.Clone():
                submitting.submit(self._clone, message)
            case messages.Append():
                self._queue(message, submitting)
            case messages.Cancel():
                self._change(message)
            case _:
                raise TypeError(f"a message of an unknown kind: {type(message).__name__}")

    def _queue(self, message: messages.Append, submitting: ThreadPoolExecutor) -> None:
        """Text of one stream is taken in order, but in another thread: a first word has its whole request prepared."""
        with self._news:
            delivery = self._deliveries.get(message.id)
            if delivery is None:
                return
            if len(delivery.texts) >= MAX_TEXTS:
                raise ConnectionError(f"more than {MAX_TEXTS} pieces of text wait for one stream")
            delivery.texts.append(message)
            if delivery.writing:
                return
            delivery.writing = True
        submitting.submit(self._write, delivery)

    def _write(self, delivery: _Delivery) -> None:
        while True:
            with self._news:
                if not delivery.texts:
                    delivery.writing = False
                    return
                message = delivery.texts.popleft()
            self._change(message)

    def _change(self, message: messages.Append | messages.Cancel) -> None:
        with self._news:
            delivery = self._deliveries.get(message.id)
            if delivery is None:
                return  # it has ended meanwhile
            if (stream := delivery.stream) is None:
                del self._deliveries[message.id]  # whoever asked for it waits no longer; _submit cancels it
                return
            if stream.result is not None:
                return  # its end is on its way
        try:
            match message:
                case messages.Cancel():
                    stream.cancel()
                case messages.Append(_, None):
                    stream.finish_text()
                case messages.Append(_, str(text)):
                    stream.append(text)
                case messages.Append(_, np.ndarray() as rows, last):
                    stream.append_rows(rows, last)
        except Exception as error:
            # Nobody waits for an answer to these, so the stream itself tells what was wrong.
            told = _told(error)
            delivery.failure = Result("error", stream.seed, str(told), retry_after=getattr(told, "retry_after", None))
            self._note(message.id)
            stream.cancel()

    def _submit(self, id: int, request: Request) -> None:
        try:
            stream = self._engine.submit(request, on_ready=lambda _: self._note(id))
        except EngineDown as error:
            log.critical("the engine is broken, and its process ends: %s", error)
            os._exit(1)
        except Exception as error:
            with self._news:
                self._deliveries.pop(id, None)
            self._note(id, _told(error))
            return
        with self._news:
            delivery = self._deliveries.get(id)
            if delivery is not None and not self._closing:
                delivery.stream = stream
                self._note(id, stream.seed)
                return
        stream.cancel()

    def _clone(self, asked: messages.Clone) -> None:
        try:
            self._note(asked.id, self._engine.clone(asked.samples, asked.transcript))
        except Exception as error:
            self._note(asked.id, _told(error))

    def _taken(self, position: int, chunks: dict[int, int]) -> None:
        with self._news:
            self._ring.release(position)
            self._heard = time.monotonic()
            for id, count in chunks.items():
                if (delivery := self._deliveries.get(id)) is not None:
                    if delivery.credit == 0:
                        self._ready[id] = None
                    delivery.credit += count
            self._news.notify()

    def _note(self, id: int, reply: messages.Reply | None = None) -> None:
        """For the sending thread: an answer, and that a stream may have something to take."""
        with self._news:
            # Else it was told, and finds this one too; streams that are ready may wait for the ring, answers do not.
            if not self._replies and (reply is not None or not self._ready):
                self._news.notify()
            if reply is not None:
                self._replies[id] = reply
            self._ready[id] = None

    # The sending thread

    def _send(self) -> None:
        try:
            while (news := self._await_news()) is not None:
                replies, ready = news
                if ready:
                    self._collect(ready)
                pieces, ended = self._fill()
                if replies or pieces or ended:
                    self._wire.send(messages.Wakeup(replies, pieces, ended))
        except Exception:
            log.exception("a server is let go, as its streams could not be collected")
        self._wire.shutdown()  # the hearing thread releases everything

    def _await_news(self) -> tuple[dict[int, messages.Reply], dict[int, None]] | None:
        """Waits for something to send: answers, and streams that are ready; None where there will be nothing."""
        with self._news:
            while not self._closing:
                if self._replies or (self._fits() if self._held else self._ready):
                    replies, self._replies = self._replies, {}
                    ready: dict[int, None] = {}
                    if not self._held:  # else what is ready waits until that has gone
                        ready, self._ready = self._ready, {}
                    return replies, ready
                outstanding = self._ring.written > self._ring.taken
                left = self._heard + self._patience - time.monotonic()
                if outstanding and left <= 0:
                    log.warning("a server took nothing for %g s and is let go", self._patience)
                    return None
                self._news.wait(left if outstanding else None)
            return None

    def _collect(self, ready: Iterable[int]) -> None:
        """Takes what streams have, as far as their readers' credit goes; an end comes with its final chunk."""
        asked: list[tuple[int, _Delivery, Stream, int]] = []
        with self._news:
            for id in ready:
                delivery = self._deliveries.get(id)
                if delivery is not None and delivery.stream is not None:
                    asked.append((id, delivery, delivery.stream, delivery.credit))
                    delivery.credit = 0  # so that credit which comes meanwhile makes the stream ready again
        # A stream that was cut short ends at once, however far behind its reader is.
        early = [_cut_short(delivery.failure or stream.result) for _, delivery, stream, _ in asked]
        found = self._engine.take_all(
            [(stream, 0 if cut else credit) for (_, _, stream, credit), cut in zip(asked, early, strict=True)]
        )
        ended = [
            self._hold(id, delivery, stream, chunks, cut)
            for (id, delivery, stream, _), chunks, cut in zip(asked, found, early, strict=True)
        ]
        with self._news:
            for (id, delivery, _, credit), chunks, over in zip(asked, found, ended, strict=True):
                delivery.credit += credit - len(chunks)
                if over:
                    self._deliveries.pop(id, None)

    def _hold(self, id: int, delivery: _Delivery, stream: Stream, chunks: list[Chunk], result: Result | None) -> bool:
        """Keeps chunks for the ring, and directly behind the last of them the stream's end; whether it has ended."""
        for chunk in chunks:
            size = len(chunk.samples)
            if size > self._ring.capacity:
                stream.cancel()
                error = f"a chunk of {size} samples is more than the ring of {self._ring.capacity}"
                result = Result("error", stream.seed, error)
                break
            self._held.append((id, messages.Piece(id, chunk.index, size, chunk.final), chunk.samples))
            if chunk.final:
                result = delivery.failure or stream.result
        if result is not None:
            self._held.append((id, result, NOTHING))
        return result is not None

    def _fill(self) -> tuple[list[messages.Piece], dict[int, Result]]:
        """Moves what is held into the ring, until that is full; not under the lock, as the engine waits for it."""
        pieces, ended = [], {}
        while self._held and self._fits():
            id, item, samples = self._held.popleft()
            if isinstance(item, Result):
                ended[id] = item
                continue
            if self._ring.written == self._ring.taken:
                self._heard = time.monotonic()
            self._ring.write(samples)
            pieces.append(item)
        return pieces, ended

    def _fits(self) -> bool:
        return len(self._held[0][2]) <= self._ring.room


def _cut_short(result: Result | None) -> Result | None:
    return result if result is not None and result.finish_reason in ("cancelled", "error") else None


def _told(error: Exception) -> PolyvoxError:
    """What a server hears of an error."""
    if isinstance(error, PolyvoxError):
        return error
    log.error("the engine failed at a request", exc_info=error)
    return PolyvoxError(f"the engine failed at this request: {type(error).__name__}: {error}")


def host(
    factory: Callable[[], InProcessEngine], folder: Path, hosting: EngineProcessConfig, lifeline: Connection
) -> None:
    """The life of the process: builds the engine, lets servers in, ends when the lifeline does.

    The lifeline hears the engine's sample rate, or why there is none; after that it hears a beat again and again, but
    none while the engine does not answer or its step takes longer than a beat.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal or a service manager sends them to all
        signal.signal(number, signal.SIG_IGN)  # and the supervisor decides
    stop, stopping = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1)  # how the supervisor asks for the stacks of all threads
            (folder / messages.SOCKET).unlink(missing_ok=True)  # of a process before this one
            listener.bind(str(folder / messages.SOCKET))  # before the folder may be removed
            threading.Thread(target=_hold_on, args=(lifeline, stopping, folder, hosting.grace), daemon=True).start()
            engine = factory()
            gc.collect()
            gc.freeze()  # what a start leaves behind is not searched again: that held every stream for 130 ms
            listener.listen()
            lifeline.send(engine.sample_rate)
        except Exception as error:
            log.exception("the engine could not be built")
            with suppress(OSError):  # nobody is there to be told
                lifeline.send(f"{type(error).__name__}: {error}")
            return
        links: list[WorkerConnection] = []
        beat = hosting.hang_seconds / BEATS
        while stop not in (ready := wait([listener, stop], beat)):
            # Streams that wait for text or for their reader are in no step, so they never look like a hang.
            stats = engine.stats()
            if stats.get("broken"):
                log.critical("the engine is broken, and its process ends")
                os._exit(1)
            if stats.get("stuck_seconds", 0.0) <= beat:
                with suppress(OSError):  # the supervisor is gone, and _hold_on knows
                    lifeline.send(None)
            links = [link for link in links if not link.gone]
            if listener in ready:
                try:
                    line, ring = messages.let_in(listener.accept()[0], hosting.ring_samples, hosting.patience)
                except OSError as error:
                    log.warning("a server could not be let in: %s", error)
                    wait([stop], timeout=0.1)  # whatever it lacks, files perhaps, does not come by asking faster
                else:
                    links.append(WorkerConnection(engine, line, ring, hosting.patience))
    for link in links:
        link.close()
    engine.close()
    os._exit(0)  # all is closed; to take an interpreter with torch apart would last most of the grace


def _hold_on(lifeline: Connection, stopping: socket.socket, folder: Path, grace: float) -> None:
    """Waits for the lifeline's end. A supervisor that ends without a word leaves neither engine nor folder behind."""
    try:
        lifeline.recv()
    except (EOFError, OSError) as error:
        log.warning("the supervisor is gone, and the engine ends: %r", error)
        shutil.rmtree(folder, ignore_errors=True)
    stopping.close()
    time.sleep(grace)
    os._exit(1)  # something did not end in time
