# SPDX-License-Identifier: Apache-2.0
"""`AsyncEngine` for an engine in another process. It runs in the caller's event loop, without threads."""

import asyncio
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from polyvox.audio.pcm import NO_AUDIO
from polyvox.audio.samples import Samples
from polyvox.engine.async_engine import CALL_TIMEOUT, LiveText
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_status import MIN_RETRY_SECONDS, EngineState, EngineStatus
from polyvox.engine.interface import Chunk, Result
from polyvox.errors import EngineDown
from polyvox.ipc import messages
from polyvox.ipc.endpoint import EngineEndpoint, connect
from polyvox.ipc.framing import FrameConnection
from polyvox.ipc.status_file import LoadFile, StatusFile
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

ReplyT = TypeVar(
    "ReplyT",
    messages.SubmitReply,
    messages.StatsReply,
    messages.InfoReply,
    messages.CloneReply,
    messages.KeyReply,
)

CREDIT = 8  # chunks of a stream that may be buffered here
NUM_IMMEDIATE_TOKENS = 8  # messages with tokens of a stream that are sent at once
TOKEN_INTERVAL = 0.08  # seconds between later ones: a frame
WRITE_TIMEOUT = 10.0  # seconds in which the engine must read a message
RECONNECT_SECONDS = 0.05


class AsyncRemoteStream(LiveText):
    """A stream of an engine in another process. Its buffer never exceeds the stream's credit, and the end."""

    def __init__(self, connection: "_EngineConnection", id: int, request: Request) -> None:
        super().__init__(request)
        self._connection, self._id = connection, id
        self._buffer: deque[Chunk] = deque()
        self._next_index = 0
        self._changed = asyncio.Event()
        self._tokens: list[int] = []  # not sent yet
        self._num_token_messages = 0
        self._token_timer: asyncio.TimerHandle | None = None
        self.seed = request.seed or 0  # until the engine has chosen one
        self.result: Result | None = None
        self.replica: int | None = None  # the index of its engine, if there are several

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while True:
                while self._buffer:
                    chunk = self._buffer.popleft()
                    self._connection.return_credit(self._id)
                    if chunk.final and self.result is not None:
                        self.result.check()
                    yield chunk
                    if chunk.final:
                        return
                if self.result is not None:
                    return  # another reader got the end
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.cancel()

    @property
    def started(self) -> bool:
        """Whether it has delivered audio."""
        return self._next_index > 0

    def cancel(self) -> None:
        if self.result is None:
            self._connection.send(messages.Cancel(self._id))

    def _send_text(self, text: str) -> None:
        self._connection.send(messages.AppendText(self._id, text))

    def _send_rows(self, rows: NDArray[np.float32], last: bool) -> None:
        self._connection.send(messages.AppendRows(self._id, np.asarray(rows, np.float32), last))

    def _send_tokens(self, ids: list[int]) -> None:
        """Speech needs one token per frame, and a thinker writes many more: they are sent together."""
        self._tokens += ids
        if self._token_timer is None:
            self._flush_tokens()

    def _flush_tokens(self) -> None:
        if self._token_timer is not None:
            self._token_timer.cancel()
            self._token_timer = None
        if self._tokens and self.result is None:
            self._connection.send(messages.AppendTokens(self._id, self._tokens))
            self._num_token_messages += 1
            if self._num_token_messages >= NUM_IMMEDIATE_TOKENS:
                self._token_timer = asyncio.get_running_loop().call_later(TOKEN_INTERVAL, self._flush_tokens)
        self._tokens = []

    def _send_end(self) -> None:
        self._flush_tokens()
        self._connection.send(messages.FinishText(self._id))

    # Called by the connection

    def put(self, chunk: Chunk) -> None:
        if self.result is None:
            self._buffer.append(chunk)
            self._next_index += 1
            self._changed.set()

    def end(self, result: Result) -> None:
        """The final chunk and the result are put without a break, so a reader sees both."""
        if self.result is not None:
            return
        self.result = result
        if result.finish_reason in ("cancelled", "error"):  # the rest of the audio is not wanted
            self._buffer.clear()
            self._buffer.append(Chunk(NO_AUDIO, self._next_index, True))
        self._changed.set()


class _EngineConnection:
    """One connection to the engine, and the streams and calls that end with it."""

    def __init__(self, credit: int, timeout: float, name: str, down: Callable[[], EngineDown]) -> None:
        self._credit, self._timeout, self._name, self._down = credit, timeout, name, down
        self._ids = itertools.count()
        self._streams: dict[int, AsyncRemoteStream] = {}
        self._calls: dict[int, asyncio.Future[messages.Reply]] = {}
        self._consumed: Counter[int] = Counter()  # chunks that the engine does not know of yet
        self._frames = FrameConnection(WRITE_TIMEOUT, self._dispatch, self._on_close)
        self.closed = asyncio.Event()
        self.num_updates = 0

    async def open(self, endpoint: EngineEndpoint) -> None:
        """Raises OSError if the engine does not answer."""
        connected, self._ring = await connect(endpoint)
        try:
            await self._frames.start(connected)
        except BaseException:
            connected.close()
            self._ring.close()
            raise

    def send(self, message: messages.Message) -> None:
        """Never blocks. The message is dropped if the connection has ended."""
        self._frames.send(messages.encode(message))

    async def submit(self, request: Request) -> AsyncRemoteStream:
        id = next(self._ids)
        message = messages.Submit(id, msgspec.Raw(messages.encode(request)), self._credit)
        stream = self._streams[id] = AsyncRemoteStream(self, id, request)
        try:
            await self.call(message, messages.SubmitReply)
        except BaseException:
            self._streams.pop(id, None)
            self.send(messages.Cancel(id))  # the engine may still accept it later
            raise
        return stream

    def next_id(self) -> int:
        return next(self._ids)

    async def call(
        self,
        message: messages.Submit | messages.GetStats | messages.GetInfo | messages.Clone | messages.AcquireKey,
        reply_type: type[ReplyT],
    ) -> ReplyT:
        """Sends a message and waits for its reply; raises the error that the engine replied with."""
        if self.closed.is_set():
            raise self._down()
        answer = self._calls[message.id] = asyncio.get_running_loop().create_future()
        try:
            self.send(message)
            async with asyncio.timeout(self._timeout):
                reply = await answer
        except (TimeoutError, asyncio.CancelledError) as error:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._discard(answer.result())  # it came together with the timeout or the cancellation
            if isinstance(error, TimeoutError):
                raise EngineDown(f"{self._name} did not answer within {self._timeout:g} s.", self._timeout) from None
            raise
        finally:
            self._calls.pop(message.id, None)
        if isinstance(reply, messages.ErrorReply):
            raise reply.error()
        if not isinstance(reply, reply_type):
            raise TypeError(f"unexpected reply: {type(reply).__name__}")
        return reply

    def return_credit(self, id: int) -> None:
        """Credit goes with the next `Consumed`, or at once if the stream could run out of it."""
        self._consumed[id] += 1
        if self._consumed[id] >= self._credit // 2:
            self.send(messages.Consumed(self._ring.consumed, {id: self._consumed.pop(id)}))

    def abort(self) -> None:
        self._frames.abort()

    def end_streams(self, error: str | None) -> None:
        """Ends all streams, with an error or as cancelled. Requests without audio so far may be sent again."""
        streams, self._streams = list(self._streams.values()), {}
        retry_after = self._down().retry_after
        for stream in streams:
            if error is None:
                stream.end(Result("cancelled", stream.seed))
            else:
                stream.end(Result("error", stream.seed, error, retry_after=None if stream.started else retry_after))

    def _on_close(self) -> None:
        self.closed.set()
        self._ring.close()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self._down())

    def _dispatch(self, frame: bytes) -> None:
        update = messages.engine_decoder.decode(frame)
        self.num_updates += 1
        for reply in update.replies:
            self._on_reply(reply)
        for header in update.chunks:
            pcm = self._ring.read(header.num_samples)
            if (stream := self._streams.get(header.id)) is not None:
                stream.put(Chunk(pcm, header.index, header.final, header.times))
        if update.chunks:
            consumed, self._consumed = self._consumed, Counter()
            self.send(messages.Consumed(self._ring.consumed, consumed))
        for id, result in update.results.items():
            if (stream := self._streams.pop(id, None)) is not None:
                stream.end(result)

    def _on_reply(self, reply: messages.Reply) -> None:
        if isinstance(reply, messages.SubmitReply) and reply.id in self._streams:
            self._streams[reply.id].seed = reply.seed
        answer = self._calls.pop(reply.id, None)
        if answer is not None and not answer.done():
            answer.set_result(reply)
        else:
            self._discard(reply)

    def _discard(self, reply: messages.Reply) -> None:
        """Undoes a call whose caller timed out or was cancelled."""
        if isinstance(reply, messages.KeyReply) and reply.acquired:
            self.send(messages.ReleaseKey(reply.key))


class AsyncRemoteEngine:
    """Connects to an engine's process at the first call and reconnects by itself, all in the event loop of that call.

    While the process is down, calls raise EngineDown with a retry time.
    """

    def __init__(self, endpoint: EngineEndpoint, *, credit: int = CREDIT, timeout: float = CALL_TIMEOUT) -> None:
        self._endpoint, self._credit, self._timeout = endpoint, credit, timeout
        self._status_file, self._load_file = StatusFile(endpoint.folder), LoadFile(endpoint.folder)
        self._sample_rate = 0
        self._connection: _EngineConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._first_attempt = asyncio.Event()
        self._keys: Counter[str] = Counter()  # counts that this server holds
        self._closed = False

    @property
    def sample_rate(self) -> int:
        self._sample_rate = self._sample_rate or self.status().sample_rate
        return self._sample_rate

    def status(self) -> EngineStatus:
        if self._closed or not self._endpoint.folder.exists():
            return EngineStatus(EngineState.CLOSED, sample_rate=self._sample_rate)
        return self._status_file.read()

    @property
    def replica(self) -> int | None:
        return self._endpoint.replica

    @property
    def replicas(self) -> tuple["AsyncRemoteEngine"]:
        return (self,)

    def load(self) -> EngineLoad:
        """The last report of the process's load."""
        return self._load_file.read()

    async def submit(self, request: Request) -> AsyncRemoteStream:
        connection = await self._connected()
        if request.segment == 0 and self.load().draining:
            seconds = max(MIN_RETRY_SECONDS, self.status().start_seconds)
            raise EngineDown(f"{self._endpoint.name} is draining. Try again in {seconds:.0f} s.", seconds)
        stream = await connection.submit(request)
        stream.replica = self.replica
        return stream

    async def info(self) -> ModelInfo:
        connection = await self._connected()
        return (await connection.call(messages.GetInfo(connection.next_id()), messages.InfoReply)).info

    async def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        connection = await self._connected()
        message = messages.Clone(connection.next_id(), np.asarray(samples, np.float32), transcript)
        return (await connection.call(message, messages.CloneReply)).voice

    async def stats(self) -> dict[str, float]:
        connection = await self._connected()
        reply = await connection.call(messages.GetStats(connection.next_id()), messages.StatsReply)
        return {**reply.stats, "updates": connection.num_updates}

    async def acquire_key(self, key: str, limit: int) -> bool:
        connection = await self._connected()
        message = messages.AcquireKey(connection.next_id(), key, limit)
        acquired = (await connection.call(message, messages.KeyReply)).acquired
        if acquired:
            self._keys[key] += 1
        return acquired

    def hold_key(self, key: str) -> None:
        """Counts a request of a key that another engine has admitted."""
        self._keys[key] += 1
        if self._connection is not None:
            self._connection.send(messages.RestoreKeys({key: 1}))

    def release_key(self, key: str) -> None:
        if not self._keys[key]:
            raise ValueError("release_key without acquire_key")
        self._keys[key] -= 1
        if not self._keys[key]:
            del self._keys[key]
        if self._connection is not None:
            self._connection.send(messages.ReleaseKey(key))

    async def close(self) -> None:
        """Ends this server's streams and its connection, not the engine's process."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._status_file.close()
        self._load_file.close()

    async def _connected(self) -> _EngineConnection:
        if self._closed:
            raise self._down()
        if self._task is None:
            self._task = asyncio.create_task(self._stay_connected(), name="polyvox-engine-connection")
            self._task.add_done_callback(lambda _: self._first_attempt.set())  # calls that wait for it fail
        await self._first_attempt.wait()
        if self._connection is None:
            raise self._down()
        return self._connection

    def _down(self) -> EngineDown:
        status = self.status()
        if status.running:  # it has just failed, or does not accept connections
            status = replace(status, state=EngineState.RESTARTING)
        return status.error(time.monotonic(), self._endpoint.name)

    async def _stay_connected(self) -> None:
        while self.status().state is not EngineState.CLOSED:
            connection = _EngineConnection(self._credit, self._timeout, self._endpoint.name, self._down)
            try:
                await connection.open(self._endpoint)
            except Exception as error:  # this task must not end before the engine does
                expected = isinstance(error, OSError)
                log.log(logging.DEBUG if expected else logging.WARNING, "engine not reachable error=%r", error)
                connection.abort()
                self._first_attempt.set()
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            try:
                if self._keys:
                    connection.send(messages.RestoreKeys(dict(self._keys)))
                self._connection = connection
                self._first_attempt.set()
                await connection.closed.wait()
            finally:
                self._connection = None
                connection.abort()
                reason = f"{self._endpoint.name}'s process ended before the stream did."
                connection.end_streams(None if self._closed else reason)
                await connection.closed.wait()
