# SPDX-License-Identifier: Apache-2.0
"""An utterance: segments of text, each synthesised by one stream of the engine, encoded to bytes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

from polyvox.alignment import SpeechTimeline, TimedText
from polyvox.audio.clip import FinishReason
from polyvox.audio.pcm import Audio, Pcm
from polyvox.engine.interface import AsyncStream
from polyvox.errors import Overloaded, StreamFailed
from polyvox.models.request import ThinkerPrompt
from polyvox.server.logs import arrival_of
from polyvox.server.request_log import RequestRecord
from polyvox.server.synthesis.chunk_timing import ChunkTiming
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.output import OutputEncoder
from polyvox.server.synthesis.segment_streams import SegmentStreams
from polyvox.server.synthesis.segments import Segment, SegmentQueue
from polyvox.server.synthesis.speech_recording import SpeechRecording
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.utterance_trace import UtteranceTrace

if TYPE_CHECKING:
    from polyvox.server.synthesis.service import SynthesisService

P = ParamSpec("P")

APPEND_CHARS = 1000  # characters that are normalised at once: a long text must not block the event loop
# The next segment is submitted when this fraction of the current one is generated, estimated from its bytes of text:
# early enough to avoid a gap, late enough that an utterance rarely uses two slots.
PREFETCH_FRACTION, SECONDS_PER_BYTE = 0.6, 0.072
SILENCE_PIECE = 1.0  # seconds of silence that are encoded at once
UtteranceEvent = Segment | TimedText | bytes | SpooledFile
BY_SEVERITY: tuple[FinishReason, ...] = ("stop", "length", "runaway", "cancelled", "error")


class Utterance:
    """A running synthesis request: iterate over `audio` or `events` once. A live one accepts text until `finish`."""

    def __init__(self, service: "SynthesisService", options: SynthesisOptions, request_id: str, owner: str) -> None:
        self._service, self._options = service, options
        self._start_time = time.monotonic()
        model = service.info.identity.name
        self.record = RequestRecord(request_id, model, time.time(), seed=options.seed or 0, owner=owner)
        self._segments: SegmentQueue | None = None
        self._encoder: OutputEncoder | None = None
        self._streams: SegmentStreams | None = None
        self._rate = 1.0  # of speaking, of the current segment
        self._encoding: asyncio.Future[bytes] | None = None
        self._finish_reason: FinishReason = "stop"  # the most severe of all segments
        self._cancelled = self._closed = False
        self.failure: str | None = None  # why its text cannot be completed; for the record of a cancelled utterance
        self.awaiting_text = False  # all text so far is synthesised
        self.playing_seconds = 0.0  # playing time of the audio so far
        self.timed_text: list[TimedText] = []  # of a whole file
        self._trace: UtteranceTrace = service.new_trace(request_id)
        self._chunk_timing = ChunkTiming(service.on_chunk)
        self._arrived_at = None if options.live else arrival_of(request_id)
        self._timeline: SpeechTimeline | None = None
        if options.timestamps:
            self._timeline = SpeechTimeline(service.engine.sample_rate, options.streaming, options.speed)
        self.recording: SpeechRecording | None = None
        if options.recorded:
            self.recording = SpeechRecording(service.engine.sample_rate, options.speed, service.alignments)

    @property
    def content_type(self) -> str:
        assert self._encoder is not None
        return self._encoder.content_type

    @property
    def sample_rate(self) -> int:
        """Sample rate of the encoded audio."""
        assert self._encoder is not None
        return self._encoder.sample_rate

    async def start(self) -> None:
        """Validates the options and submits the first segment."""
        try:
            await self._start()
        except asyncio.CancelledError:
            self._record_finished("cancelled")
            raise

    async def _start(self) -> None:
        self._segments, request, self._encoder = await self._service.prepare_async(self._options)
        assert request.seed is not None
        self.record.seed, self.record.characters = request.seed, self._segments.characters
        self._streams = SegmentStreams(self._service, self._options, self.record, self._segments, request, self._trace)
        if self._options.text and self._options.live:
            self.append(self._options.text)
        await self._streams.submit_first()

    async def precheck(self, content: object) -> None:
        """Raises Overloaded if the engine would reject a live utterance now, before there is any text."""
        assert self._streams is not None
        await self._streams.precheck(content)

    def append(self, text: str) -> None:
        """More text for a live utterance."""
        assert self._segments is not None
        self._segments.append(text)
        self.record.characters = self._segments.characters

    async def append_long(self, text: str) -> None:
        """As `append`; other tasks of the event loop run between the parts of a long text."""
        for start in range(0, len(text), APPEND_CHARS):
            if start:
                await asyncio.sleep(0)
            self.append(text[start : start + APPEND_CHARS])

    def start_answer(self, prompt: ThinkerPrompt) -> None:
        """The prompt of an answer whose tokens follow, for models that take conversations."""
        assert self._segments is not None
        self._segments.start_answer(prompt)

    def append_tokens(self, ids: Sequence[int]) -> None:
        """The next tokens of the answer."""
        assert self._segments is not None
        self._segments.append_tokens(ids)

    def flush(self) -> None:
        """Ends the current segment; text that follows starts a new one."""
        assert self._segments is not None
        self._segments.flush()

    def finish(self) -> None:
        """Marks the text as complete. Idempotent."""
        assert self._segments is not None
        self._segments.finish()

    def cancel(self) -> None:
        """Ends the utterance at once; its audio ends without an error. Idempotent."""
        self._cancelled = True
        if self._streams is not None:
            self._streams.cancel()
        if self._segments is not None:
            self._segments.close()

    async def audio(self) -> AsyncGenerator[bytes]:
        """Encoded audio of a streaming utterance, never empty; raises StreamFailed or Overloaded."""
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, bytes):
                    yield event

    async def timed_audio(self) -> AsyncGenerator[tuple[bytes, list[TimedText]]]:
        """As `audio`, with the text that starts in it. The last piece may be text without audio."""
        timed: list[TimedText] = []
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, TimedText):
                    timed.append(event)
                elif isinstance(event, bytes):
                    yield event, timed
                    timed = []
        if timed:
            yield b"", timed

    async def file(self) -> SpooledFile:
        """The whole audio, if it is not streaming. The caller closes the file. Raises StreamFailed or Overloaded.

        With timestamps, its text is in `timed_text`.
        """
        found: SpooledFile | None = None
        try:
            async with aclosing(self.events()) as events:
                async for event in events:
                    found = event if isinstance(event, SpooledFile) else found
                    if isinstance(event, TimedText):
                        self.timed_text.append(event)
        except BaseException:
            if found is not None:
                found.close()
            raise
        if found is None:
            raise StreamFailed("The utterance was cancelled.")
        return found

    async def events(self) -> AsyncGenerator[UtteranceEvent]:
        """Each segment, then its encoded audio: bytes, or a file at its end, which the caller closes.

        With timestamps, the text that starts in a piece of audio comes before it.
        """
        assert self._encoder is not None
        started = False
        try:
            async with aclosing(self._samples()) as items:
                async for item in items:
                    if isinstance(item, Segment):
                        if started and self._options.separate_files:
                            if rest := await self._finish_encoding():
                                yield rest
                            self._encoder = self._service.new_encoder(self._options)
                        started, self._rate = True, item.rate
                        if self.recording is not None:
                            self.recording.begin(item)
                        yield item
                    elif isinstance(item, TimedText):
                        yield item
                    else:
                        self.playing_seconds += (
                            len(item) / self._service.engine.sample_rate / (self._options.speed * self._rate)
                        )
                        if self.recording is not None:
                            self.recording.add(item)
                        if data := await self._encode(self._encoder.push, item, self._rate):
                            self._note_first_audio()
                            self._chunk_timing.on_ready(self.playing_seconds, time.monotonic())
                            yield data
                            self._chunk_timing.on_sent(time.monotonic())
            has_file = (started or not self._options.live) and not self._cancelled
            if has_file and (rest := await self._finish_encoding()):
                yield rest
            self._record_finished("cancelled" if self._cancelled else self._finish_reason)
        except (asyncio.CancelledError, GeneratorExit):
            self._record_finished("cancelled")
            raise
        except Exception as error:
            if self.record.first_audio is not None or not isinstance(error, Overloaded):
                self._record_finished("error", str(error))  # otherwise it is recorded as rejected
            raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancels what the engine still runs and frees the encoder. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._service.active.discard(self)
        self._trace.on_finished(self.record)
        if self._streams is not None:
            self._streams.close()
        if self._encoder is not None:
            if self._encoding is None or self._encoding.done():
                self._encoder.close()
            else:  # a thread is still encoding
                encoder = self._encoder
                self._encoding.add_done_callback(lambda _: encoder.close())

    async def _samples(self) -> AsyncGenerator[Segment | TimedText | Audio]:
        """Each segment, then its audio, with the silence between segments. The text of audio comes before it."""
        assert self._segments is not None
        assert self._streams is not None
        while (segment := await self._next_segment()) is not None:
            silence = segment.silence
            prefetch_after = (
                PREFETCH_FRACTION * SECONDS_PER_BYTE * len(segment.written_text.encode(errors="surrogatepass"))
            )
            seconds = 0.0
            stream = self._streams.current
            assert stream is not None
            yield segment
            timeline = self._timeline if segment.source is not None else None
            if timeline is not None and segment.source is not None:
                timeline.begin(segment.source, segment.rate)
            async for chunk in stream:
                if chunk.times is not None and self._streams.num_submitted == 1:
                    self._streams.first_packet.chunk = chunk.times
                if silence:
                    for quiet in self._silence(silence, timeline):
                        yield quiet
                    silence = 0.0
                chunk_seconds = len(chunk.audio) / self._service.engine.sample_rate
                seconds += chunk_seconds
                if (seconds >= prefetch_after or chunk.final) and not self._streams.has_next and not self._cancelled:
                    self._streams.submit_ready()
                if chunk_seconds:
                    self.record.audio_seconds += chunk_seconds
                    if timeline is not None:
                        yield await self._service.alignments.push(timeline, chunk.samples, chunk.final)
                        timeline = None if chunk.final else timeline
                    yield chunk.audio
                if chunk.final and self.recording is not None:
                    self.recording.finish()
            self._add_result(stream)
            if self._cancelled:
                return
            if timeline is not None:
                yield await self._service.alignments.push(timeline, np.zeros(0, np.float32), final=True)
        if self._cancelled:
            return
        for quiet in self._silence(self._segments.trailing_silence, self._timeline):
            yield quiet
        if self._timeline is not None and (rest := self._segments.rest_of_text()) is not None:
            timed = self._timeline.finish(rest)
            if timed.written.chars or timed.spoken.chars:
                yield timed

    async def _next_segment(self) -> Segment | None:
        """Makes the next segment the current one; None after the last."""
        assert self._segments is not None
        assert self._streams is not None
        if not self._streams.has_next:
            self.awaiting_text, since = True, time.monotonic()
            segment = await self._segments.next()
            self.awaiting_text = False
            awaited = time.monotonic() - since
            self._start_time += awaited
            if not self._streams.num_submitted:
                self._streams.first_packet.awaited += awaited
            self._chunk_timing.on_text_awaited()
            if segment is None or self._cancelled:
                return None
            self._streams.submit(segment)
        try:
            segment = await self._streams.advance()
        except asyncio.CancelledError:
            if self._cancelled:
                return None
            raise
        if self._cancelled:  # after the engine accepted the segment
            self._streams.cancel()
            return None
        assert self._streams.current is not None
        self.record.replica = self._streams.current.replica
        return segment

    def _add_result(self, stream: AsyncStream) -> None:
        result = stream.result
        if result is None or (result.finish_reason == "cancelled" and not self._cancelled):
            raise StreamFailed("The engine ended the stream before it was finished.")
        self.record.add(result)
        self._trace.on_sentence_finished(stream, result)
        self._finish_reason = max(self._finish_reason, result.finish_reason, key=BY_SEVERITY.index)

    async def _encode(self, work: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Encodes in a thread, except for PCM that is sent as it is."""
        assert self._encoder is not None
        if self._encoder.is_plain and self._rate == 1.0:
            return work(*args, **kwargs)
        self._encoding = self._service.encode(work, *args, **kwargs)
        return await asyncio.shield(self._encoding)

    async def _finish_encoding(self) -> bytes | SpooledFile:
        assert self._encoder is not None
        data = await self._encode(self._encoder.finish)
        file = self._encoder.take_file()
        if data or file is not None:
            self._note_first_audio()
        return data if file is None else file

    def _silence(self, seconds: float, timeline: SpeechTimeline | None) -> Iterator[TimedText | Pcm]:
        """Silence in pieces, so that a reader's backpressure applies to it; it ends when the utterance is cancelled.

        The rate of speaking does not shorten it.
        """
        sample_rate = self._service.engine.sample_rate
        remaining = round(seconds * self._rate * sample_rate)
        while remaining and not self._cancelled:
            quiet = np.zeros(min(remaining, round(SILENCE_PIECE * sample_rate)), np.int16)
            remaining -= len(quiet)
            self.record.audio_seconds += len(quiet) / sample_rate
            if timeline is not None:
                yield timeline.silence(len(quiet))
            yield quiet

    def _note_first_audio(self) -> None:
        if self.record.first_audio is None:
            now = time.monotonic()
            assert self._streams is not None
            timer = self._streams.first_packet
            self.record.first_audio = now - self._start_time - timer.awaited_in_engine
            if self._options.streaming:
                self.record.stages = timer.stages(self._arrived_at, self._start_time, now)
            self._trace.on_first_packet(self.record.stages)

    def _record_finished(self, reason: FinishReason, error: str | None = None) -> None:
        if reason == "cancelled" and self.failure is not None:
            reason, error = "error", self.failure
        self.record.finish_reason, self.record.error = reason, error
        if self._segments is not None:
            self.record.language = ",".join(self._segments.languages) or None
        self.record.seconds = time.monotonic() - self._start_time
        self._service.on_finished(self.record)
