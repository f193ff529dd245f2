# SPDX-License-Identifier: Apache-2.0
"""The life of a stream in the engine, from its first text to the release of its slot; all under the engine's lock."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from math import inf
from typing import get_args

import numpy as np

from polyvox.audio.clip import FinishReason
from polyvox.audio.pcm import Audio
from polyvox.engine.admission import Admission
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.demand import Demand
from polyvox.engine.interface import Result
from polyvox.engine.load import SNAPSHOT_TTL
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slot_text import SlotText
from polyvox.engine.stream import LocalStream, StopRequest
from polyvox.engine.stream_arrays import Ints
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.engine.text_buffer import TextBuffer
from polyvox.engine.trace import TraceWriter
from polyvox.errors import Overloaded
from polyvox.kernels.flags import FRAME_ENDED, FRAME_REPETITION_LOOP
from polyvox.models.protocol import PreparedRequest, SpeechModel

log = logging.getLogger(__name__)

OUT_OF_PAGES = "The speech is longer than expected, and no KV page is free for the rest."
NOT_FINITE = "The model returned samples that are not finite numbers."
MAX_READER_DELAY = 2.0  # seconds that a reader in real time may be behind: the delay of a network and of its player


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
        self.config, self.clock, self._wake = config, clock, wake
        vocoder = model.vocoder
        self.sample_rate, self._samples_per_frame = vocoder.sample_rate, vocoder.samples_per_frame
        self._has_tail, self._has_delay = vocoder.tail_samples > 0, vocoder.delay_samples > 0
        # Of each slot: all samples of its frames are delivered, so its audio is assembled without a look at them.
        self._plain = np.zeros(config.max_streams, np.bool_)
        self._runner, self._streams, self._admission, self._scheduler = runner, streams, admission, scheduler
        self._trace = trace
        self.completed_steps = 0  # number of the last completed step
        self.changed: dict[LocalStream, None] = {}  # by readers and writers, since the last iteration
        self.stop_requests: dict[LocalStream, StopRequest] = {}
        self.ready: dict[LocalStream, None] = {}  # with chunks or a result that their readers do not know of
        self._slot_text = SlotText(runner, streams, admission.pages)
        self._num_finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self._audio_seconds, self._underruns, self._streams_with_underruns = 0.0, 0, 0
        self._num_out_of_pages = 0  # streams
        self._next_unread_at = -inf  # when the slot of an unread stream is counted again after a rejection

    def counts(self) -> dict[str, float]:
        """Counters since the start."""
        finished = {f"finished_{reason}": float(count) for reason, count in self._num_finished.items()}
        return finished | {
            "audio_seconds": self._audio_seconds,
            "streams_out_of_pages": float(self._num_out_of_pages),
            "underruns": float(self._underruns),
            "streams_with_underruns": float(self._streams_with_underruns),
        }

    # Arrival

    def await_text(self, stream: LocalStream) -> None:
        """Keeps a live stream without text; raises Overloaded if there are too many."""
        max_waiting = self.config.queue_length + self.config.max_streams
        if len(self._streams[StreamStatus.AWAITING_TEXT]) >= max_waiting:
            raise Overloaded("too many streams wait for their first text", 1.0, "queue_full")
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
        awaited_text = stream.awaits_text
        self._admission.enqueue(stream, now)
        stream.deadline = now
        if awaited_text:  # its times count from its first token, those of others include admission control
            stream.arrived_at = now
        stream.prepared, stream.text = prepared, TextBuffer(prepared.text)
        stream.guarded = prepared.guarded and max_frames == prepared.max_frames
        stream.text_tokens = max(stream.text_tokens, prepared.tokens)
        stream.text_deadline = inf

    def admit(self, now: float) -> None:
        """Writes admitted streams to their slots, and ends those that waited too long in the queue."""
        expired = self._admission.expire(now)
        for stream in expired:
            error = f"no slot was free within {self._admission.max_wait:g} s"
            seconds = self._admission.retry_after(Demand.of(stream.request), now)
            self.end(stream, "error", error, Overloaded(error, seconds, "no_slot_in_time"))
        with_text: list[LocalStream] = []
        for stream in self._admission.admit(now):
            assert stream.prepared is not None
            assert stream.allocation is not None
            try:
                stream.text_end = self._runner.assign(stream.allocation, stream.prepared)
            except Exception as error:
                log.exception("stream assignment failed stream=%d", stream.id)
                self.end(stream, "error", f"the request could not be prepared: {error}")
                continue
            self._plain[stream.slot] = not (stream.assembler.trims or self._has_delay)
            stream.text.take(stream.text_end, 0)
            if stream.text_open or len(stream.text) or stream.text_frames < inf:
                with_text.append(stream)
        if with_text:
            self._write_text(with_text, now)
        self.release_finished()

    # What readers and writers did

    def apply_changes(self, now: float) -> None:
        """Applies stop requests, free space in buffers and new text."""
        changed, self.changed = self.changed, {}
        with_text: list[LocalStream] = []
        for stream in changed:
            stop = self.stop_requests.pop(stream, None)
            if stop is not None:
                self.end(stream, stop.reason, stop.error, stop.rejection)
            elif stream.result is None:
                free = stream.buffer_free = self.buffer_free(stream)
                if free >= 1 and stream.reader_deadline < inf:
                    stream.reader_deadline = inf
                    self._streams.update_pause(stream, now)
                if stream.status in HOLDS_SLOT and stream.text_frames < inf:
                    with_text.append(stream)
        self._write_text([*with_text, *self._slot_text.due(now)], now)
        self.release_finished()

    def _write_text(self, streams: Sequence[LocalStream], now: float) -> None:
        """Writes the text of these streams to their slots, and starts the timeout of those whose text has run out."""
        for stream, error in self._slot_text.write(streams, now):
            self.end(stream, "error", error)
        arrays = self._streams.used()
        out_of_text = arrays.needs_text() & (arrays.text_deadline == inf) & (arrays.prompt_left() <= 0)
        for stream in self._streams.at(np.flatnonzero(arrays.active & out_of_text)):
            if stream.text_open and not len(stream.text):
                stream.wait_for_text(now + self.config.text_timeout)
                self._streams.update_pause(stream, now)

    def grow_pages(self) -> None:
        """Gives KV pages to streams that are longer than expected; see `StreamPages.grow`."""
        grown, out_of_pages = self._admission.pages.grow()
        for stream in grown:
            assert stream.allocation is not None
            self._runner.update_pages(stream.allocation)
        for stream in out_of_pages:
            log.warning("no KV page is free stream=%d max_frames=%d", stream.id, stream.max_frames)
        self._num_out_of_pages += len(out_of_pages)

    def expire_timeouts(self, now: float) -> None:
        """Ends streams that waited too long for their reader or for text."""
        arrays = self._streams.used()
        expired = (arrays.reader_deadline < now) | (arrays.text_deadline < now)
        awaiting = takewhile(lambda stream: stream.text_deadline < now, self._streams[StreamStatus.AWAITING_TEXT])
        for stream in [*self._streams.at(np.flatnonzero(arrays.active & expired)), *awaiting]:
            if now > stream.reader_deadline:
                self.end(stream, "error", f"nothing was read for {self.config.reader_timeout:g} s")
            else:
                self.end(stream, "error", f"no text arrived for {self.config.text_timeout:g} s")
        self.release_finished()

    @contextmanager
    def counting_unread(self, live: bool) -> Iterator[LocalStream | None]:
        """Admission control counts the slot of an unread stream as free, if a new stream needs it.

        The value is that stream: the caller stops it if the new one is accepted.
        """
        now = self.clock()
        may_try = now >= self._next_unread_at and self._admission.lacks_slot(live)
        unread = self._find_unread(now) if may_try else None
        if unread is None:
            yield None
            return
        self._admission.on_stop_requested(unread)
        try:
            yield unread
        except Overloaded:  # each attempt costs a new estimate of the wait
            self._next_unread_at = now + SNAPSHOT_TTL
            raise
        finally:
            self._admission.on_stop_withdrawn(unread)

    def _find_unread(self, now: float) -> LocalStream | None:
        """Of the streams that keep a slot because their buffer is full and their reader is behind real time, the one
        that is the furthest behind."""
        arrays = self._streams.used()
        full = self._streams.at(np.flatnonzero(arrays.active & (arrays.reader_deadline < inf)))
        behind = {s: s.buffered / self.sample_rate - s.lead(now) for s in full if not s.stopping}
        found = max(behind, key=behind.__getitem__, default=None)
        return found if found is not None and behind[found] > MAX_READER_DELAY else None

    def next_timeout(self, now: float) -> float | None:
        """Seconds until something happens without a call: a timeout or an admission; None if nothing will."""
        arrays = self._streams.used()
        timeouts = np.minimum(arrays.reader_deadline, arrays.text_deadline)[arrays.active]
        awaiting = islice(self._streams[StreamStatus.AWAITING_TEXT], 1)  # they are in the order of their timeouts
        first = min(
            self._admission.next_change(now),
            timeouts.min(initial=inf),
            *(stream.text_deadline for stream in awaiting),
            self._slot_text.next_deadline(),
        )
        return max(first - now, 0.0) + 0.001 if first < inf else None

    # Audio

    def on_frame_results(self, slots: Ints, flags: Ints, now: float) -> None:
        """Counts the generated frames of a step, and ends generation where it is due."""
        arrays = self._streams.arrays
        running = ~arrays.ended[slots]
        slots, flags = slots[running], flags[running]
        spoken = flags & FRAME_ENDED == 0
        arrays.generated[slots] += spoken
        for stream in self._streams.at(slots[spoken & (arrays.generated[slots] == 1)]):
            stream.first_frame_at = now
        last = (flags != 0) | (arrays.generated[slots] >= arrays.max_frames[slots])
        for stream, flag in zip(self._streams.at(slots[last]), flags[last].tolist(), strict=True):
            self._end_frames(stream, flag, now)

    def _end_frames(self, stream: LocalStream, flags: int, now: float) -> None:
        """Ends generation after a frame with these flags, unless they do not apply to this stream."""
        if not flags & FRAME_ENDED:
            if flags & FRAME_REPETITION_LOOP and stream.request.guard:
                stream.reason = "runaway"
            elif stream.generated >= stream.max_frames and stream.out_of_pages:
                self.end(stream, "error", OUT_OF_PAGES)
                return
            elif stream.generated >= stream.max_frames:
                stream.reason = "runaway" if stream.guarded else "length"
            else:
                return
        stream.text_deadline = inf
        self._streams.transition(stream, StreamStatus.DRAINING, now)

    def on_audio(self, slots: Ints, frames: Ints, audio: Sequence[Audio | None], now: float) -> None:
        """Withholds the audio of these slots until it is worth a chunk, or no more follows; None: it is not finite."""
        arrays, streams = self._streams.arrays, self._streams.at(slots)
        plain = self._plain[slots]
        for index in np.flatnonzero(plain).tolist():
            if (samples := audio[index]) is None:
                plain[index] = False
            else:
                streams[index].assembler.parts.append(samples)
        added = slots[plain]
        arrays.buffer_free[added] = np.maximum(arrays.buffer_free[added] - frames[plain], 0.0)
        # There is nothing to deliver while all samples were the vocoder's delay or are leading silence.
        received, audible = plain.copy(), plain.copy()
        for index in np.flatnonzero(~plain).tolist():
            stream, samples = streams[index], audio[index]
            if stream.result is not None:
                continue
            if samples is None:
                self.end(stream, "error", NOT_FINITE)
                continue
            assembler = stream.assembler
            assembler.add(samples)
            if assembler.trims:
                stream.undelivered = assembler.size // self._samples_per_frame
            stream.buffer_free = self.buffer_free(stream)
            received[index], audible[index] = True, assembler.size > 0 and not assembler.silent
        indices = np.flatnonzero(received)
        if not len(indices):
            return
        slots = slots[indices]
        final = arrays.ended[slots] & (arrays.decoded[slots] == arrays.generated[slots]) & (not self._has_tail)
        due = final | (audible[indices] & self._scheduler.is_due(now)[slots])
        # The audio of a stream with a long lead may stay undelivered for long.
        relaxed = self._streams.used().lead(now)[slots] >= self._scheduler.load.limits.lead_cap
        for index in indices[relaxed & ~due].tolist():
            streams[index].assembler.own_last()
        delivered = [streams[index] for index in indices[due].tolist()]
        sizes = [stream.deliver(last) for stream, last in zip(delivered, final[due].tolist(), strict=True)]
        self._plain[slots[due]] = not self._has_delay
        self._record_delivery(delivered, sizes, now)

    def _record_delivery(self, streams: Sequence[LocalStream], sizes: Sequence[int], now: float) -> None:
        """Moves the deadlines of streams to whose buffers this many samples were added."""
        slots, arrays = np.array([stream.row for stream in streams], np.int64), self._streams.arrays
        self._scheduler.deliver(slots, np.array(sizes) / self._samples_per_frame, now)
        full = (arrays.buffer_free[slots] < 1) & (arrays.reader_deadline[slots] == inf)
        for stream in self._streams.at(slots[full]):
            stream.reader_deadline = now + self.config.reader_timeout
            self._streams.update_pause(stream, now)
        self._audio_seconds += sum(sizes) / self.sample_rate
        self.ready |= dict.fromkeys(streams)

    def buffer_free(self, stream: LocalStream) -> float:
        """Frames that the reader's buffer can take."""
        size = self.config.buffer_seconds * self.sample_rate
        return max(0.0, (size - stream.buffered - stream.assembler.size) // self._samples_per_frame)

    # End

    def end(
        self, stream: LocalStream, reason: FinishReason, error: str | None = None, rejection: Overloaded | None = None
    ) -> None:
        """Gives a stream its result now; its slot is released when no step in flight uses it."""
        if stream.result is not None:
            return
        now = self.clock()
        if reason not in ("cancelled", "error") and (failure := self._finish_audio(stream, now)) is not None:
            reason, error = "error", failure
        stream.finish(_result_of(stream, reason, error, rejection, now))
        self._slot_text.discard(stream)
        self._num_finished[reason] += 1
        self._underruns += stream.underruns
        self._streams_with_underruns += stream.underruns > 0
        self.ready[stream] = None
        if stream.status in HOLDS_SLOT:
            self._plain[stream.slot] = False
            self._scheduler.discard_rest(stream)
            self._streams.transition(stream, StreamStatus.RELEASING, now)
        else:
            if stream.status is not StreamStatus.FINISHED:
                self._streams.transition(stream, StreamStatus.FINISHED, now)
            self._drop(stream)
        if self._trace:
            self._trace.stream(stream, now)

    def _finish_audio(self, stream: LocalStream, now: float) -> str | None:
        """Decodes and delivers the rest of a stream's audio; returns the error if that fails."""
        assembler = stream.assembler
        if self._has_tail and stream.allocation is not None:
            try:
                tail = self._runner.flush(stream.slot, stream.generated)
            except Exception as error:
                log.exception("flush failed stream=%d", stream.id)
                return f"the end of the audio could not be decoded: {error}"
            if tail is None:
                return NOT_FINITE
            assembler.add(tail)
        if assembler.size and not assembler.silent:
            self._record_delivery([stream], [stream.deliver(final=True)], now)
        return None

    def end_drained(self, slots: Ints) -> None:
        """Ends those of these streams whose frames are all decoded and delivered."""
        arrays = self._streams.arrays
        drained = arrays.ended[slots] & (arrays.decoded[slots] == arrays.generated[slots])
        for stream in self._streams.at(slots[drained]):
            if stream.status is StreamStatus.DRAINING:
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
        stream.prepared, stream.text = None, TextBuffer()
        self._wake()


def _result_of(
    stream: LocalStream, reason: FinishReason, error: str | None, rejection: Overloaded | None, now: float
) -> Result:
    started = stream.first_audio_at < inf
    return Result(
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
        retry_after=None if rejection is None else rejection.retry_after,
        overload_reason=None if rejection is None else rejection.reason,
    )
