# SPDX-License-Identifier: Apache-2.0
"""The engine's end of the connection to one server process.

All of it runs in the I/O loop of the engine's process. The engine's thread only wakes that loop, once for all streams
of a step, so that no server can delay the engine or another server.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

from polyvox.engine.engine_lock import LOCK_RETRY, LOCK_TIMEOUT
from polyvox.engine.interface import ChunkParts, InProcessEngine, Result, Stream
from polyvox.engine.key_counts import KeyCounts
from polyvox.engine.preparation import MAX_INLINE_CHARS, PreparationPool, TextWriter, as_polyvox_error
from polyvox.errors import EngineDown, Overloaded
from polyvox.ipc import messages
from polyvox.ipc.acquired_keys import AcquiredKeys
from polyvox.ipc.audio_ring import AudioRing
from polyvox.ipc.framing import FrameConnection
from polyvox.ipc.ring_queue import RingQueue

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STATS_REQUESTS = 1024  # of one server that may wait for the engine's lock
MAX_INLINE_BYTES = 2048  # of an encoded request that the loop may prepare itself: no recordings, no long texts


@dataclass(slots=True)
class _Delivery:
    """A stream of this server."""

    credit: int
    stream: Stream | None = None  # None until the engine has accepted the request
    writer: TextWriter | None = None

    def result(self) -> Result | None:
        assert self.stream is not None
        return (self.writer.failure if self.writer else None) or self.stream.result


class WorkerConnection:
    """One server: its streams, ring, credits and counts of keys, which are all released when it disconnects.

    timeout: seconds after which a server that consumes nothing is disconnected. on_close: called once, at the end.
    """

    def __init__(
        self,
        engine: InProcessEngine,
        pool: PreparationPool,
        keys: KeyCounts,
        ring: AudioRing,
        timeout: float,
        on_close: Callable[["WorkerConnection"], None] = lambda _: None,
    ) -> None:
        self._engine, self._pool, self._timeout = engine, pool, timeout
        self._keys, self._outgoing = AcquiredKeys(keys), RingQueue(ring)
        self._on_close = on_close
        self.frames = FrameConnection(timeout, self._receive, self._close, self._on_writable)
        self._loop = asyncio.get_running_loop()
        self._deliveries: dict[int, _Delivery] = {}
        self._ids: dict[Stream, int] = {}  # of the streams in `_deliveries` that the engine has accepted
        self._replies: list[messages.Reply] = []
        self._stats_requests: list[int] = []  # ids of those that wait for the engine's lock
        self._lock_timeout = LOCK_TIMEOUT  # of the next attempt to take something from the engine
        self._stall_timer = self._loop.call_later(timeout, self._check_stalled)
        # Streams that may have chunks: the steps' lists. The engine's thread appends, then checks the flag; the loop
        # clears the flag, then takes the lists: so none is missed.
        self._ready: deque[Sequence[Stream]] = deque()
        self._flush_scheduled = False

    # Messages from the server

    def _receive(self, frame: bytes) -> None:
        self._dispatch(messages.server_decoder.decode(frame))

    def _dispatch(self, message: messages.ServerMessage) -> None:
        match message:
            case messages.Submit():
                self._submit(message)
            case messages.Consumed():
                self._on_consumed(message)
            case messages.AppendText(id, text):
                small = len(text) <= MAX_INLINE_CHARS
                self._write(id, lambda stream: partial(stream.append, text), small)
            case messages.AppendRows(id, rows, last):
                self._write(id, lambda stream: partial(stream.append_rows, rows, last))
            case messages.AppendTokens(id, tokens):
                self._write(id, lambda stream: partial(stream.append_tokens, tokens))
            case messages.FinishText(id):
                self._write(id, lambda stream: stream.finish_text, small=True)
            case messages.Cancel(id):
                self._cancel(id)
            case messages.GetStats(id):
                self._get_stats(id)
            case messages.GetInfo(id):
                self._get_info(id)
            case messages.Clone():
                self._clone(message)
            case messages.AcquireKey(id, key, limit):
                self._reply(messages.KeyReply(id, key, self._keys.acquire(key, limit)))
            case messages.ReleaseKey(key):
                self._keys.release(key)
            case messages.RestoreKeys(counts):
                self._keys.restore(counts)

    def _submit(self, message: messages.Submit) -> None:
        id = message.id
        if id in self._deliveries:
            raise ValueError(f"stream {id} already exists")
        self._deliveries[id] = _Delivery(message.credit)

        def submit() -> Stream:
            return self._engine.submit(messages.decode_request(message.request), on_ready=self._notify)

        def submit_inline() -> Stream | None:
            return self._engine.submit_inline(messages.decode_request(message.request), on_ready=self._notify)

        outcome = self._pool.run_inline(submit_inline) if len(message.request) <= MAX_INLINE_BYTES else None
        if outcome is None or (outcome.exception() is None and outcome.result() is None):
            self._prepare(id, submit, self._on_submitted)
        else:
            self._on_submitted(id, cast("Future[Stream]", outcome))

    def _on_submitted(self, id: int, job: "Future[Stream]") -> None:
        if (error := job.exception()) is not None:
            if isinstance(error, EngineDown):
                log.critical("engine broken error=%s", error)
                os._exit(1)
            self._deliveries.pop(id, None)
            self._reply_error(id, error)
            return
        stream, delivery = job.result(), self._deliveries.get(id)
        if delivery is None or self.frames.closed:
            stream.cancel()
            return
        delivery.stream, self._ids[stream] = stream, id
        delivery.writer = TextWriter(self._pool, stream, on_failure=lambda: self._notify([stream]))
        self._ready.append([stream])  # chunks that came before the stream was known here
        self._reply(messages.SubmitReply(id, stream.seed))

    def _clone(self, message: messages.Clone) -> None:
        def on_cloned(id: int, job: "Future[messages.CloneReply]") -> None:
            if (error := job.exception()) is not None:
                self._reply_error(id, error)
            else:
                self._reply(job.result())

        def clone() -> messages.CloneReply:
            return messages.CloneReply(message.id, self._engine.clone(message.samples, message.transcript))

        self._prepare(message.id, clone, on_cloned, self._pool.submit_clone)

    def _prepare(
        self,
        id: int,
        work: Callable[[], T],
        on_done: Callable[[int, "Future[T]"], None],
        start: Callable[[Callable[[], T]], "Future[T]"] | None = None,
    ) -> None:
        """Does the work in a thread of the pool, then calls on_done in the loop. start: by default that of requests."""

        def finished(job: "Future[T]") -> None:
            if not job.cancelled():
                with suppress(RuntimeError):  # the loop is closed: the process ends
                    self._loop.call_soon_threadsafe(on_done, id, job)

        def unless_closed() -> T:
            if self.frames.closed:
                raise ConnectionError("the server is disconnected")
            return work()

        try:
            (start or self._pool.submit)(unless_closed).add_done_callback(finished)
        except Exception as error:
            self._deliveries.pop(id, None)
            self._reply_error(id, error)

    def _write(self, id: int, bind: Callable[[Stream], Callable[[], None]], small: bool = False) -> None:
        delivery = self._deliveries.get(id)
        if delivery is None:
            return  # the stream has ended
        if delivery.stream is None or delivery.writer is None:
            raise ValueError(f"text for stream {id}, which is not accepted yet")
        # The first text of a stream is prepared with its voice, and waits for admission control: in a thread.
        delivery.writer.write(bind(delivery.stream), small and not delivery.stream.awaits_text)

    def _cancel(self, id: int) -> None:
        if (delivery := self._deliveries.get(id)) is None:
            return
        if delivery.stream is None:
            del self._deliveries[id]  # the stream is cancelled when the engine has accepted it
        elif (result := delivery.stream.result) is None:
            delivery.stream.cancel()
        else:  # all its audio is generated, and the rest of it will not be read
            self._forget(id, delivery.stream)
            self._outgoing.add_result(id, replace(result, finish_reason="cancelled"))
            self._schedule_flush()

    def _on_consumed(self, message: messages.Consumed) -> None:
        self._outgoing.release(message.position)
        resumed: list[Stream] = []
        for id, count in message.chunks.items():
            if (delivery := self._deliveries.get(id)) is not None:
                if delivery.credit == 0 and delivery.stream is not None:
                    resumed.append(delivery.stream)
                delivery.credit += count
        if resumed:
            self._ready.append(resumed)
        if self._outgoing or self._ready:
            self._schedule_flush()

    # Messages to the server

    def _get_info(self, id: int) -> None:
        try:
            self._reply(messages.InfoReply(id, self._engine.info()))
        except Exception as error:  # streams of this server continue
            self._reply_error(id, error)

    def _get_stats(self, id: int) -> None:
        """The statistics of the engine, as soon as its lock is free."""
        if len(self._stats_requests) < MAX_STATS_REQUESTS:
            self._stats_requests.append(id)
            self._schedule_flush()
        else:
            self._reply_error(id, Overloaded("too many requests for statistics are pending", 1.0, "queue_full"))

    def _send_stats(self) -> None:
        """One call of the engine for all pending requests; the caller has the engine's lock."""
        ids, self._stats_requests = self._stats_requests, []
        try:
            stats = self._engine.stats()
            self._replies += [messages.StatsReply(id, stats) for id in ids]
        except Exception as error:  # streams of this server continue
            for id in ids:
                self._reply_error(id, error)

    def _reply(self, reply: messages.Reply) -> None:
        self._replies.append(reply)
        self._schedule_flush()

    def _reply_error(self, id: int, error: BaseException) -> None:
        if not isinstance(error, Exception):
            raise error
        if not self.frames.closed:
            self._reply(messages.ErrorReply.of(id, as_polyvox_error(error)))

    def _notify(self, streams: Sequence[Stream]) -> None:
        """Any thread: these streams may have chunks or their result. One update has all of them."""
        self._ready.append(streams)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            with suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._flush)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Sends one update with all that is new, as far as the ring and the socket have capacity."""
        self._flush_scheduled = False
        if self.frames.closed:
            return
        if not self.frames.writable:
            self.frames.pause_reading()  # until the server reads: else replies would pile up
            return
        try:
            is_locked = not self._collect()
            chunks, results = self._outgoing.fill_ring()
            if self._replies or chunks or results:
                replies, self._replies = self._replies, []
                self.frames.send(messages.encode(messages.Update(replies, chunks, results)))
            if is_locked:
                self._loop.call_later(LOCK_RETRY, self._schedule_flush)
            elif self._ready and not self._outgoing:  # they waited for what was sent now
                self._schedule_flush()
        except Exception:
            log.exception("worker disconnected reason=%s", "its streams cannot be read")
            self.frames.abort()

    def _on_writable(self) -> None:
        self.frames.resume_reading()
        self._schedule_flush()

    def _take_ready(self) -> Iterable[Stream]:
        """The ready streams, each once."""
        ready = dict.fromkeys(self._ready.popleft())
        while self._ready:
            ready |= dict.fromkeys(self._ready.popleft())
        return ready

    def _collect(self) -> bool:
        """Takes statistics and chunks of ready streams from the engine; False if its lock is not free."""
        takes_chunks = bool(self._ready) and not self._outgoing
        if not takes_chunks and not self._stats_requests:
            return True
        found: list[tuple[int, _Delivery, Stream, Result | None]] = []
        for stream in self._take_ready() if takes_chunks else ():
            if (id := self._ids.get(stream)) is not None:
                delivery = self._deliveries[id]
                # A cancelled or failed stream ends at once, however much its reader has left unread.
                found.append((id, delivery, stream, _cut_short(delivery.result())))
        # As far as the credit of each stream goes
        wanted = [(stream, 0 if ended else delivery.credit) for _, delivery, stream, ended in found]
        with self._engine.try_lock(self._lock_timeout) as locked:
            self._lock_timeout = LOCK_TIMEOUT if locked else 0.0
            if not locked:
                if wanted:
                    self._ready.appendleft([stream for stream, _ in wanted])
                return False
            taken = self._engine.take_all(wanted) if wanted else []
            if self._stats_requests:
                self._send_stats()
        for (id, delivery, stream, ended), chunks in zip(found, taken, strict=True):
            delivery.credit -= len(chunks)
            result = self._enqueue(id, delivery, stream, chunks) or ended
            if result is not None:
                self._outgoing.add_result(id, result)
                self._forget(id, stream)
        return True

    def _forget(self, id: int, stream: Stream) -> None:
        del self._deliveries[id], self._ids[stream]

    def _enqueue(self, id: int, delivery: _Delivery, stream: Stream, chunks: Sequence[ChunkParts]) -> Result | None:
        """Queues chunks for the ring; the stream's result if it ends with them."""
        for chunk in chunks:
            size, max_samples = chunk.size, self._outgoing.max_samples
            if size > max_samples:
                stream.cancel()
                error = f"A chunk of {size} samples exceeds the ring's capacity of {max_samples}."
                return Result("error", stream.seed, error)
            self._outgoing.add_chunk(id, chunk)
            if chunk.final:
                return delivery.result()
        return None

    # The end

    def close(self) -> None:
        """Disconnects the server. Idempotent."""
        self.frames.abort()

    def _check_stalled(self) -> None:
        left = self._timeout - self._outgoing.stalled_seconds
        if left <= 0:
            log.warning("worker disconnected reason=%s", f"it consumed no audio for {self._timeout:g} s")
            self.frames.abort()
            return
        self._stall_timer = self._loop.call_later(left, self._check_stalled)

    def _close(self) -> None:
        self._stall_timer.cancel()
        self._keys.release_all()
        deliveries, self._deliveries, self._ids = list(self._deliveries.values()), {}, {}
        for delivery in deliveries:
            if delivery.stream is not None:
                delivery.stream.cancel()
        self._outgoing.close()
        log.info("worker disconnected streams=%d", len(deliveries))
        self._on_close(self)


def _cut_short(result: Result | None) -> Result | None:
    return result if result is not None and result.finish_reason in ("cancelled", "error") else None
