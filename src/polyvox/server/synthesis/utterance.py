"""An utterance: some sentences, each a stream of the engine, on their way to bytes of sound."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

from polyvox.audio.clip import FinishReason, Samples
from polyvox.engine.interface import Stream
from polyvox.errors import EngineDown, Overloaded, PolyvoxError, StreamFailed
from polyvox.models.request import Request
from polyvox.server.request_log import RequestRecord
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.output import OutputEncoder
from polyvox.server.synthesis.segments import Segment, SegmentQueue, StreamingSegment

if TYPE_CHECKING:
    from polyvox.server.synthesis.service import SynthesisService

log = logging.getLogger(__name__)

P = ParamSpec("P")

AGAIN_SECONDS = 0.2  # until a sentence in the midst of an utterance asks again for a place
# The next sentence is begun when this share of the last one is made, by what a byte of text takes (speech.py of the
# model): early enough that no gap is heard, late enough that an utterance does not hold two places.
AHEAD_SHARE, SECONDS_PER_BYTE = 0.6, 0.072
WORSE: tuple[FinishReason, ...] = ("stop", "length", "runaway", "cancelled", "error")


class Utterance:
    """Something that is being said: iterate over `sound` or `parts` once. A live one takes text until `finish`."""

    def __init__(self, speaker: "SynthesisService", wanted: SynthesisOptions, request_id: str) -> None:
        self._speaker, self._wanted = speaker, wanted
        self._arrived = time.monotonic()
        name = speaker.facts.identity.name
        self.outcome = RequestRecord(request_id, name, time.time(), seed=wanted.seed or 0)
        self._script: SegmentQueue | None = None
        self._sound: OutputEncoder | None = None
        self._request: Request | None = None
        self._segment = 0
        # The sentence that is spoken and the one after it, on their way to the engine and back.
        self._coming: tuple[Segment, asyncio.Task[Stream]] | None = None
        self._stream: Stream | None = None
        self._encoding: asyncio.Future[bytes] | None = None
        self._feeding: asyncio.Task[None] | None = None  # the words of a sentence that grows
        self._reason: FinishReason = "stop"  # the worst of its sentences
        self._cancelled = self._closed = False
        self.wants_text = False  # all that is there was said

    @property
    def content_type(self) -> str:
        assert self._sound is not None
        return self._sound.content_type

    @property
    def sample_rate(self) -> int:
        """Of its bytes."""
        assert self._sound is not None
        return self._sound.sample_rate

    async def begin(self) -> None:
        """The speaker's: checks everything and brings the first sentence to the engine."""
        prepared = await self._speaker.in_thread(self._speaker.prepare, self._wanted)
        self._script, self._request, self._sound = prepared
        assert self._request.seed is not None
        self.outcome.seed, self.outcome.characters = self._request.seed, self._script.characters
        if self._wanted.text and self._wanted.live:
            self.append(self._wanted.text)
        if (first := self._script.ready()) is not None:
            self._coming = first, asyncio.create_task(self._send(first))
            await asyncio.shield(self._coming[1])

    def append(self, text: str) -> None:
        """More text for a live utterance."""
        assert self._script is not None
        self._script.append(text)
        self.outcome.characters = self._script.characters

    def flush(self) -> None:
        """Says what is there as if it were the end."""
        assert self._script is not None
        self._script.flush()

    def finish(self) -> None:
        """No more text will come."""
        assert self._script is not None
        self._script.finish()

    def cancel(self) -> None:
        """Ends it at once; its bytes end without an error. Any number of times, at any moment."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()
        if self._coming is not None:
            self._coming[1].cancel()
        if self._script is not None:
            self._script.finish()

    async def sound(self) -> AsyncGenerator[bytes]:
        """What there is to send, as it is made, never empty; raises StreamFailed or Overloaded where it failed."""
        async with aclosing(self.parts()) as parts:
            async for part in parts:
                if isinstance(part, bytes):
                    yield part

    async def parts(self) -> AsyncGenerator[Segment | bytes]:
        """The same with every sentence before its sound."""
        assert self._sound is not None
        begun = False
        try:
            async with aclosing(self._samples()) as parts:
                async for part in parts:
                    if isinstance(part, Segment):
                        if begun and self._wanted.divided:
                            if data := await self._encode(self._sound.finish):
                                yield self._heard(data)
                            self._sound = self._speaker.new_sound(self._wanted)
                        begun = True
                        yield part
                    elif data := await self._encode(self._sound.push, part):
                        yield self._heard(data)
            ends = (begun or not self._wanted.live) and not self._cancelled
            if ends and (data := await self._encode(self._sound.finish)):
                yield self._heard(data)
            self._end("cancelled" if self._cancelled else self._reason)
        except (asyncio.CancelledError, GeneratorExit):
            self._end("cancelled")
            raise
        except Exception as error:
            if self.outcome.first_audio is not None or not isinstance(error, Overloaded):
                self._end("error", str(error))  # else it was never begun, and is refused
            raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Leaves nothing with the engine and nothing in memory; any number of times."""
        if self._closed:
            return
        self._closed = True
        self._speaker.open.discard(self)
        if self._stream is not None:
            self._stream.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        if self._coming is not None:
            task = self._coming[1]
            task.cancel()
            task.add_done_callback(cancel_stream)
        if self._sound is not None:
            if self._encoding is None or self._encoding.done():
                self._sound.close()
            else:  # a thread is still at it
                sound = self._sound
                self._encoding.add_done_callback(lambda _: sound.close())

    # Parts

    async def _samples(self) -> AsyncGenerator[Segment | Samples]:
        """All sentences in their order, each before its own, with the silence between them."""
        assert self._script is not None
        while (sentence := await self._next()) is not None:
            silence = sentence.silence
            enough = AHEAD_SHARE * SECONDS_PER_BYTE * len(sentence.text.encode())
            made = 0.0
            assert self._stream is not None
            yield sentence
            async for chunk in self._stream:
                if silence:
                    yield self._silent(silence)
                    silence = 0.0
                made += len(chunk.samples) / self._speaker.engine.sample_rate
                if (made >= enough or chunk.final) and self._coming is None and not self._cancelled:
                    self._look_ahead()
                if len(chunk.samples):
                    self.outcome.audio_seconds += len(chunk.samples) / self._speaker.engine.sample_rate
                    yield chunk.samples
            self._ended(self._stream)
            if self._cancelled:
                return
        if self._script.ending and not self._cancelled:
            yield self._silent(self._script.ending)

    async def _next(self) -> Segment | None:
        """The next sentence, which is spoken by `_stream` then; None after the last one."""
        assert self._script is not None
        if self._coming is None:
            self.wants_text, asked = True, time.monotonic()
            sentence = await self._script.next()
            self.wants_text = False
            self._arrived += time.monotonic() - asked
            if sentence is None or self._cancelled:
                return None
            self._coming = sentence, asyncio.create_task(self._send(sentence))
        sentence, task = self._coming
        try:
            self._stream = await task
        except asyncio.CancelledError:
            if self._cancelled:
                return None
            raise
        self._coming = None
        if self._cancelled:  # after the engine had it, before it was taken here
            self._stream.cancel()
            return None
        if sentence.growing is not None:
            self._feeding = asyncio.create_task(self._feed(self._stream, sentence.growing))
        return sentence

    def _look_ahead(self) -> None:
        assert self._script is not None
        if (following := self._script.ready()) is not None:
            self._coming = following, asyncio.create_task(self._send(following))

    async def _feed(self, stream: Stream, growing: StreamingSegment) -> None:
        """The rest of a sentence that grows, until the stream is closed; why it takes no more, its result tells."""
        try:
            async for piece in growing.rest():
                await self._speaker.in_thread(stream.append, piece)
            await self._speaker.in_thread(stream.finish_text)
        except PolyvoxError as error:
            log.info("text came too late", extra={"request_id": self.outcome.request_id, "error": str(error)})
            stream.cancel()

    async def _send(self, sentence: Segment) -> Stream:
        """A sentence to the engine. One in the midst of an utterance asks again where there is no place for it."""
        assert self._request is not None
        request = replace(self._request, text=sentence.text, segment=self._segment)
        if sentence.growing is not None:
            request = replace(request, live=True, layout="streaming")
        patient = self._segment > 0
        self._segment += 1
        give_up = time.monotonic() + self._speaker.settings.slo
        while True:
            try:
                return await self._speaker.submit(request)
            except EngineDown:
                raise
            except Overloaded:
                if not patient or time.monotonic() > give_up:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)

    def _ended(self, stream: Stream) -> None:
        result = stream.result
        if result is None or (result.finish_reason == "cancelled" and not self._cancelled):
            raise StreamFailed("the engine ended this stream before it was finished")
        self.outcome.add(result)
        self._reason = max(self._reason, result.finish_reason, key=WORSE.index)

    async def _encode(self, work: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Off the event loop, but for plain samples, which are as many bytes."""
        assert self._sound is not None
        if self._sound.plain:
            return work(*args, **kwargs)
        self._encoding = self._speaker.encode(work, *args, **kwargs)
        return await asyncio.shield(self._encoding)

    def _silent(self, seconds: float) -> Samples:
        self.outcome.audio_seconds += seconds
        return np.zeros(round(seconds * self._speaker.engine.sample_rate), np.float32)

    def _heard(self, data: bytes) -> bytes:
        if self.outcome.first_audio is None:
            self.outcome.first_audio = time.monotonic() - self._arrived
        return data

    def _end(self, reason: FinishReason, error: str | None = None) -> None:
        self.outcome.finish_reason, self.outcome.error = reason, error
        self.outcome.seconds = time.monotonic() - self._arrived
        self._speaker.on_end(self.outcome)


def cancel_stream(job: "asyncio.Future[Stream]") -> None:
    """Of a stream that nobody wants any more."""
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
