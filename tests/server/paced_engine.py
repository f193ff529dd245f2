# SPDX-License-Identifier: Apache-2.0
"""An engine with the real scheduler on a device that only sleeps, so that a busy machine does not matter."""

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ipc.fake_engine import SAMPLE_RATE, notify_readers
from polyvox.audio.clip import FinishReason
from polyvox.audio.samples import Samples
from polyvox.engine.admission import Admission
from polyvox.engine.cost_model import CostModel
from polyvox.engine.demand import Demand
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_lock import try_lock
from polyvox.engine.interface import Chunk, OnReady, Result, Stream
from polyvox.engine.load import LoadModel
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_reader import StreamReader
from polyvox.engine.stream_state import SchedulerLimits, StepPlan, StreamState
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.errors import InvalidRequest
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request
from server.fakes import CUSTOM

FRAME_SECONDS, FRAME_SAMPLES = 0.08, 1920
FRAMES_PER_BYTE = 0.9
# Step times with which seven streams run in real time.
COST = CostModel(step=0.010, stream=0.005, prefill_row=1e-5, codec=0.004, codec_frame=0.003)
PROMPT_ROWS, MAX_FRAMES = 30, 500


class PacedStream(StreamReader[Chunk]):
    def __init__(self, engine: "PacedEngine", request: Request, on_ready: OnReady | None) -> None:
        super().__init__(engine.work)
        self.on_ready, self.seed = on_ready, request.seed or 0
        self.frames = min(request.max_frames or MAX_FRAMES, int(FRAMES_PER_BYTE * len(request.text.encode())))
        self.cancelled = self.awaits_text = False
        self._work, self._given = engine.work, 0

    def _own(self, taken: Chunk) -> Chunk:
        return taken

    def _on_taken(self, _: list[Chunk]) -> None:
        """It keeps all that was made, however slow its reader."""

    def append(self, text: str) -> None:
        raise InvalidRequest("append", text, "is not supported by this engine")

    def append_rows(self, rows: NDArray[np.float32], last: bool = False) -> None:
        raise InvalidRequest("append", f"{len(rows)} rows, {last}", "is not supported by this engine")

    def append_tokens(self, ids: Sequence[int]) -> None:
        raise InvalidRequest("append", f"{len(ids)} tokens", "is not supported by this engine")

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
        self._notify()


class PacedEngine:
    sample_rate = SAMPLE_RATE
    broken: str | None = None

    def __init__(self, slots: int, queue: int, max_queue_seconds: float) -> None:
        pages = slots * (PROMPT_ROWS + MAX_FRAMES)
        limits = SchedulerLimits(
            FRAME_SECONDS, slots, pages, 16, 64, queue, max_queue_seconds, max_prefill_rows=512, max_batch=slots
        )
        self.work = threading.Condition()  # guards all that follows
        self._table: StreamTable[StreamState] = StreamTable(limits.num_slots)
        self._load = LoadModel(limits, replace(COST), self._table)
        self._scheduler = Scheduler(self._load, self._table)
        self._admission = Admission(self._load, self._table, SlotLedger(slots, pages))
        self._streams: dict[StreamState, PacedStream] = {}
        self._ids = 0
        self._counts = {"underruns": 0.0, "streams_with_underruns": 0.0, "finished_error": 0.0, "finished_stop": 0.0}
        self._closing = False
        self._ready: list[PacedStream] = []
        self._thread = threading.Thread(target=self._run, name="paced-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_ready: OnReady | None = None) -> PacedStream:
        with self.work:
            now, demand = time.monotonic(), Demand.of(request)
            self._admission.precheck(demand, now)
            self._ids += 1
            state = StreamState(
                self._ids,
                now,
                PROMPT_ROWS,
                MAX_FRAMES,
                live=demand.live,
                continues=demand.continues,
                utterance_id=demand.utterance_id,
                text_bytes=demand.num_bytes - request.following_bytes,
                following_bytes=request.following_bytes,
                owner=demand.owner,
                fingerprint=demand.fingerprint,
                may_reserve=demand.may_reserve,
            )
            self._admission.enqueue(state, now)
            stream = self._streams[state] = PacedStream(self, request, on_ready)
            self.work.notify_all()
            return stream

    def submit_inline(self, request: Request, on_ready: OnReady | None = None) -> PacedStream | None:
        with self.try_lock(0.0) as locked:
            return self.submit(request, on_ready) if locked else None

    def try_lock(self, timeout: float) -> AbstractContextManager[bool]:
        return try_lock(self.work, timeout)

    def current_load(self) -> EngineLoad:
        with self.work:
            return self._admission.current_load(time.monotonic())

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[Chunk]]:
        return [stream.take(most) for stream, most in wanted]

    def info(self) -> ModelInfo:
        return CUSTOM

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        raise InvalidRequest("recording", f"{len(samples)} samples, {transcript}", "is not supported by this engine")

    def stats(self) -> dict[str, float]:
        with self.work:
            running, waiting = len(self._table.active), len(self._table[StreamStatus.QUEUED])
            slots, capacity = self._load.limits.num_slots, self._load.capacity()
            return {"streams": running, "slots": slots, "waiting": waiting, "capacity": capacity, **self._counts}

    def close(self) -> None:
        with self.work:
            self._closing = True
            self.work.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self.work:
                while not (plan := self._plan()) and not self._closing and not self._ready:
                    self.work.wait()
                if self._closing:
                    return
            self._notify()
            began = time.monotonic()
            time.sleep(COST.seconds(*plan.sizes()))
            with self.work:
                now = time.monotonic()
                self._deliver(plan, now)
                self._load.observe(plan, now - began)
            self._notify()

    def _plan(self) -> StepPlan[StreamState]:
        now = time.monotonic()
        for state, stream in list(self._streams.items()):
            if stream.cancelled:
                self._end(state, "cancelled", np.zeros(0, np.float32), now)
        for state in self._admission.expire(now):
            self._end(state, "error", np.zeros(0, np.float32), now)
        self._admission.admit(now)
        return self._scheduler.plan(now)

    def _notify(self) -> None:
        """Without the lock."""
        ready, self._ready = self._ready, []
        notify_readers(ready)

    def _deliver(self, plan: StepPlan[StreamState], now: float) -> None:
        self._scheduler.start(plan, now)
        for state in self._table.at(plan.frame):
            state.generated += 1
            if state.generated >= self._streams[state].frames and not state.ended:
                self._table.transition(state, StreamStatus.DRAINING, now)
        self._scheduler.on_decoded(plan.codec, plan.codec_frames)
        self._scheduler.deliver(plan.codec, plan.codec_frames, now)
        for state, frames in zip(self._table.at(plan.codec), plan.codec_frames.tolist(), strict=True):
            samples = np.full(frames * FRAME_SAMPLES, 0.5, np.float32)
            if state.ended and state.decoded == state.generated:
                self._end(state, "stop", samples, now)
            else:
                self._streams[state].give(samples, None)
                self._ready.append(self._streams[state])

    def _end(self, state: StreamState, reason: FinishReason, samples: Samples, now: float) -> None:
        stream = self._streams.pop(state)
        if state.status in HOLDS_SLOT:
            self._table.transition(state, StreamStatus.RELEASING, now)
            self._admission.release(state, now, completed=reason not in ("cancelled", "error"))
        elif state.status is not StreamStatus.FINISHED:
            self._table.transition(state, StreamStatus.FINISHED, now)
        self._counts["underruns"] += state.underruns
        self._counts["streams_with_underruns"] += state.underruns > 0
        self._counts["finished_error"] += reason == "error"
        self._counts["finished_stop"] += reason == "stop"
        waited = min(now, state.admitted_at) - state.arrived_at
        retry_after = 1.0 if reason == "error" else None
        stream.give(
            samples,
            Result(
                reason,
                stream.seed,
                frames=state.generated,
                seconds=state.delivered_seconds,
                queue_wait=waited,
                underruns=state.underruns,
                retry_after=retry_after,
            ),
        )
        self._ready.append(stream)
