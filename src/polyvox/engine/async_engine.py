# SPDX-License-Identifier: Apache-2.0
"""`AsyncEngine` for an engine in the same process."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.samples import Samples
from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.engine.interface import Chunk, Engine, Result, Stream
from polyvox.engine.key_counts import KeyCounts
from polyvox.engine.preparation import MAX_INLINE_CHARS, PreparationPool, TextWriter, as_polyvox_error
from polyvox.errors import NOT_SHOWN, EngineDown, InvalidRequest, PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

T = TypeVar("T")

CALL_TIMEOUT = 30.0  # seconds


class LiveText(ABC):
    """The text methods of an `AsyncStream`: text is sent while it is open."""

    def __init__(self, request: Request) -> None:
        self._text_open = request.live

    def append(self, text: str) -> None:
        self._check_open()
        self._send_text(text)

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        self._check_open()
        self._text_open = not last
        self._send_rows(rows, last)

    def append_tokens(self, ids: Sequence[int]) -> None:
        self._check_open()
        self._send_tokens(list(ids))

    def finish_text(self) -> None:
        if self._text_open:
            self._text_open = False
            self._send_end()

    def _check_open(self) -> None:
        if not self._text_open:
            raise InvalidRequest("append", NOT_SHOWN, "requires a live request whose text is not finished")

    @abstractmethod
    def _send_text(self, text: str) -> None: ...

    @abstractmethod
    def _send_rows(self, rows: NDArray[np.float32], last: bool) -> None: ...

    @abstractmethod
    def _send_tokens(self, ids: list[int]) -> None: ...

    @abstractmethod
    def _send_end(self) -> None: ...


class AsyncLocalStream(LiveText):
    """A stream of an engine in the same process."""

    def __init__(self, stream: Stream, request: Request, pool: PreparationPool) -> None:
        super().__init__(request)
        self._stream, self._writer = stream, TextWriter(pool, stream)
        self.replica: int | None = None

    @property
    def seed(self) -> int:
        return self._stream.seed

    @property
    def result(self) -> Result | None:
        result = self._stream.result
        return result if result is None else self._writer.failure or result

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        async with aclosing(aiter(self._stream)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                if chunk.final and self._writer.failure is not None:
                    self._writer.failure.check()
                yield chunk

    def cancel(self) -> None:
        self._stream.cancel()

    def _send_text(self, text: str) -> None:
        small = len(text) <= MAX_INLINE_CHARS and not self._stream.awaits_text
        self._writer.write(partial(self._stream.append, text), small)

    def _send_rows(self, rows: NDArray[np.float32], last: bool) -> None:
        self._writer.write(partial(self._stream.append_rows, rows, last))

    def _send_tokens(self, ids: list[int]) -> None:
        self._writer.write(partial(self._stream.append_tokens, ids))

    def _send_end(self) -> None:
        self._writer.write(self._stream.finish_text, small=not self._stream.awaits_text)


class AsyncLocalEngine:
    """Calls an engine in the same process from an event loop. Requests are prepared in a pool of threads."""

    def __init__(
        self, engine: Engine, timeout: float = CALL_TIMEOUT, status: Callable[[], EngineStatus] | None = None
    ) -> None:
        """status: of an engine that is started and restarted; by default it counts as running."""
        self.engine, self._timeout, self._status = engine, timeout, status
        self._pool, self._keys = PreparationPool(), KeyCounts()
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="polyvox-query")  # they wait for the engine's lock
        self.replica: int | None = None

    @property
    def replicas(self) -> tuple["AsyncLocalEngine"]:
        return (self,)

    @property
    def sample_rate(self) -> int:
        return self.engine.sample_rate

    def status(self) -> EngineStatus:
        return self._status() if self._status else EngineStatus(EngineState.RUNNING, sample_rate=self.sample_rate)

    async def submit(self, request: Request) -> AsyncLocalStream:
        job = self._pool.submit(self.engine.submit, request)
        try:
            stream = await self._answer(asyncio.shield(asyncio.wrap_future(job)))
        except BaseException:
            job.add_done_callback(_cancel_stream)  # the request may still be accepted later
            raise
        return AsyncLocalStream(stream, request, self._pool)

    async def info(self) -> ModelInfo:
        return await self._answer(asyncio.wrap_future(self._queries.submit(self.engine.info)))

    async def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        return await self._answer(asyncio.wrap_future(self._pool.submit_clone(self.engine.clone, samples, transcript)))

    async def stats(self) -> dict[str, float]:
        return await self._answer(asyncio.wrap_future(self._queries.submit(self.engine.stats)))

    async def acquire_key(self, key: str, limit: int) -> bool:
        return self._keys.acquire(key, limit)

    def release_key(self, key: str) -> None:
        self._keys.release(key)

    async def close(self) -> None:
        """Closes the engine too."""
        self._pool.close()
        self._queries.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.engine.close)

    async def _answer(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except TimeoutError:
            raise EngineDown(f"The engine did not answer within {self._timeout:g} s.", self._timeout) from None
        except PolyvoxError:
            raise
        except Exception as error:
            raise as_polyvox_error(error) from error


def _cancel_stream(job: "Future[Stream]") -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
