# SPDX-License-Identifier: Apache-2.0
"""`Engine` for callers without an event loop: an `AsyncRemoteEngine` in a loop of its own thread."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.samples import Samples
from polyvox.engine.interface import Chunk
from polyvox.engine.stream_reader import StreamReader
from polyvox.errors import PolyvoxError
from polyvox.ipc.client import CREDIT, AsyncRemoteEngine, AsyncRemoteStream
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

T = TypeVar("T")
OnReady = Callable[["RemoteStream"], None]


class RemoteStream(StreamReader):
    """A stream whose chunks a task of the loop moves here, at most `CREDIT` ahead of the reader."""

    def __init__(self, stream: AsyncRemoteStream, loop: asyncio.AbstractEventLoop, on_ready: OnReady | None) -> None:
        super().__init__(threading.Condition())
        self._stream, self._loop, self._on_ready = stream, loop, on_ready
        self.seed = stream.seed
        self._free_chunks = asyncio.Semaphore(CREDIT)
        self._task = loop.create_task(self._move())

    def append(self, text: str) -> None:
        self._loop.call_soon_threadsafe(self._stream.append, text)

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        self._loop.call_soon_threadsafe(self._stream.append_rows, rows, last)

    def finish_text(self) -> None:
        self._loop.call_soon_threadsafe(self._stream.finish_text)

    def cancel(self) -> None:
        if self.result is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stream.cancel)

    def _on_taken(self, taken: list[Chunk]) -> None:
        for _ in taken:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._free_chunks.release)

    async def _move(self) -> None:
        index = 0
        try:
            async for chunk in self._stream:
                index = chunk.index + 1
                if not chunk.final:
                    await self._free_chunks.acquire()
                self._put(chunk)
        except PolyvoxError:
            self._put(Chunk(np.zeros(0, np.float32), index, True))

    def _put(self, chunk: Chunk) -> None:
        with self._ready:
            if chunk.final:
                self.result = self._stream.result
            self._buffer.append(chunk)
            self._notify()
        if self._on_ready is not None:
            try:
                self._on_ready(self)
            except Exception:
                log.exception("stream cancelled")
                self._on_ready = None
                self._stream.cancel()


class RemoteEngine:
    """The blocking calls of an `Engine` in another process."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self.sample_rate = endpoint.sample_rate
        self._engine = AsyncRemoteEngine(endpoint)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="polyvox-remote-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_ready: OnReady | None = None) -> RemoteStream:
        async def submit() -> RemoteStream:
            return RemoteStream(await self._engine.submit(request), self._loop, on_ready)

        return self._call(submit())

    def info(self) -> ModelInfo:
        return self._call(self._engine.info())

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        return self._call(self._engine.clone(samples, transcript))

    def stats(self) -> dict[str, float]:
        return self._call(self._engine.stats())

    def close(self) -> None:
        if not self._loop.is_closed():
            self._call(self._engine.close())
            self._call(asyncio.sleep(0.01))  # streams end
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
