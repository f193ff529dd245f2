# SPDX-License-Identifier: Apache-2.0
"""A stream of an engine in the same process."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import FinishReason
from polyvox.engine.chunk_assembler import BufferedChunk, ChunkAssembler
from polyvox.engine.interface import Chunk, FirstChunkTimes, OnReady, Result
from polyvox.engine.stream_reader import StreamReader
from polyvox.engine.stream_state import StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.text_buffer import TextBuffer
from polyvox.errors import NOT_SHOWN, InvalidRequest, Overloaded
from polyvox.models.protocol import PreparedRequest, PromptRows, StreamingTokenizer
from polyvox.models.request import Request

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from polyvox.engine.engine import LocalEngine

MAX_POSTED = 10_000  # texts of a stream that may wait for the engine's lock; more only if the engine hangs
TOKEN_BYTES = 4  # bytes of text that a token of a thinker, or a row of another model, counts as


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A requested end of a stream, with its reason; the engine's thread ends the stream."""

    reason: FinishReason
    error: str | None = None
    rejection: Overloaded | None = None


class LocalStream(StreamReader[BufferedChunk], StreamState):
    """The `Stream` of an engine in the same process: the scheduler's view, the text and the reader's buffer.

    The engine's lock guards all of its state. The reader uses `take`, `chunks`, `append`, `finish_text` and `cancel`;
    the engine's thread uses `deliver`, `wait_for_text` and `finish`.
    """

    def __init__(
        self,
        engine: "LocalEngine",
        stream_id: int,
        status: StreamStatus,
        request: Request,
        tokenizer: StreamingTokenizer | None,
        on_ready: OnReady | None,
    ) -> None:
        assert request.seed is not None
        StreamState.__init__(
            self,
            id=stream_id,
            arrived_at=engine.clock(),
            prompt_rows=0,
            max_frames=0,
            live=not request.whole_file,
            continues=request.segment > 0,
            utterance_id=request.utterance_id,
            text_bytes=len(request.text.encode()),
            following_bytes=request.following_bytes,
            is_answer=request.thinker_prompt is not None,
            language=request.language,
            owner=request.owner,
            fingerprint=request.fingerprint,
            may_reserve=request.may_reserve,
            first_chunk=request.first_chunk or 0,
            status=status,
            text_frames=0 if request.live else inf,
        )
        StreamReader.__init__(self, engine.lock.new_condition())
        self._engine, self.request, self.seed, self.on_ready = engine, request, request.seed, on_ready
        self.received_at = self.arrived_at
        self.prepared: PreparedRequest | None = None  # until the prompt is read
        self.reason: FinishReason = "stop"
        self.guarded = False  # max_frames is an estimate by the text, not the request's own limit
        # Text
        self.text_open = request.live
        self.text = TextBuffer()  # that is not in the slot yet
        self.text_end = 0  # frames whose text was written to the slot
        self.text_at = -inf  # when the text of the first frames had arrived
        self.text_tokens = 0
        self.text_waits = 0
        self._tokenizer = tokenizer
        self._text_lock = threading.Lock()  # one append at a time; acquired before the engine's lock
        self._accepts_text = request.live  # False once the end of the text is posted; then text_open follows
        self._stop_posted = False
        # Texts that were posted to the engine's lock, and their ids and rows; guarded by _text_lock
        self._num_posted = self._num_posted_ids = 0
        # Those of them that were applied; guarded by the engine's lock
        self._num_added = self._num_added_ids = 0
        # Audio
        self.assembler = ChunkAssembler(engine.sample_rate, request.trim_silence)
        self.buffered = 0  # samples that the reader has not taken
        self._num_chunks = 0
        self._has_final = False  # the final chunk is in the buffer, or was taken

    # The reader's side

    def _own(self, taken: BufferedChunk) -> Chunk:
        return taken.owned()

    def pop(self, max_chunks: int) -> list[BufferedChunk]:
        """Chunks as they were decoded; the reader joins their parts without the lock."""
        with self._engine.lock:  # one transaction: take the chunks and report the free space
            taken = self.pop_locked(max_chunks)
            if taken:
                self._engine.wake()
            return taken

    def pop_locked(self, max_chunks: int) -> list[BufferedChunk]:
        """The same for a caller that has the engine's lock, and wakes the engine once for many streams."""
        taken = [self._buffer.popleft() for _ in range(min(max_chunks, len(self._buffer)))]
        if taken:
            self._on_taken(taken)
        return taken

    def _on_taken(self, taken: list[BufferedChunk]) -> None:
        self._engine.note_change(self)
        for chunk in taken:
            self.buffered -= chunk.size

    def append(self, text: str) -> None:
        """More text for a live request."""
        if not isinstance(text, str):
            raise InvalidRequest("text", text, "must be a string")
        self._append(text, last=False)

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        generator = self._engine.model.generator
        hidden_size, max_rows = generator.hidden_size, generator.max_positions
        if rows.ndim != 2 or rows.shape[1] != hidden_size or not np.isfinite(rows).all():
            raise InvalidRequest("append_rows", list(rows.shape), f"must be rows of {hidden_size} finite numbers")
        if self._num_pending_ids + len(rows) > max_rows:
            raise InvalidRequest("append_rows", len(rows), f"at most {max_rows} rows may be pending")
        self._append("", last, rows)

    def append_tokens(self, ids: Sequence[int]) -> None:
        max_tokens = self._engine.model.generator.max_positions
        with self._text_lock:
            self._check_open()
            assert self._tokenizer is not None
            spoken = self._tokenizer.append_tokens(ids)
            if self._num_pending_ids + len(spoken) > max_tokens:
                raise InvalidRequest("append_tokens", len(ids), f"at most {max_tokens} tokens may be pending")
            if not spoken:
                return
            model, num_bytes = self._engine.model, TOKEN_BYTES * len(spoken)
            try:
                if self.awaits_text:
                    self._enqueue(model.prepare(self.request, spoken), num_bytes, len(spoken))
                else:
                    self._post_text(model.text_ids(spoken, last=False), False, num_bytes, len(spoken))
            except Exception as error:
                self._fail(error)
                raise

    def finish_text(self) -> None:
        """Marks the text as complete. Idempotent."""
        if self.request.thinker_prompt is None:
            self._append("", last=True)
        else:
            self._finish_answer()

    def cancel(self) -> None:
        if self.result is None:
            self._post_stop(StopRequest("cancelled"))

    @property
    def awaits_text(self) -> bool:
        return self.status is StreamStatus.AWAITING_TEXT

    def _finish_answer(self) -> None:
        with self._text_lock:
            if not self._takes_text:
                return
            if self.awaits_text:  # an answer without tokens has no speech
                self._accepts_text = False
                self._post_stop(StopRequest("stop"))
            else:
                self._post_text(self._engine.model.text_ids([], last=True), True, 0, 0)

    @property
    def _takes_text(self) -> bool:
        return self._accepts_text and self.text_open  # without the lock: if the stream ends, its text is dropped

    def _check_open(self) -> None:
        if not self._takes_text:
            raise InvalidRequest("append", NOT_SHOWN, "requires a live request whose text is not finished")

    def _fail(self, error: Exception) -> None:
        """Ends the stream with the reason of an error that its text raised."""
        rejection = error if isinstance(error, Overloaded) else None
        self._accepts_text = False
        self._post_stop(StopRequest("error", str(error), rejection))

    @property
    def _num_pending_ids(self) -> int:
        """Ids and rows of text that are not in the slot yet."""
        return len(self.text) + self._num_posted_ids - self._num_added_ids

    def _post_stop(self, stop: StopRequest) -> None:
        if not self._stop_posted:  # the first one counts
            self._stop_posted = True
            self._engine.lock.post(partial(self._engine.request_stop, self, stop))

    def _enqueue(self, prepared: PreparedRequest, num_bytes: int, num_tokens: int) -> None:
        """Queues the stream with its first text. The caller waits for the engine's lock, and for its decision."""
        with self._engine.lock:
            self.text_bytes += num_bytes
            self.text_tokens += num_tokens
            if self.result is None:
                self._engine.enqueue(self, prepared)

    def _post_text(
        self, ids: list[int], last: bool, num_bytes: int, num_tokens: int, rows: NDArray[np.float32] | None = None
    ) -> None:
        """Hands text to the engine, without waiting for its lock."""
        num_ids = len(ids) + (0 if rows is None else len(rows))
        if not (num_ids or num_bytes or last):
            return
        if self._num_posted - self._num_added >= MAX_POSTED:
            raise Overloaded("too many texts wait for the engine", 1.0, "queue_full")
        self._accepts_text = not last
        self._num_posted += 1
        self._num_posted_ids += num_ids

        def add() -> None:
            self._num_added += 1
            self._num_added_ids += num_ids
            self.text_bytes += num_bytes
            self.text_tokens += num_tokens
            if self.awaits_text:
                return
            try:
                self._engine.add_text(self, ids, last, rows)
            except Exception as error:  # text must not be missing from the middle of the speech
                log.exception("append failed stream=%d", self.id)
                self._engine.request_stop(self, StopRequest("error", str(error)))

        self._engine.lock.post(add)

    def _append(self, text: str, last: bool, rows: NDArray[np.float32] | None = None) -> None:
        """Converts text to ids in the caller's thread, without the engine's lock, and hands them to the engine."""
        with self._text_lock:
            if last and rows is None and not self._takes_text:
                return
            self._check_open()
            assert self._tokenizer is not None
            model = self._engine.model
            ids = self._tokenizer.append(text) if text else []
            try:
                first = self.awaits_text
                if rows is not None and not self._tokenizer.begun and (first or self.request.thinker_prompt):
                    raise InvalidRequest("append_rows", NOT_SHOWN, "requires a first word of text")
                ids += self._tokenizer.finish() if last or rows is not None else []
                num_bytes = len(text.encode()) + TOKEN_BYTES * (0 if rows is None else len(rows))
                num_tokens = len(ids)
                if ids and first:
                    prepared, more = model.prepare(self.request, ids), model.text_ids([], last and rows is None)
                    with self._engine.lock:
                        self._enqueue(prepared, num_bytes, num_tokens)
                        self._post_text(more, last, 0, 0, rows)
                else:
                    self._post_text(model.text_ids(ids, last and rows is None), last, num_bytes, num_tokens, rows)
            except Exception as error:
                self._fail(error)
                raise

    # The engine's side, under its lock

    @property
    def slot(self) -> int:
        assert self.allocation is not None
        return self.allocation.slot

    @property
    def prompt(self) -> PromptRows:
        assert self.prepared is not None
        return self.prepared.rows

    def deliver(self, final: bool) -> int:
        """Moves the assembled samples to the reader's buffer as one chunk; returns their number."""
        chunk = self.assembler.take(self._num_chunks, final)
        if not self._num_chunks and chunk.size:
            now = self._engine.clock()
            text_at = max(self.admitted_at, self.text_at)
            first_frame_at = min(self.first_frame_at, now)
            chunk.times = FirstChunkTimes(
                self.received_at, self.arrived_at, self.admitted_at, text_at, first_frame_at, now
            )
        self._push(chunk)
        return chunk.size

    def wait_for_text(self, deadline: float) -> None:
        self.text_deadline = deadline
        self.text_waits += 1
        self._own_last_chunk()
        self._notify()

    def finish(self, result: Result) -> None:
        """Sets the result; the reader finds the rest of its buffer, unless the stream was cut short, and the end."""
        self.result = result
        self.text_open = False
        self.reader_deadline = self.text_deadline = inf
        self.assembler.clear()
        if result.finish_reason in ("cancelled", "error"):
            self._num_chunks -= len(self._buffer)
            self._buffer.clear()
            self.buffered, self._has_final = 0, False
        if not self._has_final:
            self._push(BufferedChunk([], 0, self._num_chunks, final=True))

    def _push(self, chunk: BufferedChunk) -> None:
        self._own_last_chunk()
        if self._buffer or chunk.final:
            chunk.own()
        self._buffer.append(chunk)
        self._num_chunks += 1
        self._has_final = self._has_final or chunk.final
        self.buffered += chunk.size
        self._notify()

    def _own_last_chunk(self) -> None:
        """A slow reader must not keep the memory of other streams; all chunks before the last are copied already."""
        if self._buffer:
            self._buffer[-1].own()
