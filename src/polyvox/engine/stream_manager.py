# SPDX-License-Identifier: Apache-2.0
"""The life of a stream in the engine, from its first text to the release of its slot; all under the engine's lock."""

import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import get_args

import torch

from polyvox.audio.clip import FinishReason
from polyvox.audio.pcm import Audio
from polyvox.engine.admission import Admission, Demand
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.interface import Result
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.stream import LocalStream, StopRequest
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.engine.trace import TraceWriter
from polyvox.errors import Overloaded
from polyvox.kernels.flags import FRAME_ENDED, FRAME_REPETITION_LOOP
from polyvox.models.protocol import PreparedRequest, SpeechModel

log = logging.getLogger(__name__)

# Streams that may wait for their reader or for text.
TIMED_STATUSES = (StreamStatus.AWAITING_TEXT, StreamStatus.PAUSED, StreamStatus.DRAINING)
NOT_FINITE = "The model returned samples that are not finite numbers."
MIN_TEXT_ROWS = 16  # rows ahead of the frames, below which more tokens of an answer become rows
MAX_EMBEDDED = 128  # tokens of one stream that become rows at once
MAX_READER_DELAY = 2.0  # seconds that a reader in real time may be behind: the delay of a network and of its player
FULL_STATUSES = (StreamStatus.PAUSED, StreamStatus.DRAINING)  # of streams that may wait for their reader


class StreamManager:
    """Moves streams from status to status and audio to their readers.

    An iteration of the engine visits only streams that may have changed: with a thousand streams the host's time is
    short.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        runner: ModelRunner,
        streams: StreamTable[LocalStream],
        admission: Admission[LocalStream],
        scheduler: Scheduler[LocalStream],
        clock: Callable[[], float],
        wake: Callable[[], None],
        trace: TraceWriter | None,
    ) -> None:
        self.config, self.clock, self._wake, self._model = config, clock, wake, model
        vocoder = model.vocoder
        self.sample_rate, self._samples_per_frame = vocoder.sample_rate, vocoder.samples_per_frame
        self._has_tail = vocoder.tail_samples > 0
        self._runner, self._streams, self._admission, self._scheduler = runner, streams, admission, scheduler
        self._trace = trace
        self.completed_steps = 0  # number of the last completed step
        self.changed: dict[LocalStream, None] = {}  # by readers and writers, since the last iteration
        self.stop_requests: dict[LocalStream, StopRequest] = {}
        self.ready: dict[LocalStream, None] = {}  # with chunks or a result that their readers do not know of
        self._with_text: dict[LocalStream, None] = {}  # active streams whose text is not complete in the slot
        self._num_finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self._audio_seconds, self._underruns, self._streams_with_underruns = 0.0, 0, 0

    def counts(self) -> dict[str, float]:
        """Counters since the start."""
        finished = {f"finished_{reason}": float(count) for reason, count in self._num_finished.items()}
        return finished | {
            "audio_seconds": self._audio_seconds,
            "underruns": float(self._underruns),
            "streams_with_underruns": float(self._streams_with_underruns),
        }

    # Arrival

    def await_text(self, stream: LocalStream) -> None:
        """Keeps a live stream without text; raises Overloaded if there are too many."""
        max_waiting = self.config.max_queue + self.config.max_streams
        if len(self._streams[StreamStatus.AWAITING_TEXT]) >= max_waiting:
            raise Overloaded("too many streams wait for their first text", retry_after=1)
        stream.text_deadline = self.clock() + self.config.text_timeout
        self._streams.add(stream)

    def enqueue(self, stream: LocalStream, prepared: PreparedRequest) -> None:
        """Queues a stream; raises Overloaded or InvalidRequest if admission rejects it."""
        now = self.clock()
        # An active stream never waits for pages, so it may not need more than there are.
        max_frames = max(1, min(prepared.max_frames, self.config.pages * PAGE - len(prepared.rows) - 1))
        stream.prompt_rows, stream.max_frames = len(prepared.rows), max_frames
        stream.buffer_free = self.buffer_free(stream)
        stream.text_frames = 0 if stream.text_open else inf
        self._admission.enqueue(stream, now)
        stream.arrived_at = stream.deadline = now
        stream.prepared, stream.text = prepared, prepared.text
        stream.guarded = prepared.guarded and max_frames == prepared.max_frames
        stream.text_tokens = max(stream.text_tokens, prepared.tokens)
        stream.text_deadline = inf

    def admit(self, now: float) -> None:
        """Writes admitted streams to their slots, and ends those that waited too long in the queue."""
        expired = self._admission.expire(now)
        for stream in expired:
            error = f"no slot was free within {self._admission.max_wait:g} s"
            self.end(stream, "error", error, self._admission.retry_after(Demand.of(stream.request), now))
        admitted: list[LocalStream] = []  # with text that is not in the slot
        for stream in self._admission.admit(now):
            assert stream.prepared is not None
            assert stream.allocation is not None
            try:
                stream.text_end = self._runner.assign(stream.allocation, stream.prepared)
            except Exception as error:
                log.exception("stream assignment failed stream=%d", stream.id)
                self.end(stream, "error", f"the request could not be prepared: {error}")
                continue
            stream.text = stream.text[stream.text_end :].clone()
            if stream.text_open or len(stream.text) or stream.text_frames < inf:
                self._with_text[stream] = None
                admitted.append(stream)
        if admitted:
            self._embed_tokens()
        for stream in admitted:
            if stream.result is None:
                self._write_text(stream, now)
        self.release_finished()

    # What readers and writers did

    def apply_changes(self, now: float) -> None:
        """Applies stop requests, free space in buffers and new text."""
        changed, self.changed = self.changed, {}
        for stream in changed:
            stop = self.stop_requests.pop(stream, None)
            if stop is not None:
                self.end(stream, stop.reason, stop.error, stop.retry_after)
            elif stream.result is None:
                stream.buffer_free = self.buffer_free(stream)
                if stream.buffer_free >= 1:
                    stream.reader_deadline = inf
                    self._update_pause(stream, now)
        self._embed_tokens()
        for stream in list(self._with_text):
            self._write_text(stream, now)
        self.release_finished()

    def _embed_tokens(self) -> None:
        """Embeds the next tokens of all streams that need rows soon in one call, which costs as much as for one."""
        streams = [
            stream
            for stream in self._with_text
            if stream.tokens and not len(stream.text) and stream.text_end - stream.started < MIN_TEXT_ROWS
        ]
        if not streams:
            return
        taken = [stream.tokens[:MAX_EMBEDDED] for stream in streams]
        try:
            rows = self._model.text_rows([id for ids in taken for id in ids], last=False)
        except Exception as error:
            log.exception("text embedding failed streams=%d", len(streams))
            for stream in streams:
                self.end(stream, "error", f"the text could not be read: {error}")
            return
        for stream, ids, part in zip(streams, taken, rows.split([len(ids) for ids in taken]), strict=True):
            del stream.tokens[: len(ids)]
            stream.text = part

    def _write_text(self, stream: LocalStream, now: float) -> None:
        """Moves text rows to the slot, and updates the number of frames that have text."""
        if len(stream.text):
            try:
                count = self._runner.write_text(stream.slot, stream.text_end, stream.text, stream.started)
            except Exception as error:
                log.exception("text write failed stream=%d", stream.id)
                self.end(stream, "error", f"the text could not be read: {error}")
                return
            stream.text = stream.text[count:].clone()
            stream.text_end += count
        complete = not (stream.text_open or len(stream.text) or stream.tokens)
        if complete and stream.text_frames < inf and stream.request.guard:
            self._limit_frames(stream)
        stream.text_frames = inf if complete else stream.text_end
        if complete:
            self._with_text.pop(stream, None)
        if stream.started < stream.text_frames or stream.ended:
            stream.text_deadline = inf
        elif stream.text_deadline == inf and stream.text_open and not stream.tokens and not stream.prompt_left:
            stream.wait_for_text(now + self.config.text_timeout)
        self._update_pause(stream, now)

    def _limit_frames(self, stream: LocalStream) -> None:
        """Lowers max_frames to what the complete text can need, and frees the pages beyond."""
        assert stream.allocation is not None
        max_frames = max(self._runner.close_text(stream.slot, stream.text_bytes), stream.started + 1)
        stream.guarded |= max_frames < stream.max_frames
        stream.max_frames = min(stream.max_frames, max_frames)
        self._runner.shrink(stream.allocation, self._admission.shrink(stream))

    def _update_pause(self, stream: LocalStream, now: float) -> None:
        """A running stream is paused while a timeout of its reader or its text runs."""
        waits = min(stream.reader_deadline, stream.text_deadline) < inf
        if waits and stream.status is StreamStatus.RUNNING:
            self._streams.transition(stream, StreamStatus.PAUSED, now)
        elif not waits and stream.status is StreamStatus.PAUSED:
            self._streams.transition(stream, StreamStatus.RUNNING, now)

    def expire_timeouts(self, now: float) -> None:
        """Ends streams that waited too long for their reader or for text."""
        for stream in [stream for status in TIMED_STATUSES for stream in self._streams[status]]:
            if now > stream.reader_deadline:
                self.end(stream, "error", f"nothing was read for {self.config.reader_timeout:g} s")
            elif now > stream.text_deadline:
                self.end(stream, "error", f"no text arrived for {self.config.text_timeout:g} s")
        self.release_finished()

    def find_unread(self, now: float) -> LocalStream | None:
        """Of the streams that keep a slot because their buffer is full and their reader is behind real time, the one
        that is the furthest behind."""
        full = [stream for status in FULL_STATUSES for stream in self._streams[status] if stream.reader_deadline < inf]
        behind = {stream: stream.buffered / self.sample_rate - stream.lead(now) for stream in full}
        found = max(behind, key=behind.__getitem__, default=None)
        return found if found is not None and behind[found] > MAX_READER_DELAY else None

    def next_timeout(self, now: float) -> float | None:
        """Seconds until something happens without a call: a timeout or an admission; None if nothing will."""
        moments = [self._admission.next_change(now)]
        for status in TIMED_STATUSES:
            moments += [min(stream.reader_deadline, stream.text_deadline) for stream in self._streams[status]]
        first = min(moments)
        return max(first - now, 0.0) + 0.001 if first < inf else None

    # Audio

    def on_frame_result(self, stream: LocalStream, flags: int, now: float) -> None:
        """Counts a generated frame, or ends generation."""
        if stream.ended:
            return
        if flags & FRAME_ENDED:
            self._streams.transition(stream, StreamStatus.DRAINING, now)
            return
        stream.generated += 1
        if stream.generated == 1:
            stream.first_frame_at = now
        if flags & FRAME_REPETITION_LOOP and stream.request.guard:
            stream.reason = "runaway"
        elif stream.generated >= stream.max_frames:
            stream.reason = "runaway" if stream.guarded else "length"
        else:
            return
        self._streams.transition(stream, StreamStatus.DRAINING, now)

    def on_audio(self, stream: LocalStream, samples: Audio, frames: int, now: float) -> None:
        """Withholds samples until they are worth a chunk, or no more follow."""
        assembler = stream.assembler
        stream.undelivered += frames
        trims = assembler.trims
        assembler.add(samples)
        if trims:
            stream.undelivered = assembler.size // self._samples_per_frame
        stream.buffer_free = self.buffer_free(stream)
        final = stream.ended and stream.decoded == stream.generated and not self._has_tail
        # There is nothing to deliver while all samples were the vocoder's delay or are leading silence.
        if final or (assembler.size and not (trims and assembler.silent) and self._scheduler.is_due(stream, now)):
            self._deliver(stream, final, now)
        elif stream.lead(now) >= self._scheduler.load.limits.lead_cap:  # it may stay undelivered for long
            assembler.own_last()

    def _deliver(self, stream: LocalStream, final: bool, now: float) -> None:
        size = stream.deliver(final)
        self._scheduler.deliver(stream, size / self._samples_per_frame, now)
        stream.buffer_free = self.buffer_free(stream)
        if stream.buffer_free < 1 and stream.reader_deadline == inf:
            stream.reader_deadline = now + self.config.reader_timeout
            self._update_pause(stream, now)
        self._audio_seconds += size / self.sample_rate
        self.ready[stream] = None

    def buffer_free(self, stream: LocalStream) -> float:
        """Frames that the reader's buffer can take."""
        size = self.config.buffer_seconds * self.sample_rate
        return max(0.0, (size - stream.buffered - stream.assembler.size) // self._samples_per_frame)

    # End

    def end(
        self, stream: LocalStream, reason: FinishReason, error: str | None = None, retry_after: float | None = None
    ) -> None:
        """Gives a stream its result now; its slot is released when no step in flight uses it."""
        if stream.result is not None:
            return
        now, assembler = self.clock(), stream.assembler
        if reason not in ("cancelled", "error"):
            if self._has_tail and stream.allocation is not None:
                try:
                    tail = self._runner.flush(stream.slot, stream.generated)
                except Exception as failure:
                    log.exception("flush failed stream=%d", stream.id)
                    self.end(stream, "error", f"the end of the audio could not be decoded: {failure}")
                    return
                if tail is None:
                    self.end(stream, "error", NOT_FINITE)
                    return
                assembler.add(tail)
            if assembler.size and not assembler.silent:
                self._deliver(stream, True, now)
        started = stream.first_audio_at < inf
        stream.finish(
            Result(
                finish_reason=reason,
                seed=stream.seed,
                error=error,
                text_tokens=stream.text_tokens,
                frames=stream.generated,
                seconds=stream.delivered_seconds,
                queue_wait=min(now, stream.admitted_at) - stream.arrived_at,
                first_frame=stream.first_frame_at - stream.arrived_at if stream.generated else None,
                first_audio=stream.first_audio_at - stream.arrived_at if started else None,
                underruns=stream.underruns,
                text_waits=stream.text_waits,
                retry_after=retry_after,
            )
        )
        self._with_text.pop(stream, None)
        self._num_finished[reason] += 1
        self._underruns += stream.underruns
        self._streams_with_underruns += stream.underruns > 0
        self.ready[stream] = None
        if stream.status in HOLDS_SLOT:
            self._scheduler.discard_rest(stream)
            self._streams.transition(stream, StreamStatus.RELEASING, now)
        else:
            if stream.status is not StreamStatus.FINISHED:
                self._streams.transition(stream, StreamStatus.FINISHED, now)
            self._drop(stream)
        if self._trace:
            self._trace.stream(stream, now)

    def end_drained(self, streams: Iterable[LocalStream]) -> None:
        """Ends streams whose frames are all decoded and delivered."""
        for stream in streams:
            if stream.status is StreamStatus.DRAINING and stream.decoded == stream.generated:
                self.end(stream, stream.reason)

    def release_finished(self) -> None:
        """Releases the slots that no step in flight uses any more."""
        for stream in [s for s in self._streams[StreamStatus.RELEASING] if s.last_step <= self.completed_steps]:
            assert stream.allocation is not None
            self._runner.clear(stream.allocation)
            assert stream.result is not None
            completed = stream.result.finish_reason not in ("cancelled", "error")
            self._admission.release(stream, self.clock(), completed)
            self._drop(stream)

    def _drop(self, stream: LocalStream) -> None:
        """Frees the memory of a finished stream and wakes callers that wait for an idle engine."""
        stream.prepared, stream.text, stream.tokens = None, torch.empty(0), []
        self._wake()
