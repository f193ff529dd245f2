"""The streams of an engine, from the offer until their slots are free again; all of it under the engine's lock."""

import logging
from collections.abc import Callable
from math import inf
from typing import get_args

import torch

from polyvox.audio.clip import FinishReason, Samples
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.interface import Result
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_state import StreamState
from polyvox.engine.trace import TraceWriter
from polyvox.errors import Overloaded
from polyvox.models.protocol import ENDED, REPETITION_LOOP, PreparedRequest, SpeechModel

log = logging.getLogger(__name__)


class StreamTable:
    """Who is there, who has text, sound or an end coming, and who waits for what.

    A turn looks only at what may have changed: with a thousand streams, time is short.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        stepper: ModelRunner,
        scheduler: Scheduler,
        clock: Callable[[], float],
        wake: Callable[[], None],
        trace: TraceWriter | None,
    ) -> None:
        self.config, self.clock, self._wake = config, clock, wake
        self.sample_rate, self._frame = model.sample_rate, model.samples_per_frame
        self._stepper, self._scheduler, self._trace = stepper, scheduler, trace
        self.over = 0  # the number of the last step that has landed
        self.streams: dict[StreamState, LocalStream] = {}
        self.changed: dict[LocalStream, None] = {}  # by those who read, write or cancel
        self.unspoken: dict[LocalStream, None] = {}  # live streams that have no first word yet
        self.leaving: list[LocalStream] = []
        self.notified: dict[LocalStream, None] = {}
        self._growing: dict[LocalStream, None] = {}  # that run, and whose text is not all in the slot
        self._impatient: dict[LocalStream, None] = {}  # that may wait for a reader or for text
        self._finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self._audio_seconds, self._underruns = 0.0, 0
        self._ids = 0

    def everybody(self) -> list[LocalStream]:
        return [*self.streams.values(), *self.unspoken]

    def counts(self) -> dict[str, float]:
        """Since the start."""
        ends = {f"finished_{reason}": float(count) for reason, count in self._finished.items()}
        return ends | {"audio_seconds": self._audio_seconds, "underruns": float(self._underruns)}

    # Coming

    def wait_for_word(self, stream: LocalStream) -> None:
        """A live stream without any text."""
        if len(self.unspoken) >= self.config.max_queue + self.config.max_streams:
            raise Overloaded("too many streams wait for their first word", retry_after=1)
        stream.waiting_since = self.clock()
        self.unspoken[stream] = self._impatient[stream] = None

    def offer(self, stream: LocalStream, prepared: PreparedRequest) -> None:
        """Puts a stream into the queue; raises Overloaded where there is no place in it."""
        now = self.clock()
        # A stream never waits for memory once it runs, so it may not come to more than there is.
        most = self.config.pages * PAGE - len(prepared.rows) - 1
        track = StreamState(
            id=self._ids + 1,
            arrived=now,
            prompt_rows=len(prepared.rows),
            max_frames=max(1, min(prepared.max_frames, most)),
            live=not stream.request.whole_file,
            continues=stream.request.segment > 0,
            first_chunk=stream.request.first_chunk or 0,
            room=self.room(stream),
            text_frames=0 if stream.text_open else inf,
        )
        self._scheduler.offer(track, now)
        self._ids += 1
        stream.arrived, stream.prepared, stream.track, stream.text = now, prepared, track, prepared.text
        stream.guarded = prepared.guarded and track.max_frames == prepared.max_frames
        stream.text_tokens = max(stream.text_tokens, prepared.tokens)
        stream.waiting_since = None
        self.unspoken.pop(stream, None)
        self.streams[track] = stream

    def admit(self, now: float) -> None:
        admitted, expired = self._scheduler.admit(now)
        for track in expired:
            stream = self.streams[track]
            wait = f"no place came free within {self._scheduler.give_up_seconds:g} s"
            self.end(stream, "error", wait, self._scheduler.retry_after(track.live, now))
        for track in admitted:
            stream = self.streams[track]
            assert stream.prepared is not None
            assert track.allocation is not None
            try:
                stream.text_end = self._stepper.assign(track.allocation, stream.prepared)
            except Exception as error:
                log.exception("a stream could not be seated")
                self.end(stream, "error", f"the request could not be prepared: {error}")
                continue
            stream.text = stream.text[stream.text_end :].clone()
            if stream.text_open or len(stream.text) or track.text_frames < inf:
                self._growing[stream] = None
                self._feed_text(track, stream, now)
        self.free_those_who_left()

    def look_at_changes(self, now: float) -> None:
        """What readers and writers did, and text that has found room in its slot since."""
        changed, self.changed = self.changed, {}
        for stream in changed:
            if stream.wants_end is not None:
                self.end(stream, stream.wants_end, stream.failure, stream.retry_after)
            elif stream.track is not None:
                stream.track.room = self.room(stream)
                if stream.track.room >= 1:
                    stream.full_since = None
        for stream in list(self._growing):
            assert stream.track is not None
            self._feed_text(stream.track, stream, now)
        self.free_those_who_left()

    def _feed_text(self, track: StreamState, stream: LocalStream, now: float) -> None:
        """Moves text into the slot, and tells the scheduler how far it reaches."""
        if len(stream.text):
            try:
                count = self._stepper.write_text(stream.slot, stream.text_end, stream.text, track.started)
            except Exception as error:
                log.exception("text could not be written")
                self.end(stream, "error", f"the text could not be read: {error}")
                return
            stream.text = stream.text[count:].clone()
            stream.text_end += count
        closed = not stream.text_open and not len(stream.text)
        if closed and track.text_frames < inf and stream.request.guard:
            longest = max(self._stepper.close_text(stream.slot, stream.text_size), track.started + 1)
            stream.guarded |= longest < track.max_frames
            track.max_frames = min(track.max_frames, longest)
            assert track.allocation is not None
            self._stepper.shrink(track.allocation, self._scheduler.shrink(track))
        track.text_frames = inf if closed else stream.text_end
        if closed:
            self._growing.pop(stream, None)
        if track.started < track.text_frames:
            stream.waiting_since = None
        elif stream.waiting_since is None and stream.text_open and not track.prompt_left:
            stream.wait_for_text(now)
            self._impatient[stream] = None

    def end_the_impatient(self, now: float) -> None:
        for stream in list(self._impatient):
            if stream.result is not None or (stream.full_since is None and stream.waiting_since is None):
                del self._impatient[stream]
            elif stream.full_since is not None and now - stream.full_since > self.config.reader_timeout:
                self.end(stream, "error", f"nothing was read for {self.config.reader_timeout:g} s")
            elif stream.waiting_since is not None and now - stream.waiting_since > self.config.text_timeout:
                self.end(stream, "error", f"no text came for {self.config.text_timeout:g} s")
        self.free_those_who_left()

    # Speaking

    def heard(self, stream: LocalStream, flags: int) -> None:
        track = stream.track
        if track is None or track.ended or stream.result is not None:
            return
        if flags & ENDED:
            track.ended = True
            return
        track.made += 1
        if flags & REPETITION_LOOP and stream.request.guard:
            track.ended, stream.reason = True, "runaway"
        elif track.made >= track.max_frames:
            track.ended, stream.reason = True, "runaway" if stream.guarded else "length"

    def give(self, stream: LocalStream, track: StreamState, samples: Samples, frames: int, now: float) -> None:
        """Holds samples until they are worth a chunk, or nothing will follow."""
        track.held += frames
        stream.hold(samples)
        if stream.trims:
            stream.trim(self.sample_rate)
            track.held = stream.held // self._frame
        track.room = self.room(stream)
        final = track.ended and track.decoded == track.made
        if final or (not stream.silent and self._scheduler.due(track, now)):
            self._push(stream, track, final, now)
        elif track.lead(now) >= self._scheduler.limits.lead_cap:  # it may rest for long
            stream.own()

    def _push(self, stream: LocalStream, track: StreamState, final: bool, now: float) -> None:
        """What was held goes to the reader."""
        size = stream.release(final)
        self._scheduler.gave(track, size / self._frame, now)
        track.room = self.room(stream)
        if track.room < 1 and stream.full_since is None:
            stream.full_since = now
            self._impatient[stream] = None
        self._audio_seconds += size / self.sample_rate
        self.notified[stream] = None

    def room(self, stream: LocalStream) -> float:
        most = self.config.buffer_seconds * self.sample_rate
        return max(0.0, (most - stream.buffered - stream.held) // self._frame)

    # Going

    def end(
        self,
        stream: LocalStream,
        reason: FinishReason,
        error: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Ends a stream for its reader now; its slot is freed when no step names it any more."""
        track = stream.track
        if stream.result is not None:
            return
        if track is not None and stream.held and not stream.silent and reason not in ("cancelled", "error"):
            self._push(stream, track, True, self.clock())
        stream.end(
            Result(
                finish_reason=reason,
                seed=stream.seed,
                error=error,
                text_tokens=stream.text_tokens,
                frames=track.made if track else 0,
                seconds=track.given if track else 0.0,
                queue_wait=(self.clock() if track is None or track.admitted is None else track.admitted)
                - stream.arrived,
                first_audio=track.first_audio - stream.arrived if track and track.first_audio is not None else None,
                underruns=track.underruns if track else 0,
                text_waits=stream.text_waits,
                retry_after=retry_after,
            )
        )
        stream.text_open = False
        self.unspoken.pop(stream, None)
        self._growing.pop(stream, None)
        self._finished[reason] += 1
        self.notified[stream] = None
        if track is not None:
            self._scheduler.ends_now(track)
            self._underruns += track.underruns
            self.leaving.append(stream)
        if self._trace:
            self._trace.stream(stream, self.clock())

    def end_those_who_are_done(self, streams: list[LocalStream]) -> None:
        for stream in streams:
            track = stream.track
            if track is not None and track.ended and track.decoded == track.made:
                self.end(stream, stream.reason)

    def free_those_who_left(self) -> None:
        for stream in [stream for stream in self.leaving if stream.flight <= self.over]:
            self.leaving.remove(stream)
            assert stream.track is not None
            if stream.track.allocation is not None:
                self._stepper.clear(stream.track.allocation)
            self._scheduler.release(stream.track, self.clock())
            self.streams.pop(stream.track, None)
            stream.prepared = None
            stream.text = torch.empty(0)
            self._wake()  # whoever waits for a free engine

    def next_timer(self, now: float) -> float | None:
        """Seconds until something happens by itself; None where nothing will."""
        moments = [t.arrived + self._scheduler.give_up_seconds for t in self._scheduler.waiting]
        for stream in self._impatient:
            if stream.full_since is not None:
                moments.append(stream.full_since + self.config.reader_timeout)
            if stream.waiting_since is not None:
                moments.append(stream.waiting_since + self.config.text_timeout)
        return max(min(moments) - now, 0.0) + 0.001 if moments else None
