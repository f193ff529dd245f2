"""The way of all faces to the engine: what is let in, and the threads for what takes a moment."""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from polyvox.engine.interface import Engine, Stream
from polyvox.errors import EngineDown, InvalidRequest, Overloaded
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request
from polyvox.server.request_log import RequestRecord
from polyvox.server.settings import Settings
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.output import OutputEncoder
from polyvox.server.synthesis.segments import SegmentQueue
from polyvox.server.synthesis.utterance import Utterance, cancel_stream
from polyvox.text import TextRules

P = ParamSpec("P")
T = TypeVar("T")

SUBMITTERS = 4  # threads that hand requests to the engine, which prepares them there
# Requests on their way to the engine. One more would wait longer than a refusal may take.
MAX_SUBMITTING = 64
# Threads that read recordings, which takes a third of a second and more, and how many may wait for them.
LISTENERS, MAX_LISTENING = 2, 16
REFUSING_SECONDS = 0.05  # after a refusal of the engine's, in which it is not asked again


class SynthesisService:
    """Begins utterances on one engine, and lets in no more of them than can be served."""

    def __init__(
        self,
        engine: Engine,
        facts: ModelInfo,
        resolve: Callable[[str | ClonedVoice | None], str | ClonedVoice | None],
        settings: Settings,
        on_end: Callable[[RequestRecord], None] = lambda _: None,
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

    async def start(self, wanted: SynthesisOptions, request_id: str) -> Utterance:
        """Takes an utterance, or raises InvalidRequest or Overloaded; the first sentence is with the engine then."""
        self._check_room(whole_file=not wanted.streaming)
        if not wanted.live and not wanted.text.strip():
            raise InvalidRequest("text", wanted.text, "must have something to say")
        if len(wanted.text) > self.settings.max_text:
            requirement = f"must have at most {self.settings.max_text:,} characters but has {len(wanted.text):,}"
            raise InvalidRequest("text", wanted.text, requirement)
        utterance = Utterance(self, wanted, request_id)
        self.open.add(utterance)
        try:
            await utterance.begin()
        except BaseException:
            await utterance.close()
            raise
        return utterance

    def prepare(self, wanted: SynthesisOptions) -> tuple[SegmentQueue, Request, OutputEncoder]:
        """All that can be refused without the engine; in a thread, as a long text takes its time."""
        rules = TextRules(wanted.language, enabled=wanted.normalize)
        script = SegmentQueue(rules, wanted.granularity) if wanted.live else SegmentQueue.whole(wanted.text, rules)
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

    async def check(self, wanted: SynthesisOptions) -> None:
        """Refuses before there is any text what would be refused with it."""
        _, _, sound = await self.in_thread(self.prepare, wanted)
        sound.close()

    def new_sound(self, wanted: SynthesisOptions) -> OutputEncoder:
        return OutputEncoder(wanted, self.engine.sample_rate)

    async def submit(self, request: Request) -> Stream:
        """Hands a request to the engine; where nobody waits any more for the answer, its stream is cancelled."""
        job = asyncio.get_running_loop().run_in_executor(self._submitters, self._offer, request)
        self._submitting += 1
        job.add_done_callback(self._submitted)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            job.add_done_callback(cancel_stream)
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
        if self._listening >= MAX_LISTENING:
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
        if len(self.open) >= self.streams + self.settings.queue or self._submitting >= MAX_SUBMITTING:
            raise Overloaded(f"{len(self.open)} requests are being served here, which is all it takes", retry_after=1)

    def _check_refusal(self, whole_file: bool) -> None:
        until, told, retry_after = self._refusals.get(whole_file, (0.0, "", 0.0))
        if time.monotonic() < until:
            raise Overloaded(told, retry_after)
