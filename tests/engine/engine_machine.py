# SPDX-License-Identifier: Apache-2.0
"""Random operations on an engine and its streams, in any order: a state machine for hypothesis.

Level (a) of determinism: in float64 a stream has exactly the codes of a solo run, and its samples to 1e-6, whatever
happens to other streams. A stream that is cut short has a prefix of them. So no stream contains audio of another.
"""

import logging
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import inf
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from engine.clients import LIVE, SAMPLINGS, SUBMITTED, Client, one_of
from engine.reference_scheduler import needs_text
from engine.solo_comparison import check_output
from engine.stepped_engine import Injected, SteppedEngine, small_text_ring, withhold_from_two_streams
from engine.synthesis import TIMEOUT, assert_idle, request
from polyvox.engine.admission import QUEUE_GRACE_SECONDS
from polyvox.engine.config import EngineConfig
from polyvox.engine.demand import Demand
from polyvox.engine.kv_cache import SCRATCH_PAGE
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request

log = logging.getLogger(__name__)

SLOTS, QUEUE, BUFFER_FRAMES = 3, 3, 20
TIMEOUTS = {"queue": 100.0, "reader": 200.0, "text": 300.0}  # seconds of the test's clock
PICK = st.integers(0, 11)
RARELY = st.sampled_from([True, False, False])  # more would cut most streams short


class EngineMachine(RuleBasedStateMachine):
    """An engine with few slots, a short queue and small buffers, its clients, and injected failures.

    A rule without work does nothing: preconditions must give the same result in every run of an example, and the
    progress of an unstopped engine does not.
    """

    def __init__(
        self, speech: Qwen3TTSModel, pipeline: int, free: bool = False, counts: Counter[str] | None = None
    ) -> None:
        super().__init__()
        self.speech, self.free = speech, free
        self.counts = Counter() if counts is None else counts  # counts over all examples
        self.config = EngineConfig(
            max_streams=SLOTS,
            max_queue=QUEUE,
            max_queue_seconds=TIMEOUTS["queue"] - QUEUE_GRACE_SECONDS,
            reader_timeout=TIMEOUTS["reader"],
            text_timeout=TIMEOUTS["text"],
            min_streams_to_pipeline=pipeline,
            poison_freed=True,
        )
        self.clients: list[Client] = []
        self.closed = self.violated = False
        self.steps_of_last_failure = -1.0
        self.patches = ExitStack()

    @initialize(
        whole=st.lists(SUBMITTED, max_size=4),
        live=st.lists(LIVE, max_size=2),
        rows=st.sampled_from([512, 7]),
        parts=st.integers(0, 60),
    )
    def start(self, whole: list[dict[str, Any]], live: list[dict[str, Any]], rows: int, parts: int) -> None:
        """Starts with some streams; their prompts are read in one step, or a few rows at a time."""
        self.patches.enter_context(small_text_ring())
        self.patches.enter_context(withhold_from_two_streams())
        self.engine = SteppedEngine(self.speech, self.config, BUFFER_FRAMES, rows, self.free)
        self.engine.advance()
        for one in whole:
            self.submit(one)
        for one in live:
            self.submit_live(one)
        self.engine.advance(parts)

    # Requests

    @rule(one=SUBMITTED)
    def submit(self, one: dict[str, Any]) -> None:
        wanted = dict(one)
        reader, unassignable = wanted.pop("reader"), wanted.pop("unassignable")
        client = Client(request(sampling=SAMPLINGS[wanted.pop("greedy")], **wanted), reader)
        if self._submit(client, client.wanted) and unassignable:
            self.engine.unassignable.add(client.stream)

    @rule(one=LIVE)
    def submit_live(self, one: dict[str, Any]) -> None:
        wanted = dict(one)
        first = wanted.pop("first")
        text, reader, wanted["sampling"] = wanted.pop("text"), wanted.pop("reader"), SAMPLINGS[wanted.pop("greedy")]
        client = Client(request(text, layout="streaming", **wanted), reader, left=text[first:])
        self._submit(client, request(text[:first], live=True, guard=False, **wanted))

    def _submit(self, client: Client, wanted: Request) -> bool:
        engine = self.engine
        if self.closed:
            return False
        with engine.lock:
            before = [list(engine.streams[status]) for status in (StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED)]
            pages = engine.load.limits.num_pages  # the maximum of one stream
            admission, demand = engine.admission, replace(Demand.of(wanted), num_pages=pages)
            wait = admission.estimate.upper_bound(admission.estimate_wait(demand, engine.now))
            wait = max(
                wait,
                admission.estimate.turn(demand.live, admission._num_concurrent(demand.live, engine.now), engine.now),
            )
            try:
                on_ready = None if client.reader == "none" else client.on_ready
                client.stream = engine.submit(wanted, on_ready)
            except Overloaded:
                assert before == [
                    list(engine.streams[status]) for status in (StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED)
                ]
                # Files use at most half of the queue.
                full = len(before[1]) >= QUEUE / 2 or len(before[0]) >= QUEUE + SLOTS
                assert full or wait > self.config.max_queue_seconds
                self.counts["overloaded"] += 1
                return False
        self.clients.append(client)
        return True

    # Text

    @rule(pick=PICK, count=st.integers(0, 25), parts_meanwhile=st.sampled_from([0, 0, 3, 30]), fails=st.integers(0, 9))
    def append(self, pick: int, count: int, parts_meanwhile: int, fails: int) -> None:
        """Appends characters; the engine may advance while they are converted to rows, and the conversion may fail."""
        client = one_of(self._writers(), pick)
        if client is None:
            return
        piece, client.left = client.left[:count], client.left[count:]
        self._write(client, lambda: client.stream.append(piece), parts_meanwhile, fails == 0)

    @rule(pick=PICK, parts_meanwhile=st.sampled_from([0, 0, 3, 30]))
    def finish_text(self, pick: int, parts_meanwhile: int) -> None:
        client = one_of(self._writers(), pick)
        if client is not None:
            self._finish(client, parts_meanwhile)

    def _writers(self) -> list[Client]:
        return [] if self.closed else [one for one in self.clients if one.stream.request.live and one.end is None]

    def _finish(self, client: Client, parts_meanwhile: int = 0) -> None:
        if client.stream.text_open:
            piece, client.left = client.left, ""
            self._write(client, lambda: client.stream.append(piece), 0, False)
        self._write(client, client.stream.finish_text, parts_meanwhile, False)

    def _write(self, client: Client, write: Any, parts_meanwhile: int, fails: bool) -> None:
        stream = client.stream
        make = self.speech.text_ids

        def text_ids(ids: list[int], last: bool) -> list[int]:
            self.engine.advance(parts_meanwhile)
            if fails:
                raise Injected("rows")
            return make(ids, last)

        was_open = stream.text_open and stream not in self.engine._manager.stop_requests
        with mock.patch.object(self.speech, "text_ids", text_ids) if parts_meanwhile or fails else ExitStack():
            try:
                write()
            except Injected:
                client.causes.add("rows")
            except Overloaded:
                assert stream.status is StreamStatus.AWAITING_TEXT
                client.causes.add("rejected")
            except InvalidRequest:
                assert not (was_open and stream.text_open), "text was rejected although it is open"

    # Readers

    @rule(pick=PICK, max_chunks=st.sampled_from([1, 1, 2, 1_000]))
    def read(self, pick: int, max_chunks: int) -> None:
        """Takes buffered chunks. A client that is never picked does not read, and may resume."""
        client = one_of(self._readers(), pick)
        if client is not None:
            client.take(max_chunks)

    @rule(pick=PICK, chosen=RARELY)
    def stop_reading(self, pick: int, chosen: bool) -> None:
        """Reads one more chunk, or the end, and leaves the iteration."""
        client = one_of(self._readers(), pick)
        if client is None or not chosen:
            return
        stream = client.stream
        with self.engine.lock:
            if not (stream._buffer or stream.result):
                return
            client.causes |= {"cancel"} if stream.result is None else set()
            last = stream._buffer[0].owned() if stream._buffer else None
            try:
                client.receive([next(stream.chunks(TIMEOUT))])
            except StopIteration:
                assert client.received[-1].final
            except (StreamFailed, Overloaded):
                assert stream.result is not None
                assert last is not None
                assert stream.result.finish_reason == "error"
                client.receive([last])

    def _readers(self) -> list[Client]:
        return [one for one in self.clients if one.reader == "none" and not (one.received and one.received[-1].final)]

    @rule(pick=PICK, times=st.integers(1, 2), parts=st.integers(0, 4), chosen=RARELY)
    def cancel(self, pick: int, times: int, parts: int, chosen: bool) -> None:
        client = one_of(sorted(self.clients, key=lambda one: one.end is not None), pick)
        if client is None or not chosen:
            return
        for _ in range(times):
            self._cancel(client)
            self.advance(parts)

    def _cancel(self, client: Client) -> None:
        client.causes |= {"cancel"} if client.stream.result is None else set()
        client.stream.cancel()

    # The engine

    @rule(parts=st.sampled_from([1, 2, 3, 5, 13, 40]))
    def advance(self, parts: int) -> None:
        self.engine.advance(parts)

    @rule()
    def run_until_idle(self) -> None:
        """Runs until the engine is idle; a wake-up without a change must then do nothing."""
        engine = self.engine
        engine.advance()
        if self.closed:
            return
        with engine.lock:
            assert not engine._pipeline.in_flight
            assert not engine.streams[StreamStatus.RELEASING]
            assert not engine._manager.ready
            for client in self.clients:
                stream = client.stream
                if client.reader == "takes":
                    assert not stream._buffer, "a reader was not notified"
                if stream.result is not None:
                    continue
                assert stream not in engine._manager.stop_requests
                if stream.status not in (StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED):
                    full, waits = engine._manager.buffer_free(stream) < 1, stream.text_open and needs_text(stream)
                    assert full or waits, f"a stream that could run does not: {stream}"
                    assert stream.status in (StreamStatus.PAUSED, StreamStatus.DRAINING)
                    assert (stream.reader_deadline < inf) == full
                    assert not stream.assembler.size or stream.assembler.silent, (
                        "audio is withheld that could be delivered"
                    )
                    self.counts["full"] += full
                    assert (stream.text_deadline < inf) >= (waits and stream.decoded == stream.started)
        before = self._progress()
        with engine.lock:
            timeout = min((self._timeout(one.stream)[0] for one in self.clients), default=inf)
            assert engine.next_timeout <= timeout + 0.01, "the engine would sleep past a timeout"
            engine.wake()
        engine.advance()
        assert self._progress() == before, "a wake-up was lost"

    def _progress(self) -> list[tuple[object, ...]]:
        with self.engine.lock:
            return [
                (s.prefilled, s.started, s.decoded, s.status, s.buffered, len(s.text), s.result)
                for s in (client.stream for client in self.clients)
            ]

    @rule(call=st.sampled_from(["prefill", "frame", "decode", "audio", "write"]), after=st.booleans(), chosen=RARELY)
    def fail_once(self, call: str, after: bool, chosen: bool) -> None:
        """The next call fails, before or after its work; never so often in a row that the engine stops."""
        if not chosen or self.closed or self.engine.stats()["steps"] <= self.steps_of_last_failure:
            return
        self.steps_of_last_failure = self.engine.stats()["steps"]
        self.engine.armed = {call: after}

    @rule(frames=st.sampled_from([1, 5, 30]))
    def time_passes(self, frames: int) -> None:
        """Time passes: leads shrink, and some streams have underruns."""
        self.engine.advance_clock(frames * self.engine.frame_seconds)

    @rule(what=st.sampled_from(list(TIMEOUTS)), chosen=RARELY)
    def timeout_passes(self, what: str, chosen: bool) -> None:
        engine = self.engine
        if not chosen or self.closed:
            return
        with engine.lock:
            idle = engine.parked == "idle"
            engine.advance_clock(TIMEOUTS[what] + 1)
            limits = [(client, *self._timeout(client.stream)) for client in self.clients]
            late = [(client, cut) for client, moment, cut in limits if moment < engine.now]
            for client, cut in late:
                client.causes.add(cut)
            # A player that waits for more tokens starts with those it has before its wait for text times out.
            due = [(each, cut) for each, cut in late if cut != "text" or each.stream.text_end <= each.stream.started]
        if idle:
            engine.advance()
            for client, cut in due:
                assert client.stream.result is not None, f"{cut}: the timeout did not fire"
                assert client.stream.result.finish_reason == "error"

    def _timeout(self, stream: LocalStream) -> tuple[float, str]:
        """When a stream times out, and for which cause."""
        if stream.status is StreamStatus.QUEUED:
            return stream.arrived_at + TIMEOUTS["queue"], "queue"
        deadline = min((stream.reader_deadline, "reader"), (stream.text_deadline, "text"))
        return deadline if stream.result is None and deadline[0] < inf else (inf, "")

    @rule(chosen=RARELY, twice=RARELY)
    def close(self, chosen: bool, twice: bool) -> None:
        """Closes the engine under load."""
        if not (chosen and twice) or self.closed or len(self.clients) < 4:
            return
        for client in self.clients:
            client.causes |= {"closed"} if client.stream.result is None else set()
        self.closed = True
        self.engine.close()
        with pytest.raises(EngineDown):
            self.engine.submit(request())

    # Invariants

    @invariant()
    def invariants_hold(self) -> None:
        self.violated = True  # until all invariants are checked
        with self.engine.lock:
            assert not self.engine.violations
            self._check_slots_and_pages()
            for client in self.clients:
                self._check_stream(client)
            ended = sum(client.stream.result is not None for client in self.clients)
            assert sum(self.engine._manager._num_finished.values()) == ended
        self.violated = False

    def _check_slots_and_pages(self) -> None:
        engine, runner = self.engine, self.engine._runner
        allocations = [stream.allocation for stream in engine.streams if stream.allocation is not None]
        slots = [allocation.slot for allocation in allocations] + engine.ledger.free_slots
        pages = [page for allocation in allocations for page in allocation.pages] + engine.ledger.free_pages
        assert sorted(slots) == list(range(SLOTS))
        assert sorted(pages) == list(range(1, engine.config.pages + 1)), "page 0 is the scratch page"
        with torch.inference_mode():
            runner.generator.cache.upload()
        for allocation in allocations:
            table = runner.generator.cache.table[allocation.slot].tolist()
            assert table == allocation.pages + [SCRATCH_PAGE] * (len(table) - len(allocation.pages))
        assert (runner.generator.cache.table[engine.ledger.free_slots] == SCRATCH_PAGE).all()
        for stream in engine.streams:
            assert (stream.allocation is not None) == (stream.status in HOLDS_SLOT) == (stream in engine.streams.active)
            assert (stream.result is not None) == (stream.status is StreamStatus.RELEASING)
        if not self.free:
            in_flight = set(engine._pipeline.streams_in_flight())
            assert all(stream.allocation for stream in in_flight), "a slot was freed under a step in flight"
            for stream in engine.streams:
                assert (stream in in_flight) == (stream.last_step > engine._manager.completed_steps)
            # Audio of a step is delivered before the step completes.
            num_steps = sum(not step.follows for step in engine._pipeline.in_flight)
            assert num_steps <= bool(engine.config.min_streams_to_pipeline) + (engine.parked == "notify")

    def _check_stream(self, client: Client) -> None:
        stream, engine = client.stream, self.engine
        frame = self.speech.vocoder.samples_per_frame
        if client.end is None:
            client.end = stream.result
        assert stream.result is client.end, "the result changed"
        if engine.parked is not None:
            assert (stream in engine.injected) <= (stream.result is not None)
        if stream in engine.injected:
            client.causes.add(engine.injected[stream])
        with suppress(RuntimeError):  # its reader takes chunks in another thread
            indices = [chunk.index for chunk in client.received] + [chunk.index for chunk in stream._buffer]
            assert sorted(indices) == indices
        assert 0 <= stream.buffered <= stream.buffered + stream.assembler.size <= BUFFER_FRAMES * frame
        assert stream.result is None or stream.result.finish_reason in ("stop", "length", "cancelled", "error")
        if stream.result is not None and stream.status is not StreamStatus.RELEASING:
            assert stream.status is StreamStatus.FINISHED
            assert stream.allocation is None

    # End

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            if not self.violated and not self.closed:
                self._finish_all()
        finally:
            self.engine.close()
            self.patches.close()
        self.counts.update({f"{n} together": count for n, count in self.engine.batches.items()})
        if not self.violated:
            assert not self.engine._thread.is_alive()
            assert_idle(self.engine)
            assert all(client.stream.status is StreamStatus.FINISHED for client in self.clients)
            for client in self.clients:
                check_output(self.engine, self.speech, client, self.counts)

    def _finish_all(self) -> None:
        self.engine.armed.clear()
        self.run_until_idle()
        left = [client for client in self.clients if not client.stream.result]
        if len(left) > 2:  # one is cancelled while the engine is idle
            self._cancel(left[-1])
            self.run_until_idle()
        for client in self._writers():
            self.run_until_idle()
            self._finish(client)
        while True:
            self.run_until_idle()
            self.invariants_hold()
            for client in self._readers():
                client.take()
            if all(client.stream.result for client in self.clients):
                break
            with self.engine.lock:
                assert self.engine.parked != "idle", "some streams never end"


def run_machine(speech: Qwen3TTSModel, pipeline: int, examples: int, free: bool = False, steps: int = 30) -> None:
    """Runs the machine under hypothesis; `pytest --log-cli-level=info` shows the counts."""
    counts: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: EngineMachine(speech, pipeline, free, counts),  # type: ignore[arg-type] # any callable works
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # An unstopped engine is not reproducible: only the first failure can be shown.
            phases=[Phase.generate] if free else [Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
    log.info("%d examples of %d steps: %s", examples, steps, dict(counts.most_common()))
