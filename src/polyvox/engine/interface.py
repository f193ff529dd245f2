"""What the server, the bench and Python users see of an engine, whether it runs in their process or in its own."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import FinishReason, Samples
from polyvox.errors import Overloaded, StreamFailed
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some more of a stream's samples, mono, in [-1, 1]; index counts from 0, and the last chunk is final.

    The final chunk may be empty: an end is always told, also where no sample is left to give.
    """

    samples: Samples
    index: int
    final: bool


@dataclass(frozen=True, slots=True)
class Result:
    """How a stream ended."""

    finish_reason: FinishReason
    seed: int
    error: str | None = None
    text_tokens: int = 0  # read
    frames: int = 0  # made
    seconds: float = 0.0  # of audio
    queue_wait: float = 0.0  # seconds from the request to its admission
    first_audio: float | None = None  # seconds from the request to its first chunk
    underruns: int = 0
    text_waits: int = 0
    retry_after: float | None = None  # seconds, where it was refused for want of a place

    def check(self) -> None:
        """Raises what a reader should know: Overloaded or StreamFailed; nothing after a good end."""
        if self.finish_reason == "error":
            message = self.error or "the stream failed"
            raise StreamFailed(message) if self.retry_after is None else Overloaded(message, self.retry_after)


class Stream(Protocol):
    """A request that was taken."""

    @property
    def seed(self) -> int: ...

    @property
    def result(self) -> Result | None:
        """None until the stream has ended."""

    def chunks(self, timeout: float | None = None) -> Iterator[Chunk]:
        """The chunks as they come, for one reader; ends after the final one.

        Raises StreamFailed where the stream ended with an error, Overloaded where it found no place, TimeoutError
        where nothing came for `timeout` seconds.
        """

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """The same for a reader in an event loop, which costs no thread; without a timeout."""

    def take(self, most: int, /) -> list[Chunk]:
        """At most so many of the chunks that are there, without waiting; for whoever is told by on_ready."""

    def append(self, text: str) -> None:
        """More text for a live request."""

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        """More text as rows [n, hidden] that another model has made, after a first word; the last ones close it."""

    def finish_text(self) -> None:
        """No more text will come."""

    def cancel(self) -> None:
        """Ends the stream within a step; any number of times, at any moment."""


class Engine(Protocol):
    @property
    def sample_rate(self) -> int: ...

    def submit(self, request: Request, on_ready: Callable[[Stream], None] | None = None) -> Stream:
        """Takes a request, or raises InvalidRequest or Overloaded at once.

        on_ready is called, from a thread of the engine's, when the stream has new chunks and when it has its
        result. Raises EngineDown where the engine cannot take anything.
        """

    def info(self) -> ModelInfo:
        """What the engine speaks with, and what may be asked of it."""

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at the engine's sample rate; not in the engine's own thread.

        Raises InvalidRequest where the recording or the model will not do.
        """

    def stats(self) -> dict[str, float]:
        """Counts since the start, and how things stand."""

    def close(self) -> None:
        """Ends all streams and leaves nothing running; any number of times."""


class InProcessEngine(Engine, Protocol):
    """An engine in this process, which others may be let in to."""

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[Chunk]]:
        """Of each stream at most so many chunks, without waiting: one look for whoever reads many."""


class AsyncStream(Protocol):
    """An accepted request, for a caller in an event loop. Its methods belong to that loop's thread and never block."""

    @property
    def seed(self) -> int: ...

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
