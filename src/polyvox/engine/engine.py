"""The engine in this process: one thread, whose every turn is schedule, run, deliver."""

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import cast

import torch
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.engine.calibration import calibrate
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.in_flight import CompletedStep, InFlightStep
from polyvox.engine.interface import Chunk, Stream
from polyvox.engine.memory import table
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream import LocalStream, OnReady
from polyvox.engine.stream_state import CHUNK_SIZES, RING_FRAMES, SchedulerLimits, StepPlan, StreamState
from polyvox.engine.stream_table import StreamTable
from polyvox.engine.trace import TraceWriter
from polyvox.errors import EngineDown, PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.models.protocol import PreparedRequest, SpeechModel
from polyvox.models.request import ClonedVoice, Request
from polyvox.progress import OnProgress

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0  # for the step that runs when the engine is closed
FAILURES_ALLOWED = 3  # steps in a row that may fail before the engine gives up


class LocalEngine:
    """Continuous batching around the frame step; see interface.py for what it promises.

    One lock guards all that is not on the device. The engine's thread holds it while it plans and while it hands
    over, never while a step runs.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.config.check()
        self.model, self.clock, self._on_progress = model, clock, on_progress
        self.sample_rate = model.sample_rate
        self.frame_seconds = model.samples_per_frame / model.sample_rate
        self.lock = threading.RLock()
        self._work = threading.Condition(self.lock)
        self._stopping = False
        self.broken: str | None = None  # and why
        self._refusal: Exception | None = None  # of a start that failed
        self._flights: deque[InFlightStep] = deque()
        self._begun = 0  # steps
        self._landed = 0.0  # when the last one did
        self._totals = dict.fromkeys(("steps", "frames", "prompt_rows"), 0.0)
        self._last: dict[str, float] = {}  # what the last step had in it
        self._failures = 0
        self._began: float | None = None  # when the turn that runs now did; None while there is nothing to do
        self._trace = TraceWriter(self.config.trace) if self.config.trace else None
        self._thread = threading.Thread(target=self._loop, name="polyvox-engine", daemon=True)
        self._started = threading.Event()
        self._thread.start()
        self._started.wait()
        if self._refusal is not None:
            raise self._refusal
        # A thread that computes while the interpreter goes away would abort it.
        atexit.register(self.close)

    # What others call

    def submit(self, request: Request, on_ready: OnReady | None = None) -> LocalStream:
        """Takes a request, or raises InvalidRequest or Overloaded at once.

        All that can be prepared is prepared here, in the caller's thread. on_ready is called, from the engine's
        thread and without its lock, when the stream got chunks or its end: for each at most once a turn.
        """
        with self.lock:
            self._check_up()
            # Before any work is done for it.
            self.scheduler.look(not request.whole_file, request.segment > 0, self.clock())
        if request.seed is None:
            request = replace(request, seed=secrets.randbelow(2**32))
        growing = self.model.growing_text(request) if request.live else None
        ids = growing.append(request.text) if growing else None
        prepared = None if ids == [] else self.model.prepare(request, ids)
        with self.lock:
            self._check_up()
            stream = LocalStream(self, request, growing, on_ready)
            if prepared is not None:
                self.offer(stream, prepared)
            else:
                self._crowd.wait_for_word(stream)
                self.wake()
            return stream

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[Chunk]]:
        with self.lock:
            found = [cast(LocalStream, stream).pop(most) for stream, most in wanted]
        return [[piece.joined() for piece in pieces] for pieces in found]

    def info(self) -> ModelInfo:
        return self.model.info()

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """In the caller's thread, beside the steps."""
        return self.model.clone(samples, transcript)

    def stats(self) -> dict[str, float]:
        """Counts since the start, and how things stand."""
        with self.lock:
            now, began = self.clock(), self._began
            leads = self.scheduler.leads(now)
            return {
                "streams": len(self.scheduler.running),
                "waiting": len(self.scheduler.waiting),
                "capacity": self.scheduler.capacity(),
                "slots": self.config.max_streams,
                "slots_free": len(self.ledger.free_slots),
                "pages_free": len(self.ledger.free_pages),
                "lead_min": leads[0] if leads else inf,
                "lead_p10": leads[len(leads) // 10] if leads else inf,
                **self._crowd.counts(),
                **self._totals,
                "stuck_seconds": now - began if began is not None else 0.0,
                "broken": float(self.broken is not None),
                **{f"step_{name}": value for name, value in self._last.items()},
            }

    def close(self) -> None:
        """Ends all streams and the thread; any number of times."""
        with self.lock:
            self._stopping = True
            self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                log.error("a step has not ended within %g s; its thread is left to itself", CLOSE_SECONDS)
            atexit.unregister(self.close)

    def wake(self) -> None:
        """Something has changed that the next turn must see."""
        self._work.notify_all()

    def changed(self, stream: LocalStream) -> None:
        """The same, of one stream: its reader has taken, its text has grown, or it shall end."""
        self._crowd.changed[stream] = None
        self.wake()

    # Called by streams, under the lock

    def offer(self, stream: LocalStream, prepared: PreparedRequest) -> None:
        """Puts a stream into the queue; raises Overloaded where there is no place in it."""
        self._check_up()
        self._crowd.offer(stream, prepared)
        self.wake()

    def _check_up(self) -> None:
        if self.broken or self._stopping:
            raise EngineDown(self.broken or "the engine is closing", retry_after=1)

    def add_text(self, stream: LocalStream, rows: Tensor, last: bool) -> None:
        """More rows of text for a stream that has been offered."""
        stream.text = torch.cat([stream.text, rows]) if len(stream.text) else rows
        stream.text_open = stream.text_open and not last
        self.changed(stream)

    def fail(self, stream: LocalStream, error: Exception) -> None:
        """Asks for the end of one stream; its slot may be in a step, so only the engine's thread ends it."""
        if stream.result is None and stream.wants_end is None:
            stream.wants_end, stream.failure, stream.text_open = "error", str(error), False
            stream.retry_after = getattr(error, "retry_after", None)
            self.changed(stream)

    # The turn

    def _start(self) -> None:
        """Takes the memory and measures the machine, in the thread that will do the work."""
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)
        self._stepper = ModelRunner(self.model, self.config)
        self._stepper.capture(self._on_progress)
        cost = calibrate(self._stepper, self._on_progress)
        self.config = self._stepper.config  # with the slots that fit, where none were asked for
        self.ledger = SlotLedger(self.config.max_streams, self.config.pages)
        self._stepper.poison(self.ledger.free_slots, self.ledger.free_pages)
        log.info("where the memory goes:\n%s", table(self._stepper.memory()))
        limits = SchedulerLimits(
            frame_seconds=self.frame_seconds,
            slots=self.config.max_streams,
            pages=self.config.pages,
            page_size=PAGE,
            ring=RING_FRAMES,
            max_queue=self.config.max_queue,
            max_queue_seconds=self.config.max_queue_seconds,
            # A prompt must not hold up for longer than a frame those who come after it.
            prefill_rows=int(min(max(self.frame_seconds / cost.prefill_row, PAGE), self._stepper.max_prefill_rows)),
            batch=self.config.max_streams,
            chunk=CHUNK_SIZES[0 if self.config.deterministic else -1],
        )
        self.scheduler = Scheduler(limits, cost, self.ledger)
        self._crowd = StreamTable(
            self.model, self.config, self._stepper, self.scheduler, self.clock, self.wake, self._trace
        )
        self._started.set()

    def _loop(self) -> None:
        with torch.inference_mode():
            try:
                self._start()
                while True:
                    self._began = self.clock()
                    plan = self._schedule()
                    if plan is None:
                        break
                    self._deliver(self._run(plan))
            except Exception as error:
                refused = not self._started.is_set() and isinstance(error, PolyvoxError)
                log.log(logging.INFO if refused else logging.ERROR, "the engine has stopped", exc_info=error)
                self.broken = f"the engine has stopped: {error}"
                self._refusal = error if refused else EngineDown(self.broken, retry_after=0)
            finally:
                try:
                    self._close_all()
                finally:
                    self._began = None
                    self._started.set()

    def _schedule(self) -> StepPlan | None:
        """Waits until there is something to do, and says what; None when the engine closes."""
        while True:
            with self.lock:
                if self._stopping:
                    return None
                now = self.clock()
                # What came in time counts, however late this turn is: limits are looked at after it.
                self._crowd.look_at_changes(now)
                self._crowd.end_the_impatient(now)
                self._crowd.admit(now)
                plan = self.scheduler.plan(now)
                if plan or self._flights:
                    return plan
                if not self._crowd.notified:
                    self._began = None
                    self._work.wait(self._crowd.next_timer(now))
                    self._began = self.clock()
            self._tell_readers()

    def _run(self, plan: StepPlan) -> list[CompletedStep]:
        """Begins a step, and waits until no more are under way than should be; what those that ended gave.

        Where it fails, that ends the streams of all these steps and nobody else.
        """
        landed: list[CompletedStep] = []
        try:
            if plan:
                self._begin(plan)
            many = 0 < self._stepper.min_streams_to_pipeline <= len(plan.frame)
            while len(self._flights) > bool(many):
                flight = self._flights[0]
                if flight.sound is not None:  # whoever waits for it need not wait for the frame beside it
                    self._hand_over(flight, flight.sound.get())
                flags = flight.flags.get().tolist() if flight.flags else []
                now = self.clock()
                landed.append(CompletedStep(flight, flags, now - max(flight.began, self._landed)))
                self._landed = now
                with self.lock:
                    self._flights.popleft()
                    self._crowd.over = flight.number
            self._failures = 0
        except Exception as error:
            self._failures += 1
            if self._failures > FAILURES_ALLOWED:
                raise
            log.exception("a step failed")
            self._stepper.wait()  # a slot that is freed must not be written to any more
            self._fail(plan, f"a step of the engine failed: {error}")
        return landed

    def _begin(self, plan: StepPlan) -> None:
        """Hands a step to the device."""
        began, stepper, streams = self.clock(), self._stepper, self._crowd.streams
        makes, sounds = [streams[track] for track in plan.frame], [streams[track] for track, _ in plan.codec]
        sound = flags = None
        if sounds:
            chunks = zip(sounds, plan.codec, strict=True)
            sound = stepper.decode([(stream.slot, t.decoded + t.sent, n) for stream, (t, n) in chunks])
        if plan.prefill:
            stepper.prefill(
                [(streams[t].slot, t.prefilled, streams[t].prompt[t.prefilled :][:rows]) for t, rows in plan.prefill]
            )
        if makes:
            flags = stepper.frame([(s.slot, t.prompt_rows + t.started) for s, t in zip(makes, plan.frame, strict=True)])
        with self.lock:
            self._begun += 1
            self._flights.append(InFlightStep(self._begun, plan, began, makes, flags, sounds, sound))
            for stream in makes:
                stream.flight = self._begun
            for stream in sounds:
                stream.flight = self._begun
            for track, rows in plan.prefill:
                track.prefilled += rows
                if not track.prompt_left:
                    streams[track].prepared = None
            for track in plan.frame:
                track.started += 1
            for track, frames in plan.codec:
                track.sent += frames

    def _hand_over(self, flight: InFlightStep, sound: list[Samples]) -> None:
        """Gives the samples of a step to those who wait for them."""
        with self.lock:
            now = self.clock()
            for stream, (track, frames), samples in zip(flight.sounds, flight.plan.codec, sound, strict=True):
                track.sent -= frames
                track.decoded += frames
                if stream.result is None:
                    self._crowd.give(stream, track, samples, frames, now)
            self._crowd.end_those_who_are_done(flight.sounds)  # a final chunk and its result are told as one
        self._tell_readers()

    def _deliver(self, landed: list[CompletedStep]) -> None:
        """Takes note of what steps told, and ends those that have nothing more to give."""
        with self.lock:
            for step in landed:
                for stream, flags in zip(step.flight.makes, step.flags, strict=True):
                    self._crowd.heard(stream, flags)
                self._note(step)
                self._crowd.end_those_who_are_done(step.flight.makes)
            self._crowd.free_those_who_left()
        self._tell_readers()

    def _tell_readers(self) -> None:
        """Calls those who asked to be told, without the lock; one that throws loses its own stream only."""
        with self.lock:
            ready, self._crowd.notified = list(self._crowd.notified), {}
        for stream in ready:
            if stream.on_ready is not None:
                try:
                    stream.on_ready(stream)
                except BaseException:  # also an exit that was meant for another thread
                    log.exception("a reader's callback failed; its stream is cancelled")
                    stream.cancel()

    # When things go wrong, or end

    def _fail(self, plan: StepPlan, error: str) -> None:
        with self.lock:
            named = [self._crowd.streams[track] for track in self._named(plan)]
            flying = [stream for flight in self._flights for stream in flight.streams]
            self._flights.clear()
            self._crowd.over = self._begun
            for stream in dict.fromkeys([*named, *flying]):
                self._crowd.end(stream, "error", error)

    def _close_all(self) -> None:
        if not self._started.is_set():
            return
        with self.lock:
            self._flights.clear()
            self._crowd.over = self._begun
            for stream in self._crowd.everybody():
                self._crowd.end(stream, "error", self.broken or "the engine was closed")
            try:
                self._crowd.free_those_who_left()
            except Exception:  # of a device that is dead
                log.exception("what the last streams had could not be freed")
        self._tell_readers()
        if self._trace:
            try:
                self._trace.write()
            except Exception:
                log.exception("the trace could not be written")

    def _named(self, plan: StepPlan) -> list[StreamState]:
        return list(dict.fromkeys([t for t, _ in plan.prefill] + list(plan.frame) + [t for t, _ in plan.codec]))

    def _note(self, step: CompletedStep) -> None:
        plan = step.flight.plan
        self.scheduler.observe(plan, step.seconds)
        self._totals["steps"] += 1
        batch, rows, frames, _ = plan.sizes()
        self._totals["frames"] += batch
        self._totals["prompt_rows"] += rows
        self._last = {"batch": batch, "prefill_rows": rows, "codec_frames": frames, "seconds": step.seconds}
        if self._trace:
            self._trace.step(self._last, self.clock(), self.scheduler)
