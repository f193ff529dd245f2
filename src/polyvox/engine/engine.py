# SPDX-License-Identifier: Apache-2.0
"""The engine in this process: one thread, of which every iteration is schedule, run, deliver."""

import atexit
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import cast

import torch

from polyvox.audio.samples import Samples
from polyvox.engine.admission import Admission
from polyvox.engine.calibration import calibrate
from polyvox.engine.capacity import describe_capacity
from polyvox.engine.chunk_assembler import BufferedChunk
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.cost_model import HOST_FRAME_SECONDS, CostModel
from polyvox.engine.cpu_threads import use_threads
from polyvox.engine.demand import Demand
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_lock import LOCK_TIMEOUT, EngineLock, try_lock
from polyvox.engine.interface import OnReady, Stream
from polyvox.engine.load import CPU_SLOWDOWN, LoadModel, Slowdown
from polyvox.engine.memory import usage_table
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.step_counters import StepCounters
from polyvox.engine.step_pipeline import StepPipeline
from polyvox.engine.stream import LocalStream, StopRequest
from polyvox.engine.stream_manager import StreamManager
from polyvox.engine.stream_state import CHUNK_SIZES, MAX_FRAMES_PER_STEP, RING_FRAMES, SchedulerLimits, StepPlan
from polyvox.engine.stream_status import STATS_PREFIX, StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.engine.text_buffer import Rows
from polyvox.engine.trace import TraceWriter
from polyvox.errors import EngineDown, PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.models.protocol import PreparedRequest, SpeechModel
from polyvox.models.request import ClonedVoice, Request

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT = 30.0  # seconds for which a request waits for the engine's lock; longer only if the engine hangs
CLOSE_TIMEOUT = 10.0  # seconds for the step in flight when the engine is closed
MAX_FAILURES = 3  # consecutive failed steps before the engine stops


class LocalEngine:
    """Continuous batching around the frame step; interface.py has the contract.

    One lock guards all state that is not on the device. The engine's thread holds it while it plans and while it
    delivers, never while a step runs.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or EngineConfig()
        self.config.check()
        self.model, self.clock = model, clock
        self.sample_rate = model.vocoder.sample_rate
        self.frame_seconds = model.vocoder.samples_per_frame / model.vocoder.sample_rate
        self.lock = EngineLock()
        self._work = self.lock.new_condition()
        self._stopping = False
        self.broken: str | None = None  # the error that stopped the engine
        self._start_error: Exception | None = None
        self._num_streams = 0  # since the start: the last stream's id
        self._step_counters = StepCounters()
        self._num_failures = 0  # consecutive
        self._busy_since: float | None = None  # start of the current iteration; None while idle
        self._trace = TraceWriter(self.config.trace) if self.config.trace else None
        self._thread = threading.Thread(target=self._loop, name="polyvox-engine", daemon=True)
        self._started = threading.Event()
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:  # interrupted, and no caller has the engine to close it
            self._stopping = True
            raise
        if self._start_error is not None:
            raise self._start_error
        # A thread that computes during the shutdown of Python would abort it.
        atexit.register(self.close)

    # Public interface

    def submit(self, request: Request, on_ready: OnReady | None = None) -> LocalStream:
        """Accepts a request, or raises InvalidRequest or Overloaded.

        The request is prepared here, in the caller's thread. on_ready is called from the engine's thread, without its
        lock, with all streams of the same callback that have new chunks or their result.
        """
        stream = self._submit(request, on_ready, SUBMIT_TIMEOUT)
        if stream is None:
            raise EngineDown(f"the engine has not responded within {SUBMIT_TIMEOUT:g} s", retry_after=SUBMIT_TIMEOUT)
        return stream

    def submit_inline(self, request: Request, on_ready: OnReady | None = None) -> LocalStream | None:
        return self._submit(request, on_ready, LOCK_TIMEOUT)

    def _submit(self, request: Request, on_ready: OnReady | None, lock_timeout: float) -> LocalStream | None:
        """None if the lock is not free within its timeout. It is not kept while the request is prepared."""
        with self.try_lock(lock_timeout) as locked:
            if not locked:
                return None
            self._check_running()
            demand = Demand.of(request)
            with self._manager.counting_unread(demand.live):
                self.admission.precheck(demand, self.clock())
        if request.seed is None:
            request = replace(request, seed=secrets.randbelow(2**32))
        tokenizer = self.model.streaming_tokenizer(request) if request.live else None
        ids = tokenizer.append(request.text) if tokenizer else None
        prepared = None if ids == [] else self.model.prepare(request, ids)
        with self.try_lock(lock_timeout) as locked:
            if not locked:
                return None
            self._check_running()
            self._num_streams += 1
            status = StreamStatus.AWAITING_TEXT if prepared is None else StreamStatus.QUEUED
            stream = LocalStream(self, self._num_streams, status, request, tokenizer, on_ready)
            if prepared is not None:
                self.enqueue(stream, prepared)
            else:
                self._manager.await_text(stream)
                self.wake()
            return stream

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[BufferedChunk]]:
        with self.lock:
            taken = [cast(LocalStream, stream).pop_locked(max_chunks) for stream, max_chunks in wanted]
            self.wake()
        return taken

    def try_lock(self, timeout: float) -> AbstractContextManager[bool]:
        return try_lock(self.lock, timeout)

    def info(self) -> ModelInfo:
        return self.model.info()

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """Runs in the caller's thread, beside the steps."""
        return self.model.clone(samples, transcript)

    def stats(self) -> dict[str, float]:
        """Counters since the start, and the current state."""
        with self.lock:
            now, busy_since = self.clock(), self._busy_since
            leads = self.load.leads(now)
            return {
                "streams": len(self.streams.active),
                "waiting": len(self.streams[StreamStatus.QUEUED]),
                "capacity": self.load.capacity(),
                **self._capacity_limits(),
                "slots": self.config.max_streams,
                "slots_free": len(self.ledger.free_slots),
                "pages": self.config.pages,
                "pages_free": len(self.ledger.free_pages),
                "lead_min": float(leads[0]) if len(leads) else inf,
                "lead_p10": float(leads[len(leads) // 10]) if len(leads) else inf,
                **{f"{STATS_PREFIX}{status}": float(count) for status, count in self.streams.counts().items()},
                **self._manager.counts(),
                "stuck_seconds": now - busy_since if busy_since is not None else 0.0,
                "broken": float(self.broken is not None),
                **self._step_counters.stats(),
            }

    def _capacity_limits(self) -> dict[str, float]:
        return self.load.capacity_limits().stats(self._on_gpu, self._runner.slots_limited_by)

    @property
    def _on_gpu(self) -> bool:
        return self.model.generator.device.type == "cuda"

    def current_load(self) -> EngineLoad:
        with self.lock:
            now, busy_since = self.clock(), self._busy_since
            stuck_seconds = now - busy_since if busy_since is not None else 0.0
            return replace(self.admission.current_load(now), stuck_seconds=stuck_seconds)

    def request_close(self) -> None:
        """`close` without a wait for the thread; from any thread, also one that holds the lock."""
        self._stopping = True
        self.lock.post(self.wake)

    def close(self) -> None:
        """Ends all streams and the thread. Idempotent."""
        self.request_close()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT)
            if self._thread.is_alive():
                log.error("engine thread did not stop timeout=%g", CLOSE_TIMEOUT)
            atexit.unregister(self.close)

    # Called by streams, under the lock

    def wake(self) -> None:
        """Starts an iteration, because something changed."""
        self._work.notify_all()

    def on_change(self, stream: LocalStream) -> None:
        """A stream's reader took chunks, its text grew, or it shall stop."""
        self.note_change(stream)
        self.wake()

    def note_change(self, stream: LocalStream) -> None:
        """The same for a caller that wakes the engine itself."""
        self._manager.changed[stream] = None

    def enqueue(self, stream: LocalStream, prepared: PreparedRequest) -> None:
        """Queues a stream; raises Overloaded or InvalidRequest if admission rejects it."""
        self._check_running()
        with self._manager.counting_unread(stream.live) as unread:
            self._manager.enqueue(stream, prepared)
        if prepared.silent:  # no frames: a model that is given no words babbles
            self.request_stop(stream, StopRequest("stop"))
        elif unread is not None:
            error = "the reader is behind real time, and another request needs the slot"
            self.request_stop(unread, StopRequest("error", error))
        self.wake()

    def add_text(self, stream: LocalStream, ids: list[int], last: bool, rows: Rows | None = None) -> None:
        """Adds text to a queued or active stream: ids, then rows of another model."""
        if stream.result is None:
            stream.text.append(ids)
            if rows is not None:
                stream.text.append_rows(rows)
            stream.text_open = stream.text_open and not last
            self.on_change(stream)

    def request_stop(self, stream: LocalStream, stop: StopRequest) -> None:
        """Asks for the end of a stream. Only the engine's thread ends it, because a step may use its slot."""
        if stream.result is None and stream not in self._manager.stop_requests:
            self._manager.stop_requests[stream] = stop
            self.admission.on_stop_requested(stream)
            self.on_change(stream)

    def _check_running(self) -> None:
        if self.broken or self._stopping:
            raise EngineDown(self.broken or "the engine is closing", retry_after=1)
        if not self._thread.is_alive():  # threads do not survive a fork
            raise EngineDown("the engine runs in another process: load the model in this one", retry_after=0)

    # The loop

    def _start(self) -> None:
        """Allocates device memory and calibrates, in the thread that runs the steps."""
        if self._on_gpu:
            torch.cuda.set_device(self.model.generator.device)
            if self.model.vocoder.device.type == "cuda":
                use_threads(1)  # all that is left for the CPU are small copies
        self._runner = ModelRunner(self.model, self.config)
        self._runner.capture()
        cost = calibrate(self._runner)
        self.config = self._runner.config  # with the number of streams that fit, if none was given
        if self._on_gpu:
            cost.host_frame = HOST_FRAME_SECONDS
        log.info("memory usage:\n%s", usage_table(self._runner.memory()))
        self.ledger = SlotLedger(self.config.max_streams, self.config.pages)
        self._runner.poison(self.ledger.free_slots, self.ledger.free_pages)
        self.streams: StreamTable[LocalStream] = StreamTable(
            self.config.max_streams, self._trace.status if self._trace else None
        )
        slowdown = Slowdown(1.0 if self._on_gpu else CPU_SLOWDOWN)
        self.load = LoadModel(self._limits(cost), cost, self.streams, slowdown=slowdown)
        self.scheduler = Scheduler(self.load, self.streams)
        self.admission = Admission(self.load, self.streams, self.ledger)
        self._manager = StreamManager(
            self.model,
            self.config,
            self._runner,
            self.streams,
            self.admission,
            self.scheduler,
            self.clock,
            self.wake,
            self._trace,
        )
        log.info("capacity: %s", describe_capacity({"capacity": self.load.capacity(), **self._capacity_limits()}))
        self._pipeline = StepPipeline(
            self._runner,
            self.streams,
            self.scheduler,
            self._manager,
            self.lock,
            self.clock,
            self._observe,
            self._notify_readers,
        )
        self._started.set()

    def _limits(self, cost: CostModel) -> SchedulerLimits:
        # The prompts of one step may not take longer than a frame.
        prefill_rows = min(max(self.frame_seconds / cost.prefill_row, PAGE), self._runner.max_prefill_rows)
        return SchedulerLimits(
            frame_seconds=self.frame_seconds,
            num_slots=self.config.max_streams,
            num_pages=self.config.pages,
            page_size=PAGE,
            ring_frames=RING_FRAMES,
            max_queue=self.config.queue_length,
            max_queue_seconds=self.config.max_queue_seconds,
            max_prefill_rows=int(prefill_rows),
            max_batch=self.config.max_batch,
            max_chunk=CHUNK_SIZES[0 if self.config.deterministic else -1],
            max_frames_per_step=MAX_FRAMES_PER_STEP,
            frame_sizes=self._runner.frame_sizes,
            decodes_first_frames=not self._runner.decode_blocks,
        )

    def _loop(self) -> None:
        with torch.inference_mode():
            try:
                self._start()
                while True:
                    self._busy_since = self.clock()
                    plan = self._schedule()
                    if plan is None:
                        break
                    self._run(plan)
                    self._deliver()
            except Exception as error:
                rejected = not self._started.is_set() and isinstance(error, PolyvoxError)
                level, cause = (logging.INFO, None) if rejected else (logging.ERROR, error)
                log.log(level, "engine stopped", exc_info=cause)
                self.broken = f"the engine has stopped: {error}"
                self._start_error = error if rejected else EngineDown(self.broken, retry_after=0)
            finally:
                try:
                    self._end_all()
                finally:
                    runner: ModelRunner | None = getattr(self, "_runner", None)  # also of a start that failed
                    if runner is not None:
                        runner.close()
                    self._busy_since = None
                    self._started.set()
                    atexit.unregister(self.close)  # which keeps the engine

    def _schedule(self) -> StepPlan[LocalStream] | None:
        """Waits until there is work, and plans it; None when the engine closes."""
        while True:
            with self.lock:
                if self._stopping:
                    return None
                now = self.clock()
                # Text and reads that arrived in time count, however late this iteration is: timeouts come after them.
                self._manager.apply_changes(now)
                self._manager.expire_timeouts(now)
                self._manager.admit(now)
                self._manager.grow_pages()
                plan = self.scheduler.plan(now)
                if plan or self._pipeline.in_flight:
                    return plan
                if not self._manager.ready:
                    self._busy_since = None
                    self._work.wait(self._manager.next_timeout(now))
                    self._busy_since = self.clock()
                    self._pipeline.start_timing(self._busy_since)
            self._notify_readers()

    def _run(self, plan: StepPlan[LocalStream]) -> None:
        """Launches a step, and completes those before it; a failure ends the streams of all these steps."""
        try:
            self._pipeline.run(plan)
            self._num_failures = 0
        except Exception as error:
            self._num_failures += 1
            if self._num_failures > MAX_FAILURES:
                raise
            log.exception("step failed")
            self._runner.wait()  # nothing may write to a slot that is released
            self._fail(plan, f"a step of the engine failed: {error}")

    def _deliver(self) -> None:
        """Releases the slots of finished streams, and notifies the readers of all streams with news."""
        with self.lock:
            self._manager.release_finished()
        self._notify_readers()

    def _notify_readers(self) -> None:
        """Calls each on_ready once, without the lock; a callback that raises cancels its own streams only."""
        with self.lock:
            ready, self._manager.ready = self._manager.ready, {}
        by_callback: dict[OnReady, list[LocalStream]] = {}
        for stream in ready:
            if stream.on_ready is not None:
                by_callback.setdefault(stream.on_ready, []).append(stream)
        for on_ready, streams in by_callback.items():
            try:
                on_ready(streams)
            except BaseException:  # also SystemExit
                log.exception("on_ready callback failed, streams cancelled streams=%d", len(streams))
                for stream in streams:
                    stream.cancel()

    # Failure and shutdown

    def _fail(self, plan: StepPlan[LocalStream], error: str) -> None:
        with self.lock:
            prompts = [stream for stream, _ in plan.prefill]
            for stream in [*prompts, *self._pipeline.streams_of(plan), *self._pipeline.drop()]:
                self._manager.end(stream, "error", error)

    def _end_all(self) -> None:
        if not self._started.is_set():
            return
        with self.lock:
            self._pipeline.drop()
            for stream in list(self.streams):
                self._manager.end(stream, "error", self.broken or "the engine was closed")
            try:
                self._manager.release_finished()
            except Exception:  # the device may have failed
                log.exception("slot release failed")
        self._notify_readers()
        if self._trace:
            try:
                self._trace.write()
            except Exception:
                log.exception("trace write failed")

    def _observe(self, plan: StepPlan[LocalStream], seconds: float, now: float) -> None:
        self.load.observe(plan, seconds)
        self._step_counters.observe(plan, seconds)
        if self._trace:
            leads = self.load.leads(now).tolist()
            self._trace.step(self._step_counters.last, now, len(self.streams[StreamStatus.QUEUED]), leads)
