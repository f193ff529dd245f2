# SPDX-License-Identifier: Apache-2.0
"""An engine without a model. Its samples depend on seed and index only; tests choose its speed and its failures."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyvox import progress
from polyvox.audio.clip import FinishReason
from polyvox.audio.pcm import SCALE, from_pcm
from polyvox.audio.samples import Samples
from polyvox.engine.chunk_assembler import BufferedChunk
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_lock import try_lock
from polyvox.engine.interface import Chunk, FirstChunkTimes, OnReady, Result, Stream
from polyvox.engine.stream_reader import StreamReader
from polyvox.errors import NOT_SHOWN, EngineDown, InvalidRequest, Overloaded, OverloadReason
from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.request import ClonedVoice, Request, Sampling

SAMPLE_RATE = 24_000
CHUNK_SAMPLES = 480
BUFFER = 4  # chunks that a stream buffers for its reader
SLOTS = 8  # that it reports
LENGTH = 10  # chunks of a stream without max_frames

ABOUT = ModelInfo(
    identity=ModelIdentity("Fake-Base", "base-4-2x8-0123456789ab", can_clone=True),
    voices=(),
    languages=("auto", "english"),
    takes_instructions=False,
    designs_voices=False,
    hidden_size=4,
    frame_seconds=CHUNK_SAMPLES / SAMPLE_RATE,
    sampling=Sampling(),
    alternatives={
        "voices": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
        "takes_instructions": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
        "designs_voices": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
        "can_clone": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    },
)


def chunk_samples(seed: int, index: int) -> Samples:
    """Samples that use all bits of 16-bit PCM, so that any loss shows."""
    return from_pcm(np.random.default_rng((seed, index)).integers(-SCALE, SCALE, CHUNK_SAMPLES, np.int16, True))


class FakeStream(StreamReader[Chunk]):
    """Produces one chunk per step: one for each word and row of a live request, else max_frames."""

    def __init__(self, engine: "FakeEngine", request: Request, on_ready: OnReady | None):
        super().__init__(engine.work)
        self._engine, self.request, self.on_ready = engine, request, on_ready
        self.seed = request.seed or 0
        self.made, self.queued_at = 0, time.monotonic()
        self.goal = len(request.text.split()) if request.live else request.max_frames or LENGTH
        self.open, self.awaits_text = request.live, False
        self.cancelled = False

    def _own(self, taken: Chunk) -> Chunk:
        return taken

    def _on_taken(self, _: list[Chunk]) -> None:
        with self._engine.work:
            self._engine.work.notify_all()

    def append(self, text: str) -> None:
        if text == "impossible":
            raise InvalidRequest("text", text, "must have something to say")
        with self._engine.work:
            self.goal += len(text.split())
            self._engine.work.notify_all()

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        with self._engine.work:
            self._engine.made["rows"] += int(rows.sum())
            self.goal += len(rows)
            self.open = self.open and not last
            self._engine.work.notify_all()

    def append_tokens(self, ids: Sequence[int]) -> None:
        if min(ids) < 0:
            raise InvalidRequest("append_tokens", min(ids), "must be token ids")
        with self._engine.work:
            self._engine.made["tokens"] += sum(ids)
            self.goal += len(ids)
            self._engine.work.notify_all()

    def finish_text(self) -> None:
        with self._engine.work:
            self.open = False
            self._engine.work.notify_all()

    def cancel(self) -> None:
        with self._engine.work:
            self.cancelled = True
            self._engine.work.notify_all()

    def can_step(self) -> bool:
        if not self._engine.may_step(self):
            return False
        ended = self.made == self.goal and not self.open
        return self.cancelled or ended or (self.made < self.goal and len(self._buffer) < BUFFER)

    def step(self) -> None:
        if self.cancelled:
            self._buffer.clear()
            self._end("cancelled")
        elif self.request.text == "expires":
            self._end("error", "the queue timeout expired", retry_after=2.5)
        elif self.made == self.goal or self.request.text == "silence":  # all of it is trimmed
            self._end("stop")
        else:
            self._push(self._samples(), final=self.made + 1 == self.goal and not self.open)
            if self.made == self.goal and not self.open:
                self.result = Result("stop", self.seed, frames=self.made)

    def _samples(self) -> Samples:
        voice = self.request.voice
        return voice.vector if isinstance(voice, ClonedVoice) else chunk_samples(self.seed, self.made)

    def _push(self, samples: Samples, final: bool) -> None:
        now = time.monotonic()
        queued_at, is_first = self.queued_at, not self.made and len(samples) > 0
        times = FirstChunkTimes(queued_at, queued_at, queued_at, queued_at, now, now) if is_first else None
        self._buffer.append(Chunk(samples, self.made, final, times))
        self._notify()
        self.made += 1
        self._engine.made[f"made.{self.seed}"] += 1

    def _end(self, reason: FinishReason, error: str | None = None, retry_after: float | None = None) -> None:
        overload_reason: OverloadReason | None = None if retry_after is None else "no_slot_in_time"
        self.result = Result(
            reason, self.seed, error, frames=self.made, retry_after=retry_after, overload_reason=overload_reason
        )
        self._push(np.zeros(0, np.float32), final=True)


def in_parts(chunk: Chunk) -> BufferedChunk:
    """A chunk whose audio was decoded in two steps, or in none if it is empty."""
    middle = chunk.size // 3
    parts = [chunk.audio[:middle], chunk.audio[middle:]] if chunk.size else []
    return BufferedChunk(parts, chunk.size, chunk.index, chunk.final, chunk.times)


class FakeEngine:
    """Steps all streams together, at most once per step_seconds."""

    broken: str | None = None

    def __init__(self, step_seconds: float = 0.0, close_seconds: float = 0.0, sample_rate: int = SAMPLE_RATE) -> None:
        self.sample_rate = sample_rate
        self.work = threading.Condition()  # guards the attributes below
        self.made: Counter[str] = Counter()
        self._streams: list[FakeStream] = []
        self._steps = 0
        self._asked = 0
        self._cancelled = 0
        self._step_began: float | None = None
        self._closing = threading.Event()
        self._step_seconds, self._close_seconds = step_seconds, close_seconds
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
        voice = request.voice
        if isinstance(voice, ClonedVoice) and not (
            isinstance(voice.vector, np.ndarray) and isinstance(voice.codes, np.ndarray | None)
        ):
            raise InvalidRequest("voice", type(voice.vector).__name__, "must be an array")
        if request.text == "invalid":
            raise InvalidRequest("language", "Klingon", ["english", "chinese"])
        if request.text == "overloaded":
            raise Overloaded("all streams are in use", 2.5, "queue_full")
        if request.text == "broken":
            raise EngineDown("the loop has ended", retry_after=1)
        if request.text.startswith("gate "):
            Path(request.text.removeprefix("gate ")).read_text()
        if request.text == "bug":
            raise ZeroDivisionError("a bug")
        with self.work:
            stream = FakeStream(self, request, on_ready)
            self._streams.append(stream)
            self.work.notify_all()
            return stream

    def may_step(self, _: FakeStream) -> bool:
        """Overridden by engines that pause streams."""
        return True

    def submit_inline(self, request: Request, on_ready: OnReady | None = None) -> FakeStream | None:
        with self.try_lock(0.0) as locked:
            return self.submit(request, on_ready) if locked else None

    def try_lock(self, timeout: float) -> AbstractContextManager[bool]:
        return try_lock(self.work, timeout)

    def current_load(self) -> EngineLoad:
        with self.work:
            stuck_seconds = time.monotonic() - self._step_began if self._step_began is not None else 0.0
            num_streams = len(self._streams)
            free = SLOTS - num_streams
            return EngineLoad(
                time.monotonic(), SLOTS, free, 0.0, free, 0.0, num_streams=num_streams, stuck_seconds=stuck_seconds
            )

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[BufferedChunk]]:
        return [[in_parts(chunk) for chunk in stream.take(most)] for stream, most in wanted]

    def info(self) -> ModelInfo:
        return ABOUT

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        if not len(samples):
            raise InvalidRequest("recording", NOT_SHOWN, "must have speech, not only silence")
        vector = np.full(ABOUT.hidden_size, samples.mean(), np.float32)
        return ClonedVoice(vector, None if transcript is None else np.ones((3, 2), np.int64), transcript)

    def stats(self) -> dict[str, float]:
        with self.work:
            self._asked += 1
            return {
                "streams": len(self._streams),
                "slots": SLOTS,
                "capacity": SLOTS,
                "steps": self._steps,
                "asked": self._asked,
                "cancelled": self._cancelled,
                "stuck_seconds": time.monotonic() - self._step_began if self._step_began is not None else 0.0,
                **self.made,
            }

    def close(self) -> None:
        self._closing.set()
        with self.work:
            self.work.notify_all()
        self._thread.join()
        time.sleep(self._close_seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            with self.work:
                self.work.wait_for(lambda: self._closing.is_set() or any(s.can_step() for s in self._streams))
                stepping = [stream for stream in self._streams if stream.can_step()]
                if "deadlocks" in (stream.request.text for stream in stepping):
                    _wait_forever()
                self._step_began = time.monotonic()
            if "hangs" in (stream.request.text for stream in stepping):
                _wait_forever()
            with self.work:
                for stream in stepping:
                    stream.step()
                self._steps += 1
                self._step_began = None
                self._cancelled += sum(s.result is not None and s.cancelled for s in stepping)
                self._streams = [stream for stream in self._streams if stream.result is None]
            notify_readers(stepping)
            if self._step_seconds:
                self._closing.wait(self._step_seconds)


def notify_readers(streams: Sequence[Any]) -> None:
    """Calls each on_ready once with all of its streams, as an engine does after a step."""
    for on_ready in dict.fromkeys(stream.on_ready for stream in streams if stream.on_ready is not None):
        on_ready([stream for stream in streams if stream.on_ready == on_ready])


def _wait_forever() -> None:
    threading.Event().wait()


def unbuildable() -> FakeEngine:
    raise ValueError("no such checkpoint")


def mortal(flag: str) -> FakeEngine:
    """Fails to build once the file exists."""
    if Path(flag).exists():
        raise ValueError("the checkpoint is missing")
    return FakeEngine()


def gated(gate: str) -> FakeEngine:
    """If the pipe exists, waits until a test writes to it."""
    if Path(gate).exists():
        Path(gate).read_text()
    return FakeEngine()


def staged(gate: str) -> FakeEngine:
    """Reports two stages, then waits until a test closes the pipe."""
    progress.report("load", 1, 2)
    progress.report("capture", 1, 4)
    Path(gate).read_text()
    return FakeEngine()
