"""An engine whose door and steps are the scheduler's own, on a device that only waits: as fast on a busy machine."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ipc.fake_engine import SAMPLE_RATE
from polyvox.audio.clip import FinishReason, Samples
from polyvox.engine.cost_model import CostModel
from polyvox.engine.interface import Chunk, Result, Stream
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_reader import StreamReader
from polyvox.engine.stream_state import SchedulerLimits, StepPlan, StreamState
from polyvox.errors import InvalidRequest
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request
from server.fakes import CUSTOM

FRAME_SECONDS, FRAME_SAMPLES = 0.08, 1920
FRAMES_PER_BYTE = 0.9
# Seconds of a step that keep seven listeners fed.
COST = CostModel(step=0.010, stream=0.005, prefill_row=1e-5, codec=0.004, codec_frame=0.003)
PROMPT_ROWS, MAX_FRAMES = 30, 500


class PacedStream(StreamReader):
    def __init__(
        self, engine: "PacedEngine", request: Request, on_ready: Callable[["PacedStream"], None] | None
    ) -> None:
        super().__init__(engine.work)
        self.on_ready, self.seed = on_ready, request.seed or 0
        self.frames = min(request.max_frames or MAX_FRAMES, int(FRAMES_PER_BYTE * len(request.text.encode())))
        self.cancelled = False
        self._work, self._given = engine.work, 0

    def _took(self, _: list[Chunk]) -> None:
        """It keeps all that was made, however slow its reader."""

    def append(self, text: str) -> None:
        raise InvalidRequest("append", text, "is not supported by this engine")

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        raise InvalidRequest("append", f"{len(rows)} rows, {last}", "is not supported by this engine")

    def finish_text(self) -> None:
        raise InvalidRequest("append", "an end", "is not supported by this engine")

    def cancel(self) -> None:
        with self._work:
            self.cancelled = True
            self._work.notify_all()

    def give(self, samples: Samples, result: Result | None) -> None:
        self.result = result
        self._buffer.append(Chunk(samples, self._given, result is not None))
        self._given += 1
        self._told()


class PacedEngine:
    sample_rate = SAMPLE_RATE

    def __init__(self, slots: int, queue: int, queue_seconds: float) -> None:
        pages = slots * (PROMPT_ROWS + MAX_FRAMES)
        limits = SchedulerLimits(
            FRAME_SECONDS, slots, pages, 16, 64, queue, queue_seconds, prefill_rows=512, batch=slots
        )
        self.work = threading.Condition()  # guards all that follows
        self._scheduler = Scheduler(limits, replace(COST), SlotLedger(slots, pages))
        self._streams: dict[StreamState, PacedStream] = {}
        self._ids = 0
        self._counts = {"underruns": 0.0, "finished_error": 0.0}
        self._closing = False
        self._told: list[PacedStream] = []
        self._thread = threading.Thread(target=self._run, name="paced-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_ready: Callable[[PacedStream], None] | None = None) -> PacedStream:
        with self.work:
            now, live, continues = time.monotonic(), not request.whole_file, request.segment > 0
            self._scheduler.look(live, continues, now)
            self._ids += 1
            track = StreamState(self._ids, now, PROMPT_ROWS, MAX_FRAMES, live=live, continues=continues)
            self._scheduler.offer(track, now)
            stream = self._streams[track] = PacedStream(self, request, on_ready)
            self.work.notify_all()
            return stream

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[Chunk]]:
        return [stream.take(most) for stream, most in wanted]

    def info(self) -> ModelInfo:
        return CUSTOM

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        raise InvalidRequest("recording", f"{len(samples)} samples, {transcript}", "is not supported by this engine")

    def stats(self) -> dict[str, float]:
        with self.work:
            running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
            slots, capacity = self._scheduler.limits.slots, self._scheduler.capacity()
            return {"streams": running, "slots": slots, "waiting": waiting, "capacity": capacity, **self._counts}

    def close(self) -> None:
        with self.work:
            self._closing = True
            self.work.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self.work:
                while not (plan := self._plan()) and not self._closing and not self._told:
                    self.work.wait()
                if self._closing:
                    return
            self._tell()
            began = time.monotonic()
            time.sleep(COST.seconds(*plan.sizes()))
            with self.work:
                now = time.monotonic()
                self._deliver(plan, now)
                self._scheduler.observe(plan, now - began)
            self._tell()

    def _plan(self) -> StepPlan:
        now = time.monotonic()
        for track, stream in list(self._streams.items()):
            if stream.cancelled:
                self._end(track, "cancelled", np.zeros(0, np.float32), now)
        _, expired = self._scheduler.admit(now)
        for track in expired:
            self._end(track, "error", np.zeros(0, np.float32), now)
        return self._scheduler.plan(now)

    def _tell(self) -> None:
        """Without the lock."""
        told, self._told = self._told, []
        for stream in told:
            if stream.on_ready is not None:
                stream.on_ready(stream)

    def _deliver(self, plan: StepPlan, now: float) -> None:
        for track, rows in plan.prefill:
            track.prefilled += rows
        for track in plan.frame:
            track.started += 1
            track.made += 1
            track.ended = track.made >= self._streams[track].frames
        for track, frames in plan.codec:
            track.decoded += frames
            self._scheduler.gave(track, frames, now)
            samples = np.full(frames * FRAME_SAMPLES, 0.5, np.float32)
            if track.ended and track.decoded == track.made:
                self._end(track, "stop", samples, now)
            else:
                self._streams[track].give(samples, None)
                self._told.append(self._streams[track])

    def _end(self, track: StreamState, reason: FinishReason, samples: Samples, now: float) -> None:
        stream = self._streams.pop(track)
        self._scheduler.release(track, now)
        self._counts["underruns"] += track.underruns
        self._counts["finished_error"] += reason == "error"
        waited = (now if track.admitted is None else track.admitted) - track.arrived
        retry_after = 1.0 if reason == "error" else None
        stream.give(
            samples,
            Result(
                reason,
                stream.seed,
                frames=track.made,
                seconds=track.given,
                queue_wait=waited,
                underruns=track.underruns,
                retry_after=retry_after,
            ),
        )
        self._told.append(stream)
