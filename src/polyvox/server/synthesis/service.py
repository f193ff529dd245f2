# SPDX-License-Identifier: Apache-2.0
"""Starts utterances on the engine and owns the thread pools for text preparation, recordings and encoding."""

import asyncio
import math
import random
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, TypeVar

from polyvox.audio.excerpt import fit_recording
from polyvox.audio.samples import Samples
from polyvox.engine.config import queue_length
from polyvox.engine.interface import AsyncEngine, AsyncStream
from polyvox.engine.preparation import InlineBudget
from polyvox.errors import NO_TEXT, EngineDown, InvalidRequest, Overloaded
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request, ThinkerPrompt
from polyvox.server.request_log import RequestRecord
from polyvox.server.settings import Settings
from polyvox.server.synthesis.chunk_timing import OnChunk
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.output import OutputEncoder
from polyvox.server.synthesis.segments import SegmentQueue
from polyvox.server.synthesis.spool import Spool
from polyvox.server.synthesis.timestamps import AlignmentScheduler
from polyvox.server.synthesis.utterance import Utterance
from polyvox.server.synthesis.utterance_trace import NO_TRACE, UtteranceTrace
from polyvox.text import Lexicon, TextRules, load_lexicon

P = ParamSpec("P")
T = TypeVar("T")

PREPARATION_THREADS = 2  # text normalisation, files of the voice library and of responses
# Utterances that wait for a preparation thread or for the engine's decision: at least this many may, and with a large
# engine as many as it could accept at once, so that it is the engine that decides over a burst.
MIN_PREPARING = 64
# Decoding a recording takes a third of a second and more.
RECORDING_THREADS, MAX_PENDING_RECORDINGS = 2, 16
# A flood must not occupy the engine's process: after this many rejections within the time in seconds, the last one is
# repeated without asking the engine.
MAX_REJECTIONS, REJECTION_SECONDS = 10, 0.05
MAX_REPEATED_DELAY = 2.0  # a repeated rejection has no reserved time; its clients are spread up to this factor
MAX_INLINE_CHARS = 300  # of a text that the event loop may prepare itself: a few sentences, 0.5 ms
INLINE_FORMATS = ("pcm", "wav")  # encoders of the others take up to 0.8 ms to start
PreparedUtterance = tuple[SegmentQueue, Request, OutputEncoder]


class SynthesisService:
    """Starts utterances. Admission is decided by the engine; in a flood its rejections are repeated."""

    def __init__(
        self,
        engine: AsyncEngine,
        info: ModelInfo,
        resolve_voice: Callable[[str | ClonedVoice | None], str | ClonedVoice | None],
        settings: Settings,
    ) -> None:
        self.engine, self.info, self.settings = engine, info, settings
        self.active: set[Utterance] = set()
        self.draining = False
        self.drain_expired = False  # drain_timeout has passed, and unfinished requests are aborted
        self.num_slots: Callable[[], int] = lambda: 0  # of all engines that run, as far as they are known
        self.on_finished: Callable[[RequestRecord], None] = lambda _: None
        self.on_chunk: OnChunk = lambda _gap, _lead: None
        self.new_trace: Callable[[str], UtteranceTrace] = lambda _: NO_TRACE
        self._resolve_voice = resolve_voice
        self._lexicon = load_lexicon(settings.lexicon) if settings.lexicon is not None else Lexicon()
        self._preparation = ThreadPoolExecutor(PREPARATION_THREADS, "polyvox-prepare")
        self._inline = InlineBudget()
        self._encoding = ThreadPoolExecutor(settings.encoder_threads, "polyvox-encode")
        self._decoding = ThreadPoolExecutor(RECORDING_THREADS, "polyvox-decode")
        self.alignments = AlignmentScheduler()
        self.spool = Spool(settings.spool_dir, settings.max_spool_bytes // max(1, settings.workers))
        self._num_preparing = self._num_recordings = 0
        # The latest rejections by whole_file, with their times.
        self._rejections: defaultdict[bool, deque[tuple[float, Overloaded]]] = defaultdict(
            lambda: deque(maxlen=MAX_REJECTIONS)
        )

    async def start(self, options: SynthesisOptions, request_id: str, owner: str = "") -> Utterance:
        """Starts an utterance: its first segment is accepted by the engine. Raises InvalidRequest or Overloaded.

        owner: the name of the key that may read the record of the request.
        """
        self._check_admission(whole_file=not options.streaming)
        if not options.live and not options.text.strip():
            raise InvalidRequest("text", options.text, NO_TEXT)
        if len(options.text) > self.settings.max_text_chars:
            limit, length = self.settings.max_text_chars, len(options.text)
            raise InvalidRequest("text", options.text, f"must have at most {limit:,} characters but has {length:,}")
        utterance = Utterance(self, options, request_id, owner)
        self.active.add(utterance)
        self._num_preparing += 1
        try:
            await utterance.start()
        except BaseException:
            await utterance.close()
            raise
        finally:
            self._num_preparing -= 1
        return utterance

    def prepare(self, options: SynthesisOptions) -> PreparedUtterance:
        """Validates everything that does not need the engine. Blocks: long texts take time."""
        lexicon = self._lexicon
        for other in reversed(options.lexicons):
            lexicon = other.over(lexicon)
        lexicon = lexicon.updated(options.pronunciations)
        rules = TextRules(
            options.language,
            lexicon,
            options.normalize,
            self.info.takes_phonemes,
            self.info.default_language,
            options.ssml,
        )
        if options.live:
            segments = SegmentQueue(rules, options.granularity, options.tracks_positions)
        elif options.turns:
            voices = {turn.voice: self._resolve_voice(turn.voice) for turn in options.turns}
            turns = [(turn.text, voices[turn.voice]) for turn in options.turns]
            segments = SegmentQueue.from_turns(turns, rules, options.tracks_positions)
        else:
            segments = SegmentQueue.from_text(options.text, rules, options.tracks_positions)
        request = Request(
            text="",
            voice=self._resolve_voice(options.voice),
            language=options.language,
            instructions=options.instructions,
            seed=secrets.randbelow(2**32) if options.seed is None else options.seed,
            layout=options.layout,
            sampling=options.sampling,
            max_frames=options.max_frames,
            whole_file=not options.streaming,
            first_chunk=options.first_chunk,
            trim_silence=True,
            utterance_id=secrets.randbelow(2**53) + 1,
        )
        return segments, request, self.new_encoder(options)

    async def prepare_async(self, options: SynthesisOptions) -> PreparedUtterance:
        """`prepare` in a thread, or in the event loop while it has time, if it takes less than the change of threads.

        That is a short text without SSML and entries of lexicons, for a voice that is in no file, sent as PCM.
        """
        voice = options.voice
        small = (
            len(options.text) <= MAX_INLINE_CHARS
            and options.streaming
            and options.format.lower() in INLINE_FORMATS
            and not (options.turns or options.lexicons or options.pronunciations or "<" in options.text)
            and (isinstance(voice, ClonedVoice) or self._is_in_memory(voice))
        )
        if small and (outcome := self._inline.run(lambda: self.prepare(options))) is not None:
            return outcome.result()
        preparing = asyncio.ensure_future(self.in_thread(self.prepare, options))
        try:
            return await asyncio.shield(preparing)
        except asyncio.CancelledError:
            preparing.add_done_callback(_close_encoder)  # the thread cannot be cancelled
            raise

    def _is_in_memory(self, voice: str | None) -> bool:
        """Whether a voice is built in, so that no file has to be read for it."""
        if voice is None:
            return not self.info.identity.can_clone
        return voice.lower() in self.info.voices and voice.lower() not in self.settings.voice_aliases

    async def validate(self, options: SynthesisOptions) -> None:
        """Raises what `start` would raise for these options, before there is any text."""
        await self.in_thread(lambda: self.prepare(options)[2].close())

    def new_encoder(self, options: SynthesisOptions) -> OutputEncoder:
        return OutputEncoder(options, self.engine.sample_rate, self.spool)

    async def submit(self, request: Request, engine: AsyncEngine | None = None) -> AsyncStream:
        """Submits a segment. A rejection of a first segment is remembered. engine: one replica; all by default."""
        try:
            return await (engine or self.engine).submit(request)
        except EngineDown:
            raise
        except Overloaded as error:
            if request.segment == 0:
                self._rejections[request.whole_file].append((time.monotonic(), error))
            raise

    async def submit_trial(self, options: SynthesisOptions, engine: AsyncEngine) -> AsyncStream:
        """Submits the first segment as a later one, which a busy engine admits before queued requests.

        A model that takes no text speaks the answer to its trial prompt instead.
        """
        segments, request, _ = await self.in_thread(self.prepare, options)
        if ids := self.info.trial_prompt:
            prompt = ThinkerPrompt(ids)
            answer = replace(request, live=True, layout="streaming", thinker_prompt=prompt, segment=1)
            stream = await self.submit(answer, engine)
            stream.append_tokens(ids[-1:])
            stream.finish_text()
            return stream
        segment = segments.next_ready()
        assert segment is not None
        return await self.submit(replace(request, text=segment.text, segment=1), engine)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs short blocking work: text preparation, files of the voice library and of responses."""
        return await asyncio.get_running_loop().run_in_executor(self._preparation, lambda: work(*args, **kwargs))

    async def clone(self, read: Callable[[], Samples], transcript: str | None) -> tuple[ClonedVoice, float, str | None]:
        """Reads a recording in a thread and clones its voice; returns the voice, the length of its recording in seconds
        and a notice if the recording was cut, in which case the transcript is not used.

        Raises Overloaded if too many recordings are pending.
        """
        if self._num_recordings >= MAX_PENDING_RECORDINGS:
            raise Overloaded("Too many recordings are being read.", 2.0, "queue_full")
        self._num_recordings += 1
        try:
            samples, notice = await asyncio.get_running_loop().run_in_executor(self._decoding, self._fitted, read)
            if notice is not None and transcript is not None:
                notice, transcript = f"{notice} The transcript is ignored.", None
            return await self.engine.clone(samples, transcript), len(samples) / self.engine.sample_rate, notice
        finally:
            self._num_recordings -= 1

    def _fitted(self, read: Callable[[], Samples]) -> tuple[Samples, str | None]:
        samples, notice = read(), None
        if self.info.max_reference_seconds is not None:
            samples, notice = fit_recording(samples, self.engine.sample_rate, self.info.max_reference_seconds)
        max_seconds = self.settings.max_recording_seconds
        if notice is None and len(samples) >= round(max_seconds * self.engine.sample_rate):
            notice = f"The first {max_seconds:g} s of the recording are used."
        return samples, notice

    def encode(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._encoding, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Cancels active utterances and stops the thread pools."""
        for utterance in list(self.active):
            utterance.cancel()
        for pool in (self._preparation, self._decoding, self._encoding):
            pool.shutdown(wait=False, cancel_futures=True)

    def check_draining(self) -> None:
        """Raises Overloaded if the server is shutting down."""
        if self.draining:
            raise Overloaded("The server is shutting down.", 1.0, "shutting_down")

    def _check_admission(self, whole_file: bool) -> None:
        """Rejects at once, without any work, what would be rejected later."""
        self.check_draining()
        recent = self._rejections[whole_file]
        if len(recent) == MAX_REJECTIONS and time.monotonic() < recent[0][0] + REJECTION_SECONDS:
            rejection = recent[-1][1]
            delay = random.uniform(1.0, MAX_REPEATED_DELAY)
            raise Overloaded(str(rejection), math.ceil(rejection.retry_after * delay), rejection.reason)
        if self._num_preparing >= MIN_PREPARING and self._num_preparing >= self._max_accepted():
            raise Overloaded(f"{self._num_preparing} requests are being prepared.", 1.0, "queue_full")

    def _max_accepted(self) -> int:
        """Requests that all engines together could accept at once."""
        num_slots, num_engines = self.num_slots(), len(self.engine.replicas)
        return num_slots + num_engines * queue_length(self.settings.max_queue, num_slots // num_engines)


def _close_encoder(job: "asyncio.Future[PreparedUtterance]") -> None:
    if not job.cancelled() and job.exception() is None:
        job.result()[2].close()
