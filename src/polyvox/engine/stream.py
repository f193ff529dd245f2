"""A stream between the engine that makes it and the one reader that takes it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.clip import FinishReason, Samples
from polyvox.audio.silence import find_onset, window_samples
from polyvox.engine.interface import Chunk, Result
from polyvox.engine.stream_reader import StreamReader
from polyvox.engine.stream_state import StreamState
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.protocol import PreparedRequest, StreamingTokenizer
from polyvox.models.request import Request

if TYPE_CHECKING:
    from polyvox.engine.engine import LocalEngine

ROW_BYTES = 4  # of text that a row of another model stands for, as a token does

OnReady = Callable[["LocalStream"], None]


@dataclass(slots=True, eq=False)
class BufferedChunk:
    """A chunk as it was made: its parts may lie in memory that all of a step share."""

    parts: list[Samples]
    size: int  # samples
    index: int
    final: bool

    def own(self) -> None:
        """Moves it to memory of its own, if it is not there yet."""
        if len(self.parts) != 1 or self.parts[0].base is not None:
            self.parts = [np.concatenate([_NOTHING, *self.parts])]

    def joined(self) -> Chunk:
        """In memory of its own."""
        self.own()
        return Chunk(self.parts[0], self.index, self.final)


_NOTHING: Samples = torch.zeros(0).numpy()


class LocalStream(StreamReader):
    """The `Stream` of an engine in the same process.

    All of its state is guarded by the engine's one lock, so a wake-up cannot fall between a look and a wait. The
    engine writes through `release` and `end`; the reader through `take`, `chunks`, `append`, `finish_text`, `cancel`.
    """

    def __init__(
        self, engine: "LocalEngine", request: Request, growing: StreamingTokenizer | None, on_ready: OnReady | None
    ) -> None:
        assert request.seed is not None
        self._engine, self.request, self.seed, self.on_ready = engine, request, request.seed, on_ready
        super().__init__(threading.Condition(engine.lock))
        self._chunks = 0
        self._closed = False  # the final chunk is in the buffer
        self.buffered = 0  # samples that the reader has not taken
        self.wants_end: FinishReason | None = None  # asked for by the reader, done by the engine
        self.failure: str | None = None  # and why, where that is an error
        self.retry_after: float | None = None  # seconds, where it was for want of a place
        # The engine's own notes
        self.arrived = engine.clock()
        self.prepared: PreparedRequest | None = None
        self.track: StreamState | None = None
        self._growing = growing
        self._text_lock = threading.Lock()  # one piece of text at a time; taken before the engine's lock
        self.text = torch.empty(0)  # rows that have not found room in the slot yet
        self.text_end = 0  # rows that have been written to the slot
        self.text_open = request.live
        self.text_size = len(request.text.encode())  # bytes of all text so far
        self.text_tokens = 0
        self.text_waits = 0
        self.waiting_since: float | None = None  # for text
        self.full_since: float | None = None  # the buffer, for a reader
        self.flight = 0  # the last step that named the slot
        self.trims = request.trim_silence  # what comes before the first sound; until that is given
        self._sounds = False  # there was a sound
        self._held: list[Samples] = []  # until there is enough of it for a chunk
        self.held = 0  # samples of it
        self.reason: FinishReason = "stop"
        self.guarded = False  # its longest is what the text can need at most, not what was asked for

    # The reader's side

    def take(self, most: int) -> list[Chunk]:
        return [piece.joined() for piece in self.pop(most)]

    def pop(self, most: int) -> list[Any]:
        """At most so many chunks as they were made; joining them is the reader's work, without the lock."""
        with self._engine.lock:  # the engine must not come between the taking and its note
            return super().pop(most)

    def _took(self, taken: list[BufferedChunk]) -> None:
        self.buffered -= sum(piece.size for piece in taken)
        self._engine.changed(self)

    def append(self, text: str) -> None:
        """More text for a live request."""
        self._grow(text, last=False)

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        size, most = self._engine.model.hidden_size, self._engine.model.max_positions
        if rows.ndim != 2 or rows.shape[1] != size or not np.isfinite(rows).all():
            raise InvalidRequest("append_rows", list(rows.shape), f"must be rows of {size} finite numbers")
        if len(self.text) + len(rows) > most:
            raise InvalidRequest("append_rows", len(rows), f"at most {most} rows may be pending")
        self._grow("", last, rows)

    def finish_text(self) -> None:
        """No more text will come."""
        self._grow("", last=True)

    def cancel(self) -> None:
        with self._engine.lock:
            if self.result is None and self.wants_end is None:
                self.wants_end = "cancelled"
                self._engine.changed(self)

    def _grow(self, text: str, last: bool, rows: NDArray[np.float32] | None = None) -> None:
        """Makes rows of more text, in the caller's thread and without the engine's lock, and hands them over."""
        with self._text_lock:
            with self._engine.lock:
                if last and rows is None and not self.text_open:
                    return
                self._check_open()
            assert self._growing is not None
            model = self._engine.model
            ids = self._growing.append(text) if text else []
            try:
                if rows is not None and self.track is None and not self._growing.begun:
                    raise InvalidRequest("append_rows", NOT_SHOWN, "requires a first word of text")
                ids += self._growing.finish() if last or rows is not None else []
                prepared = model.prepare(self.request, ids) if ids and self.track is None else None
                more = model.text_rows([] if prepared else ids, last and rows is None)
                if rows is not None:
                    more = torch.cat([more, torch.tensor(rows, dtype=model.dtype, device=model.device)])
                with self._engine.lock:
                    self.text_size += len(text.encode()) + ROW_BYTES * (0 if rows is None else len(rows))
                    self.text_tokens += len(ids)
                    if prepared is not None and self.result is None:
                        self._engine.offer(self, prepared)
                    if self.track is not None and self.result is None:
                        self._engine.add_text(self, more, last)
            except Exception as error:
                with self._engine.lock:
                    self._engine.fail(self, error)
                raise

    def _check_open(self) -> None:
        if not self.text_open:
            raise InvalidRequest("append", NOT_SHOWN, "requires a live request whose text is not finished")

    # The engine's side, under its lock

    @property
    def slot(self) -> int:
        """The slot of a stream that has one."""
        assert self.track is not None
        assert self.track.allocation is not None
        return self.track.allocation.slot

    @property
    def prompt(self) -> Tensor:
        """The prompt rows, until they are read."""
        assert self.prepared is not None
        return self.prepared.rows

    def hold(self, samples: Samples) -> None:
        """Keeps samples that come with the next chunk; they may lie in memory that others share."""
        self._held.append(samples)
        self.held += len(samples)

    def own(self) -> None:
        """Moves what was last held to memory of its own: all that a step made must not be kept for it."""
        self._held[-1] = self._held[-1].copy()

    def release(self, final: bool) -> int:
        """Gives the reader what was held; how many samples that was."""
        parts, size = (self._held, self.held) if not self.silent else ([], 0)
        self._held, self.held, self.trims = [], 0, False
        self._push(BufferedChunk(parts, size, self._chunks, final))
        return size

    @property
    def silent(self) -> bool:
        """Nothing of what is held will be heard."""
        return self.trims and not self._sounds

    def trim(self, sample_rate: int) -> None:
        """Drops held silence before the first sound."""
        if not self._sounds:
            held = np.concatenate(self._held)
            start = find_onset(held, sample_rate)
            self._sounds = start is not None
            # Of silence the last window is kept, as the next sound may begin with it.
            held = held[start if start is not None else -window_samples(sample_rate) :]
            self._held, self.held = [held], len(held)

    def _push(self, piece: BufferedChunk) -> None:
        self._own_the_last()
        if self._buffer or piece.final:
            piece.own()
        self._buffer.append(piece)
        self._chunks += 1
        self._closed = self._closed or piece.final
        self.buffered += piece.size
        self._told()

    def _own_the_last(self) -> None:
        """A reader that is slow must not keep the memory of others; all before the last one are owned already."""
        if self._buffer:
            self._buffer[-1].own()

    def wait_for_text(self, now: float) -> None:
        self.waiting_since = now
        self.text_waits += 1
        self._own_the_last()
        self._told()

    def end(self, result: Result) -> None:
        """Closes the stream; the reader finds what is still in its buffer, then the end."""
        self.result = result
        self._held, self.held = [], 0
        if result.finish_reason in ("cancelled", "error"):
            self._chunks -= len(self._buffer)
            self._buffer.clear()
            self.buffered, self._closed = 0, False
        if not self._closed:
            self._push(BufferedChunk([], 0, self._chunks, final=True))
