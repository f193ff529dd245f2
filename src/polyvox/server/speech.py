"""From what a face was asked to bytes of sound: one utterance is some sentences, each a stream of the engine."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np

from polyvox.audio.clip import FinishReason, Samples
from polyvox.audio.formats import Encoder, find_format
from polyvox.audio.pcm import to_pcm
from polyvox.audio.stretch import Stretcher
from polyvox.audio.uncompressed import pcm_bytes
from polyvox.engine.interface import Engine, Result, Stream
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, PolyvoxError, StreamFailed
from polyvox.models.identity import ModelFacts
from polyvox.models.request import AUTO, ClonedVoice, Layout, Request, Sampling
from polyvox.server.script import Granularity, Growing, Script, Sentence
from polyvox.server.settings import Settings
from polyvox.text import TextRules

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SUBMITTERS = 4  # threads that hand requests to the engine, which prepares them there
# Requests on their way to the engine. One more would wait longer than a refusal may take.
MOST_SUBMITTING = 64
# Threads that read recordings, which takes a third of a second and more, and how many may wait for them.
LISTENERS, MOST_LISTENING = 2, 16
REFUSING_SECONDS = 0.05  # after a refusal of the engine's, in which it is not asked again
AGAIN_SECONDS = 0.2  # until a sentence in the midst of an utterance asks again for a place
# The next sentence is begun when this share of the last one is made, by what a byte of text takes (speech.py of the
# model): early enough that no gap is heard, late enough that an utterance does not hold two places.
AHEAD_SHARE, SECONDS_PER_BYTE = 0.6, 0.072
WORSE: tuple[FinishReason, ...] = ("stop", "length", "runaway", "cancelled", "error")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be said and how it is to sound, the same from every face.

    streaming: bytes leave as they are made; else all of them at the end, as a file with its true length. live: text may
    be appended, and is said by sentences, clauses or tokens. divided: what is said in one go is a file of its own. The
    others are those of `Request`, of `Encoder` and of `TextRules`.
    """

    text: str = ""
    voice: str | ClonedVoice | None = None
    language: str = AUTO
    instructions: str | None = None
    seed: int | None = None
    sampling: Sampling | None = None
    layout: Layout | None = None
    max_frames: int | None = None
    first_chunk: int | None = None
    format: str = "mp3"
    sample_rate: int | None = None
    bit_rate: int | None = None
    speed: float = 1.0
    normalize: bool = True
    streaming: bool = True
    live: bool = False
    granularity: Granularity = "sentence"
    divided: bool = False


@dataclass(slots=True)
class Outcome:
    """How an utterance went; final once finish_reason is there."""

    request_id: str
    model: str
    created: float  # seconds since 1970
    seed: int
    characters: int = 0
    sentences: int = 0
    text_tokens: int = 0
    frames: int = 0
    audio_seconds: float = 0.0
    queue_wait: float = 0.0
    # Seconds from the request to the first bytes and to the end, without those that a live one waited for text.
    first_audio: float | None = None
    seconds: float = 0.0
    underruns: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    def add(self, result: Result) -> None:
        self.sentences += 1
        self.text_tokens += result.text_tokens
        self.frames += result.frames
        self.queue_wait = max(self.queue_wait, result.queue_wait)
        self.underruns += result.underruns

    def told(self) -> dict[str, Any]:
        return asdict(self)

    def usage(self) -> dict[str, int]:
        total = self.text_tokens + self.frames
        return {"input_tokens": self.text_tokens, "output_tokens": self.frames, "total_tokens": total}


class Sound:
    """Samples on their way to bytes: another speed, another rate, a format. One call at a time, from any thread."""

    def __init__(self, wanted: Wanted, sample_rate: int) -> None:
        self._stretcher = Stretcher(wanted.speed, sample_rate)
        as_is = wanted.streaming and wanted.sample_rate in (None, sample_rate) and wanted.speed == 1.0
        self.plain = wanted.format.lower() == "pcm" and as_is  # no work for an encoder
        self._encoder = None
        self.sample_rate = sample_rate
        if self.plain:
            self.content_type = find_format(wanted.format).content_type(sample_rate)
        else:
            self._encoder = Encoder(wanted.format, sample_rate, wanted.sample_rate, wanted.streaming, wanted.bit_rate)
            self.content_type, self.sample_rate = self._encoder.content_type, self._encoder.sample_rate

    def push(self, samples: Samples) -> bytes:
        if self._encoder is None:
            if not np.isfinite(samples).all():
                raise StreamFailed("The speech holds values that are not numbers; nothing can be made of it.")
            return pcm_bytes(to_pcm(samples))
        return self._encoder.push(self._stretcher.push(samples))

    def finish(self) -> bytes:
        if self._encoder is None:
            return b""
        return self._encoder.push(self._stretcher.finish()) + self._encoder.finish()

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()


class Speaker:
    """Begins utterances on one engine, and lets in no more of them than can be served."""

    def __init__(
        self,
        engine: Engine,
        facts: ModelFacts,
        resolve: Callable[[str | ClonedVoice | None], str | ClonedVoice | None],
        settings: Settings,
        on_end: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self.engine, self.facts, self.settings = engine, facts, settings
        self.streams = settings.max_streams or int(engine.stats()["slots"])  # that run at once
        self.open: set[Utterance] = set()
        self.draining = False
        self.on_end = on_end
        self._resolve = resolve
        self._submitters = ThreadPoolExecutor(SUBMITTERS, "polyvox-submit")
        self._encoders = ThreadPoolExecutor(settings.encoders, "polyvox-encode")
        self._listeners = ThreadPoolExecutor(LISTENERS, "polyvox-listen")
        self._submitting = self._listening = 0
        self._refusals: dict[bool, tuple[float, str, float]] = {}  # of files or not: until when, and what is told

    async def start(self, wanted: Wanted, request_id: str) -> "Utterance":
        """Takes an utterance, or raises InvalidRequest or Overloaded; the first sentence is with the engine then."""
        self._check_room(whole_file=not wanted.streaming)
        if not wanted.live and not wanted.text.strip():
            raise InvalidRequest("text", wanted.text, "something that can be said")
        if len(wanted.text) > self.settings.max_text:
            most = f"at most {self.settings.max_text:,} characters (this is {len(wanted.text):,})"
            raise InvalidRequest("text", wanted.text, most)
        utterance = Utterance(self, wanted, request_id)
        self.open.add(utterance)
        try:
            await utterance.begin()
        except BaseException:
            await utterance.close()
            raise
        return utterance

    def prepare(self, wanted: Wanted) -> tuple[Script, Request, Sound]:
        """All that can be refused without the engine; in a thread, as a long text takes its time."""
        rules = TextRules(wanted.language, enabled=wanted.normalize)
        script = Script(rules, wanted.granularity) if wanted.live else Script.whole(wanted.text, rules)
        request = Request(
            text="",
            voice=self._resolve(wanted.voice),
            language=wanted.language,
            instructions=wanted.instructions,
            seed=secrets.randbelow(2**32) if wanted.seed is None else wanted.seed,
            layout=wanted.layout,
            sampling=wanted.sampling,
            max_frames=wanted.max_frames,
            whole_file=not wanted.streaming,
            first_chunk=wanted.first_chunk,
            trim_silence=True,
        )
        return script, request, self.new_sound(wanted)

    def new_sound(self, wanted: Wanted) -> Sound:
        return Sound(wanted, self.engine.sample_rate)

    async def submit(self, request: Request) -> Stream:
        """Hands a request to the engine; where nobody waits any more for the answer, its stream is cancelled."""
        job = asyncio.get_running_loop().run_in_executor(self._submitters, self._offer, request)
        self._submitting += 1
        job.add_done_callback(self._submitted)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            job.add_done_callback(_cancel)
            raise

    def _offer(self, request: Request) -> Stream:
        if request.segment == 0:
            self._check_refusal(request.whole_file)  # one that came while this waited for its thread
        try:
            return self.engine.submit(request)
        except EngineDown:
            raise
        except Overloaded as error:
            if request.segment == 0:
                until = time.monotonic() + REFUSING_SECONDS
                self._refusals[request.whole_file] = until, str(error), error.retry_after
            raise

    def _submitted(self, job: "asyncio.Future[Stream]") -> None:
        self._submitting -= 1
        if not job.cancelled():
            job.exception()  # whoever asked may have gone

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For what would hold up the event loop for a moment: files, long texts."""
        return await asyncio.get_running_loop().run_in_executor(self._submitters, lambda: work(*args, **kwargs))

    async def listen(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For what takes seconds: fetching and reading recordings, cloning. Raises Overloaded where many do it."""
        if self._listening >= MOST_LISTENING:
            raise Overloaded("too many recordings are being read", retry_after=2)
        self._listening += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._listeners, lambda: work(*args, **kwargs))
        finally:
            self._listening -= 1

    def encode(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._encoders, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Ends what is open and lets the threads go."""
        for utterance in list(self.open):
            utterance.cancel()
        self._submitters.shutdown(wait=False, cancel_futures=True)
        self._listeners.shutdown(wait=False, cancel_futures=True)
        self._encoders.shutdown(wait=False, cancel_futures=True)

    def _check_room(self, whole_file: bool) -> None:
        """Refuses, at once and without any work, what would be refused after some."""
        if self.draining:
            raise Overloaded("this server is stopping: try another, or the same again soon", retry_after=1)
        self._check_refusal(whole_file)
        if len(self.open) >= self.streams + self.settings.queue or self._submitting >= MOST_SUBMITTING:
            raise Overloaded(f"{len(self.open)} requests are being served here, which is all it takes", retry_after=1)

    def _check_refusal(self, whole_file: bool) -> None:
        until, told, retry_after = self._refusals.get(whole_file, (0.0, "", 0.0))
        if time.monotonic() < until:
            raise Overloaded(told, retry_after)


class Utterance:
    """Something that is being said: iterate over `sound` or `parts` once. A live one takes text until `finish`."""

    def __init__(self, speaker: Speaker, wanted: Wanted, request_id: str) -> None:
        self._speaker, self._wanted = speaker, wanted
        self._arrived = time.monotonic()
        name = speaker.facts.identity.name
        self.outcome = Outcome(request_id, name, time.time(), seed=wanted.seed or 0)
        self._script: Script | None = None
        self._sound: Sound | None = None
        self._request: Request | None = None
        self._segment = 0
        # The sentence that is spoken and the one after it, on their way to the engine and back.
        self._coming: tuple[Sentence, asyncio.Task[Stream]] | None = None
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

    async def parts(self) -> AsyncGenerator[Sentence | bytes]:
        """The same with every sentence before its sound."""
        assert self._sound is not None
        begun = False
        try:
            async with aclosing(self._samples()) as parts:
                async for part in parts:
                    if isinstance(part, Sentence):
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
            task.add_done_callback(_cancel)
        if self._sound is not None:
            if self._encoding is None or self._encoding.done():
                self._sound.close()
            else:  # a thread is still at it
                sound = self._sound
                self._encoding.add_done_callback(lambda _: sound.close())

    # Parts

    async def _samples(self) -> AsyncGenerator[Sentence | Samples]:
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

    async def _next(self) -> Sentence | None:
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

    async def _feed(self, stream: Stream, growing: Growing) -> None:
        """The rest of a sentence that grows, until the stream is closed; why it takes no more, its result tells."""
        try:
            async for piece in growing.rest():
                await self._speaker.in_thread(stream.append, piece)
            await self._speaker.in_thread(stream.finish_text)
        except PolyvoxError as error:
            log.info("text came too late", extra={"request_id": self.outcome.request_id, "error": str(error)})
            stream.cancel()

    async def _send(self, sentence: Sentence) -> Stream:
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


def _cancel(job: "asyncio.Future[Stream]") -> None:
    """Of a stream that nobody wants any more."""
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
