# SPDX-License-Identifier: Apache-2.0
"""The interface of an engine, in this process or in another one."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import FinishReason
from polyvox.audio.pcm import Audio, Pcm, as_pcm, as_samples
from polyvox.audio.samples import Samples
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_status import EngineStatus
from polyvox.errors import EngineDown, Overloaded, OverloadReason, PolyvoxError, StreamFailed
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request


@dataclass(frozen=True, slots=True)
class FirstChunkTimes:
    """When a stream reached each stage before its first chunk, by `time.monotonic` of the machine."""

    received_at: float
    queued_at: float  # prepared; live text with its first token. Admission control follows
    admitted_at: float  # has a slot
    text_at: float  # has a slot and the text of its first frames
    first_frame_at: float
    decoded_at: float  # the chunk is in the reader's buffer


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The next audio of a stream, mono; index counts from 0, and the last chunk is final.

    Every stream has a final chunk; it may be empty. The audio is PCM from an engine for servers (`EngineConfig.pcm`)
    and from an engine in another process, and float samples in [-1, 1] otherwise.
    """

    audio: Audio
    index: int
    final: bool
    times: FirstChunkTimes | None = None  # of the first chunk with audio

    @property
    def samples(self) -> Samples:
        """The audio as float samples."""
        return as_samples(self.audio)

    @property
    def pcm(self) -> Pcm:
        """The audio as PCM. The samples must be finite."""
        return as_pcm(self.audio)

    @property
    def parts(self) -> list[Audio]:
        return [self.audio]

    @property
    def size(self) -> int:
        """Samples."""
        return len(self.audio)


class ChunkParts(Protocol):
    """A chunk whose audio may be in several parts, which share memory with the chunks of other streams."""

    @property
    def parts(self) -> list[Audio]: ...

    @property
    def size(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def final(self) -> bool: ...

    @property
    def times(self) -> FirstChunkTimes | None: ...


@dataclass(frozen=True, slots=True)
class Result:
    """How a stream ended."""

    finish_reason: FinishReason
    seed: int
    error: str | None = None
    text_tokens: int = 0
    frames: int = 0  # generated
    seconds: float = 0.0  # of audio
    queue_wait: float = 0.0  # seconds from the request to its admission
    first_frame: float | None = None  # seconds from the request to its first frame, the end of the prefill
    first_audio: float | None = None  # seconds from the request to its first chunk
    underruns: int = 0
    text_waits: int = 0
    retry_after: float | None = None  # seconds, if the stream was rejected or timed out in the queue
    overload_reason: OverloadReason | None = None  # of such a stream; None: the engine has stopped

    @classmethod
    def of_error(cls, error: PolyvoxError, seed: int) -> "Result":
        """Of a stream that failed before it had started."""
        if isinstance(error, Overloaded):
            return cls("error", seed, str(error), retry_after=error.retry_after, overload_reason=error.reason)
        return cls("error", seed, str(error))

    def check(self) -> None:
        """Raises Overloaded, EngineDown or StreamFailed if the stream ended with an error."""
        if self.finish_reason == "error":
            message = self.error or "the stream failed"
            if self.retry_after is None:
                raise StreamFailed(message)
            if self.overload_reason is None:
                raise EngineDown(message, self.retry_after)
            raise Overloaded(message, self.retry_after, self.overload_reason)


class Stream(Protocol):
    """An accepted request."""

    @property
    def seed(self) -> int: ...

    @property
    def result(self) -> Result | None:
        """None until the stream has ended."""

    def chunks(self, timeout: float | None = None) -> Iterator[Chunk]:
        """The chunks for one reader; ends after the final one. Leaving the iteration early cancels the stream.

        Raises StreamFailed if the stream ended with an error, Overloaded if it timed out in the queue, TimeoutError
        if no chunk arrived for `timeout` seconds.
        """

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """The same for a reader in an event loop, without a thread and without a timeout."""

    def take(self, max_chunks: int, /) -> list[Chunk]:
        """At most this many of the buffered chunks, without waiting; for readers that use on_ready."""

    def append(self, text: str) -> None:
        """More text for a live request."""

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        """More text as rows [n, hidden] of another model, after a first word of text; last: finishes the text."""

    def append_tokens(self, ids: Sequence[int]) -> None:
        """The next tokens of a thinker's answer, for a request with a thinker's prompt."""

    def finish_text(self) -> None:
        """Marks the text as complete. Idempotent."""

    @property
    def awaits_text(self) -> bool:
        """Whether it is not queued yet, because its text has no token so far.

        The caller that appends the first token waits for admission control, all other appends wait for nothing.
        """

    def cancel(self) -> None:
        """Ends the stream within one step, without waiting for it. Idempotent."""


OnReady = Callable[[Sequence[Stream]], None]


class Engine(Protocol):
    @property
    def sample_rate(self) -> int: ...

    def submit(self, request: Request, on_ready: OnReady | None = None) -> Stream:
        """Accepts a request, or raises InvalidRequest, Overloaded or EngineDown.

        on_ready is called from a thread of the engine with the streams that have new chunks or their result: once for
        all streams of a step that were submitted with the same callback.
        """

    def info(self) -> ModelInfo:
        """The loaded model and what it accepts."""

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at the engine's sample rate; runs in the caller's thread.

        Raises InvalidRequest if the recording cannot be used or the model cannot clone.
        """

    def stats(self) -> dict[str, float]:
        """Counters since the start, and the current state."""

    def close(self) -> None:
        """Ends all streams and all threads. Idempotent."""


class InProcessEngine(Engine, Protocol):
    """An engine in this process, which can serve other processes."""

    @property
    def broken(self) -> str | None:
        """The error that stopped the engine; None while it runs."""

    def current_load(self) -> EngineLoad:
        """The load and the spare capacity; cheap."""

    def submit_inline(self, request: Request, on_ready: OnReady | None = None) -> Stream | None:
        """As `submit`, for an event loop: None if it would wait for the engine's lock for longer than LOCK_TIMEOUT."""

    def try_lock(self, timeout: float) -> AbstractContextManager[bool]:
        """Keeps the engine's lock, if it is free within this many seconds: no call waits for it meanwhile."""

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> Sequence[Sequence[ChunkParts]]:
        """Takes from many streams with one lock: of each at most this many chunks, without waiting.

        The chunks may share memory with those of other streams, so the caller copies what it keeps.
        """


class AsyncStream(Protocol):
    """An accepted request, for a caller in an event loop. Its methods belong to that loop's thread and never block."""

    @property
    def seed(self) -> int: ...

    @property
    def replica(self) -> int | None:
        """The index of the engine that runs it, if there are several."""

    @property
    def result(self) -> Result | None:
        """None until the stream has ended."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks for one reader; ends after the final one. Leaving the iteration early cancels the stream.

        Raises StreamFailed if the stream ended with an error, Overloaded if it timed out in the queue.
        """

    def append(self, text: str) -> None:
        """More text for a live request. Text that the engine rejects ends the stream with the reason.

        Raises InvalidRequest if the request is not live or its text is finished.
        """

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        """More text as rows [n, hidden] of another model, after a first word of text; last: finishes the text."""

    def append_tokens(self, ids: Sequence[int]) -> None:
        """The next tokens of a thinker's answer, for a request with a thinker's prompt."""

    def finish_text(self) -> None:
        """Marks the text as complete. Idempotent."""

    def cancel(self) -> None:
        """Ends the stream within one step. Idempotent."""


class AsyncEngine(Protocol):
    """An engine for a caller in an event loop, in the same process or in another one.

    Every call has a timeout. EngineDown is raised on a timeout and while the engine is not running; its retry_after
    says when to try again.
    """

    @property
    def sample_rate(self) -> int: ...

    @property
    def replicas(self) -> Sequence["AsyncEngine"]:
        """The engines behind this one, or itself alone."""

    @property
    def replica(self) -> int | None:
        """The index of this engine, if there are several."""

    def status(self) -> EngineStatus:
        """Whether the engine runs, and if not, when it is expected to."""

    async def submit(self, request: Request) -> AsyncStream:
        """Accepts a request, or raises InvalidRequest or Overloaded. A cancelled call cancels the stream."""

    async def info(self) -> ModelInfo:
        """The loaded model and what it accepts."""

    async def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at the engine's sample rate; raises InvalidRequest if it cannot be used."""

    async def stats(self) -> dict[str, float]:
        """Counters since the start, and the current state."""

    async def acquire_key(self, key: str, limit: int) -> bool:
        """Counts one more request of a key, over all server processes; False if the key already has `limit`."""

    def release_key(self, key: str) -> None:
        """Gives back what acquire_key counted."""

    async def close(self) -> None:
        """Ends all streams of this object and frees its resources. Idempotent."""
