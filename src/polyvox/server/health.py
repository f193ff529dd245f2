"""Whether this server can speak: it has tried, and tries again after the engine was gone."""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np

from polyvox.errors import PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice
from polyvox.server.metrics import Metrics
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.service import SynthesisService

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 5.0
LAG_SECONDS = 0.05  # between two looks at the clock
WORST_OF = 10.0  # seconds that the worst lag is remembered
TRIAL_FRAMES = 4  # of the trial: enough to go through every part


class Health:
    """Watches the engine and the event loop, once it is started."""

    def __init__(self, speaker: SynthesisService, facts: ModelInfo, metrics: Metrics) -> None:
        self._speaker, self._facts, self._metrics = speaker, facts, metrics
        self.stats: dict[str, float] = {}  # the engine's, as they were a moment ago
        self.problem: str | None = "it has not spoken yet"  # None: all is well
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        return self.problem is None and not self._speaker.draining

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._measure_lag())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def look(self) -> None:
        """Asks the engine how it is; where it was away, or has never spoken here, lets it say something."""
        try:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):  # not in a thread that a hanging engine may hold
                    self.stats = await asyncio.to_thread(self._speaker.engine.stats)
            except TimeoutError:
                raise PolyvoxError(f"the engine did not answer for {ANSWER_SECONDS:g} s") from None
            self._metrics.active.set(len(self._speaker.open))
            if self.problem is not None:
                await self._try()
                self.problem = None
        except PolyvoxError as error:
            if self.problem != str(error):
                log.warning("not ready", extra={"error": str(error)})
            self.problem = str(error)

    async def _try(self) -> None:
        voice = ClonedVoice(np.zeros(self._facts.hidden_size, np.float32)) if self._facts.can_clone else None
        instructions = "A calm voice." if self._facts.designs_voices else None
        wanted = SynthesisOptions("Ready.", voice, instructions=instructions, max_frames=TRIAL_FRAMES, format="pcm")
        began = time.monotonic()
        script, request, _ = await self._speaker.in_thread(self._speaker.prepare, wanted)
        sentence = script.ready()
        assert sentence is not None
        # As the midst of something: a full engine is well, and lets such a one in before those who wait.
        stream = await self._speaker.submit(replace(request, text=sentence.text, segment=1))
        samples = 0
        async for chunk in stream:
            samples += len(chunk.samples)
        if stream.result is None or stream.result.finish_reason in ("cancelled", "error"):
            raise PolyvoxError("the trial utterance did not come to its end")
        log.info("ready", extra={"seconds": round(time.monotonic() - began, 3), "samples": samples})

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the look at the engine failed")
                self.problem = "the look at the engine failed"
            await asyncio.sleep(LOOK_SECONDS)

    async def _measure_lag(self) -> None:
        worst, since = 0.0, time.monotonic()
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_SECONDS)
            now = time.monotonic()
            late = now - began - LAG_SECONDS
            if late >= worst or now - since > WORST_OF:
                worst, since = max(late, 0.0), now
                self._metrics.lag.set(worst)
