"""Everything that may happen to an engine and its streams, in any order: a machine for hypothesis to play with.

Level (a) of determinism: in float64 a stream has the codes and the samples that it has alone, exactly and to 1e-6,
whoever else is there and whatever happens to them. One that is cut short has the first of them. Since no stream has a
sample that it would not have alone, nothing of another is ever heard.
"""

import logging
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from engine.speaking import PATIENCE, Alone, alone, assert_all_free, request
from engine.stepped_engine import Injected, SteppedEngine, small_text_ring, two_are_a_crowd
from polyvox.audio.clip import Samples
from polyvox.audio.silence import SILENCE_LEVEL
from polyvox.engine.admission import QUEUE_GRACE_SECONDS
from polyvox.engine.config import EngineConfig
from polyvox.engine.interface import Chunk, Result
from polyvox.engine.kv_cache import SCRATCH_PAGE
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_status import HOLDS_SLOT, StreamStatus
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request, Sampling

log = logging.getLogger(__name__)

SLOTS, QUEUE, BUFFER_FRAMES = 3, 3, 20
# Longer than the codec's ring (32 frames) and the buffer, so that both go round.
LONGEST = 36
TEXTS = ("a", "on and on it goes, the line", "the other assistant, the other user, on and on it goes")
VOICES = ("serena", "vivian")
SAMPLINGS = {False: Sampling(), True: Sampling(temperature=0, predictor_temperature=0)}  # greedy?
PATIENCES = {"queue": 100.0, "reader": 200.0, "text": 300.0}  # seconds of the test's clock

Reader = Literal["none", "takes", "cancels", "throws", "throws at the end"]
READERS = st.sampled_from(["none", "none", "none", "takes", "cancels", "throws", "throws at the end"])
PICK = st.integers(0, 11)
SELDOM = st.sampled_from([True, False, False])  # or most streams would be cut short
ASKED: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(TEXTS),
    "voice": st.sampled_from(VOICES),
    "seed": st.integers(0, 1),
    "greedy": st.booleans(),
    "frames": st.sampled_from([LONGEST, LONGEST, 20, 7, 1]),
    "whole_file": st.sampled_from([False, False, False, True]),
    "first_chunk": st.sampled_from([None, 1, 5, 16]),
    "trim_silence": st.booleans(),
    "reader": READERS,
}
SUBMITTED = st.fixed_dictionaries(
    {
        **ASKED,
        "layout": st.sampled_from(["whole", "streaming"]),
        "unseatable": st.sampled_from([False] * 7 + [True]),
    }
)
LIVE = st.fixed_dictionaries({**ASKED, "first": st.integers(0, 30)})  # characters at once

# What may have cut a stream short, by the reason and the sentence that it then ends with.
CUTS = {
    "cancel": ("cancelled", None),
    "seat": ("error", "the request could not be prepared: seat"),
    "step": ("error", "a step of the engine failed: step"),
    "write": ("error", "the text could not be read: write"),
    "rows": ("error", "rows"),
    "refused": ("error", "all streams are taken"),
    "queue": ("error", "no slot was free"),
    "reader": ("error", "nothing was read"),
    "text": ("error", "no text arrived"),
    "closed": ("error", "the engine was closed"),
}


def cut_short(result: Result | None) -> bool:
    return result is not None and result.finish_reason in ("cancelled", "error")


def one_of(some: list["Listener"], pick: int) -> "Listener | None":
    return some[pick % len(some)] if some else None


@dataclass(eq=False)
class Listener:
    """A stream, what it was asked, and what its reader has had of it."""

    asked: Request  # the whole text, in the layout that it is said in
    reader: Reader
    left: str = ""  # text that has not been appended yet
    stream: LocalStream = field(init=False)
    heard: list[Chunk] = field(default_factory=list)
    causes: set[str] = field(default_factory=set)
    end: Result | None = None

    def take(self, most: int = 1_000) -> None:
        self.hear(self.stream.take(most))

    def hear(self, chunks: list[Chunk]) -> None:
        assert not (chunks and self.heard and self.heard[-1].final), "something came after the end"
        self.heard += chunks
        indices = [chunk.index for chunk in self.heard]
        assert indices == list(range(len(indices)))
        assert not any(chunk.final for chunk in self.heard[:-1])

    def told(self, stream: LocalStream) -> None:
        """What the engine calls where the reader asked for it."""
        if self.reader == "throws" or (self.reader == "throws at the end" and stream.result is not None):
            self.causes.add("cancel")
            raise Injected("reader")
        self.hear(stream.take(1_000))
        if self.reader == "cancels" and self.heard:
            self.causes.add("cancel")
            stream.cancel()

    @property
    def samples(self) -> Samples:
        return np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in self.heard)])


class Crowd(RuleBasedStateMachine):
    """An engine with few slots, a short queue and small buffers, its readers, and all that can go wrong.

    A rule that finds nothing to do does nothing: preconditions would have to be the same in every run of an example,
    and what an unstopped engine has done so far is not.
    """

    def __init__(self, speech: Qwen3TTSModel, ahead: int, free: bool = False, seen: Counter[str] | None = None) -> None:
        super().__init__()
        self.speech, self.free = speech, free
        self.seen = Counter() if seen is None else seen  # what the examples came to
        self.config = EngineConfig(
            max_streams=SLOTS,
            max_queue=QUEUE,
            max_queue_seconds=PATIENCES["queue"] - QUEUE_GRACE_SECONDS,
            reader_timeout=PATIENCES["reader"],
            text_timeout=PATIENCES["text"],
            min_streams_to_pipeline=ahead,
            poison_freed=True,
        )
        self.listeners: list[Listener] = []
        self.closed = self.spoiled = False
        self.steps_of_last_failure = -1.0
        self.patches = ExitStack()

    @initialize(
        crowd=st.lists(SUBMITTED, max_size=4),
        live=st.lists(LIVE, max_size=2),
        rows=st.sampled_from([512, 7]),
        parts=st.integers(0, 60),
    )
    def start(self, crowd: list[dict[str, Any]], live: list[dict[str, Any]], rows: int, parts: int) -> None:
        """Some streams at once; their prompts are read in one step, or in parts of few rows."""
        self.patches.enter_context(small_text_ring())
        self.patches.enter_context(two_are_a_crowd())
        self.engine = SteppedEngine(self.speech, self.config, BUFFER_FRAMES, rows, self.free)
        self.engine.go_on()
        for one in crowd:
            self.submit(one)
        for one in live:
            self.submit_live(one)
        self.engine.go_on(parts)

    # Requests

    @rule(one=SUBMITTED)
    def submit(self, one: dict[str, Any]) -> None:
        asked = dict(one)
        reader, unseatable = asked.pop("reader"), asked.pop("unseatable")
        listener = Listener(request(sampling=SAMPLINGS[asked.pop("greedy")], **asked), reader)
        if self._submit(listener, listener.asked) and unseatable:
            self.engine.unseatable.add(listener.stream)

    @rule(one=LIVE)
    def submit_live(self, one: dict[str, Any]) -> None:
        asked = dict(one)
        first = asked.pop("first")
        text, reader, asked["sampling"] = asked.pop("text"), asked.pop("reader"), SAMPLINGS[asked.pop("greedy")]
        listener = Listener(request(text, layout="streaming", **asked), reader, left=text[first:])
        self._submit(listener, request(text[:first], live=True, guard=False, **asked))

    def _submit(self, listener: Listener, asked: Request) -> bool:
        engine = self.engine
        if self.closed:
            return False
        with engine.lock:
            before = [list(engine.streams[status]) for status in (StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED)]
            pages = engine.load.limits.num_pages  # the most that it could ask for
            wait = engine.admission.estimate_wait(not asked.whole_file, pages, engine.now)
            try:
                on_ready = None if listener.reader == "none" else listener.told
                listener.stream = engine.submit(asked, on_ready)
            except Overloaded:
                assert before == [
                    list(engine.streams[status]) for status in (StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED)
                ]
                # Files may fill half of the queue.
                full = len(before[1]) >= QUEUE / 2 or len(before[0]) >= QUEUE + SLOTS
                assert full or wait > self.config.max_queue_seconds
                self.seen["overloaded"] += 1
                return False
        self.listeners.append(listener)
        return True

    # Text

    @rule(pick=PICK, count=st.integers(0, 25), meanwhile=st.sampled_from([0, 0, 3, 30]), fails=st.integers(0, 9))
    def append(self, pick: int, count: int, meanwhile: int, fails: int) -> None:
        """The next so many characters; the engine may go on while they become rows, and that may fail."""
        listener = one_of(self._writers(), pick)
        if listener is None:
            return
        piece, listener.left = listener.left[:count], listener.left[count:]
        self._write(listener, lambda: listener.stream.append(piece), meanwhile, fails == 0)

    @rule(pick=PICK, meanwhile=st.sampled_from([0, 0, 3, 30]))
    def finish_text(self, pick: int, meanwhile: int) -> None:
        listener = one_of(self._writers(), pick)
        if listener is not None:
            self._finish(listener, meanwhile)

    def _writers(self) -> list[Listener]:
        return [] if self.closed else [one for one in self.listeners if one.stream.request.live and one.end is None]

    def _finish(self, listener: Listener, meanwhile: int = 0) -> None:
        if listener.stream.text_open:
            piece, listener.left = listener.left, ""
            self._write(listener, lambda: listener.stream.append(piece), 0, False)
        self._write(listener, listener.stream.finish_text, meanwhile, False)

    def _write(self, listener: Listener, write: Any, meanwhile: int, fails: bool) -> None:
        stream = listener.stream
        make = self.speech.text_rows

        def rows(ids: list[int], last: bool) -> torch.Tensor:
            self.engine.go_on(meanwhile)
            if fails:
                raise Injected("rows")
            return make(ids, last)

        opened = stream.text_open and stream not in self.engine._manager.stop_requests
        with mock.patch.object(self.speech, "text_rows", rows) if meanwhile or fails else ExitStack():
            try:
                write()
            except Injected:
                listener.causes.add("rows")
            except Overloaded:
                assert stream.status is StreamStatus.AWAITING_TEXT
                listener.causes.add("refused")
            except InvalidRequest:
                assert not (opened and stream.text_open), "text was refused that could have been read"

    # Readers

    @rule(pick=PICK, most=st.sampled_from([1, 1, 2, 1_000]))
    def read(self, pick: int, most: int) -> None:
        """Some of what is there; who is never picked has stopped reading, and may come back."""
        listener = one_of(self._readers(), pick)
        if listener is not None:
            listener.take(most)

    @rule(pick=PICK, sure=SELDOM)
    def go_away(self, pick: int, sure: bool) -> None:
        """One more chunk, or the end, and then nobody iterates any more."""
        listener = one_of(self._readers(), pick)
        if listener is None or not sure:
            return
        stream = listener.stream
        with self.engine.lock:
            if not (stream._buffer or stream.result):
                return
            listener.causes |= {"cancel"} if stream.result is None else set()
            last = stream._buffer[0].joined() if stream._buffer else None
            try:
                listener.hear([next(stream.chunks(PATIENCE))])
            except StopIteration:
                assert listener.heard[-1].final
            except (StreamFailed, Overloaded):
                assert stream.result is not None
                assert last is not None
                assert stream.result.finish_reason == "error"
                listener.hear([last])

    def _readers(self) -> list[Listener]:
        return [one for one in self.listeners if one.reader == "none" and not (one.heard and one.heard[-1].final)]

    @rule(pick=PICK, times=st.integers(1, 2), parts=st.integers(0, 4), sure=SELDOM)
    def cancel(self, pick: int, times: int, parts: int, sure: bool) -> None:
        listener = one_of(sorted(self.listeners, key=lambda one: one.end is not None), pick)
        if listener is None or not sure:
            return
        for _ in range(times):
            self._cancel(listener)
            self.go_on(parts)

    def _cancel(self, listener: Listener) -> None:
        listener.causes |= {"cancel"} if listener.stream.result is None else set()
        listener.stream.cancel()

    # The engine

    @rule(parts=st.sampled_from([1, 2, 3, 5, 13, 40]))
    def go_on(self, parts: int) -> None:
        self.engine.go_on(parts)

    @rule()
    def rest(self) -> None:
        """The engine does all that it can, and then nothing: a wake-up without a reason finds nothing to do."""
        engine = self.engine
        engine.go_on()
        if self.closed:
            return
        with engine.lock:
            assert not engine._in_flight
            assert not engine.streams[StreamStatus.RELEASING]
            assert not engine._manager.ready
            for listener in self.listeners:
                stream = listener.stream
                if listener.reader == "takes":
                    assert not stream._buffer, "a reader was not told"
                if stream.result is not None:
                    continue
                assert stream not in engine._manager.stop_requests
                if stream.status not in (StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED):
                    full, hungry = engine._manager.buffer_free(stream) < 1, stream.text_open and stream.needs_text
                    assert full or hungry, f"a stream that could run does not: {stream}"
                    assert stream.status in (StreamStatus.PAUSED, StreamStatus.DRAINING)
                    assert (stream.reader_deadline < inf) == full
                    assert not stream.assembler.size or stream.assembler.silent, (
                        "audio is withheld that could be delivered"
                    )
                    self.seen["full"] += full
                    assert (stream.text_deadline < inf) >= (hungry and stream.decoded == stream.started)
        before = self._progress()
        with engine.lock:
            patience = min((self._patience(one.stream)[0] for one in self.listeners), default=inf)
            assert engine.alarm <= patience + 0.01, "the engine would sleep past a time limit"
            engine.wake()
        engine.go_on()
        assert self._progress() == before, "a wake-up was lost"

    def _progress(self) -> list[tuple[object, ...]]:
        with self.engine.lock:
            return [
                (s.prefilled, s.started, s.decoded, s.status, s.buffered, len(s.text), s.result)
                for s in (listener.stream for listener in self.listeners)
            ]

    @rule(call=st.sampled_from(["prefill", "frame", "decode", "audio", "write"]), after=st.booleans(), sure=SELDOM)
    def fail_once(self, call: str, after: bool, sure: bool) -> None:
        """The next such call fails, before or after its work; never so often in a row that the engine gives up."""
        if not sure or self.closed or self.engine._totals["steps"] <= self.steps_of_last_failure:
            return
        self.steps_of_last_failure = self.engine._totals["steps"]
        self.engine.armed = {call: after}

    @rule(frames=st.sampled_from([1, 5, 30]))
    def some_time_passes(self, frames: int) -> None:
        """Players play on: leads shrink, some run dry."""
        self.engine.pass_time(frames * self.engine.frame_seconds)

    @rule(what=st.sampled_from(list(PATIENCES)), sure=SELDOM)
    def patience_ends(self, what: str, sure: bool) -> None:
        engine = self.engine
        if not sure or self.closed:
            return
        with engine.lock:
            resting = engine.parked == "idle"
            engine.pass_time(PATIENCES[what] + 1)
            limits = [(listener, *self._patience(listener.stream)) for listener in self.listeners]
            late = [(listener, cut) for listener, moment, cut in limits if moment < engine.now]
            for listener, cut in late:
                listener.causes.add(cut)
        if resting:
            engine.go_on()
            for listener, cut in late:
                assert listener.stream.result is not None, f"{cut}: a timer did not ring"
                assert listener.stream.result.finish_reason == "error"

    def _patience(self, stream: LocalStream) -> tuple[float, str]:
        """The moment at which a stream is ended if nothing comes, and what it is ended for."""
        if stream.status is StreamStatus.QUEUED:
            return stream.arrived_at + PATIENCES["queue"], "queue"
        deadline = min((stream.reader_deadline, "reader"), (stream.text_deadline, "text"))
        return deadline if stream.result is None and deadline[0] < inf else (inf, "")

    @rule(sure=SELDOM, quite=SELDOM)
    def close(self, sure: bool, quite: bool) -> None:
        """Under load, at any moment."""
        if not (sure and quite) or self.closed or len(self.listeners) < 4:
            return
        for listener in self.listeners:
            listener.causes |= {"closed"} if listener.stream.result is None else set()
        self.closed = True
        self.engine.close()
        with pytest.raises(EngineDown):
            self.engine.submit(request())

    # What always holds

    @invariant()
    def holds(self) -> None:
        self.spoiled = True  # unless all of this is true
        with self.engine.lock:
            assert not self.engine.wrongs
            self._each_page_has_one_owner()
            for listener in self.listeners:
                self._stream_is_sound(listener)
            ended = sum(listener.stream.result is not None for listener in self.listeners)
            assert sum(self.engine._manager._num_finished.values()) == ended
        self.spoiled = False

    def _each_page_has_one_owner(self) -> None:
        engine, runner = self.engine, self.engine._runner
        seats = [stream.allocation for stream in engine.streams if stream.allocation is not None]
        slots = [seat.slot for seat in seats] + engine.ledger.free_slots
        pages = [page for seat in seats for page in seat.pages] + engine.ledger.free_pages
        assert sorted(slots) == list(range(SLOTS))
        assert sorted(pages) == list(range(1, engine.config.pages + 1)), "and page 0 belongs to nobody"
        for seat in seats:
            table = runner.generator.cache.table[seat.slot].tolist()
            assert table == seat.pages + [SCRATCH_PAGE] * (len(table) - len(seat.pages))
        assert (runner.generator.cache.table[engine.ledger.free_slots] == SCRATCH_PAGE).all()
        for stream in engine.streams:
            assert (stream.allocation is not None) == (stream.status in HOLDS_SLOT) == (stream in engine.streams.active)
            assert (stream.result is not None) == (stream.status is StreamStatus.RELEASING)
        if not self.free:
            in_flight = set(engine._streams_in_flight())
            assert all(stream.allocation for stream in in_flight), "a slot was freed under a step in flight"
            for stream in engine.streams:
                assert (stream in in_flight) == (stream.last_step > engine._manager.completed_steps)
            # Readers may be told of a step's sound before the step is over.
            assert len(engine._in_flight) <= bool(engine.config.min_streams_to_pipeline) + (engine.parked == "notify")

    def _stream_is_sound(self, listener: Listener) -> None:
        stream, engine = listener.stream, self.engine
        frame = self.speech.vocoder.samples_per_frame
        if listener.end is None:
            listener.end = stream.result
        assert stream.result is listener.end, "an end was told twice"
        if engine.parked is not None:
            assert (stream in engine.hit) <= (stream.result is not None)
        if stream in engine.hit:
            listener.causes.add(engine.hit[stream])
        with suppress(RuntimeError):  # its reader takes from it in another thread
            indices = [chunk.index for chunk in (*listener.heard, *stream._buffer)]
            assert sorted(indices) == indices
        assert 0 <= stream.buffered <= stream.buffered + stream.assembler.size <= BUFFER_FRAMES * frame
        assert stream.result is None or stream.result.finish_reason in ("stop", "length", "cancelled", "error")
        if stream.result is not None and stream.status is not StreamStatus.RELEASING:
            assert stream.status is StreamStatus.FINISHED
            assert stream.allocation is None

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            if not self.spoiled and not self.closed:
                self._drive_to_the_end()
        finally:
            self.engine.close()
            self.patches.close()
        self.seen.update({f"{n} together": count for n, count in self.engine.batches.items()})
        if not self.spoiled:
            assert not self.engine._thread.is_alive()
            assert_all_free(self.engine)
            assert all(listener.stream.status is StreamStatus.FINISHED for listener in self.listeners)
            for listener in self.listeners:
                self._judge(listener)

    def _drive_to_the_end(self) -> None:
        self.engine.armed.clear()
        self.rest()
        left = [listener for listener in self.listeners if not listener.stream.result]
        if len(left) > 2:  # one goes while the engine rests
            self._cancel(left[-1])
            self.rest()
        for listener in self._writers():
            self.rest()
            self._finish(listener)
        while True:
            self.rest()
            self.holds()
            for listener in self._readers():
                listener.take()
            if all(listener.stream.result for listener in self.listeners):
                break
            with self.engine.lock:
                assert self.engine.parked != "idle", "some will never end"

    def _judge(self, listener: Listener) -> None:
        """Compares a stream with what it would have been alone."""
        stream, asked = listener.stream, listener.asked
        listener.take()
        listener.take()
        assert listener.heard[-1].final
        result = stream.result
        assert result is not None
        expected = self._alone(asked)
        frames = asked.max_frames or 0
        codes, said = self.engine.codes[stream], expected.codes[:frames]
        self.seen[result.finish_reason] += 1
        self.seen["waited for text"] += result.text_waits > 0
        self.seen["frames"] += len(codes)
        if cut_short(result):
            cuts = [cut for cut in listener.causes if CUTS[cut][0] == result.finish_reason]
            matching = [cut for cut in cuts if (CUTS[cut][1] or "") in (result.error or "")]
            assert matching, f"nothing explains this end: {result}, {listener.causes}"
            self.seen[matching[0]] += 1
            assert codes == said[: len(codes)]
            if result.finish_reason == "error":
                refused = any(part in (result.error or "") for part in ("no slot was free", "all streams are taken"))
                kind = Overloaded if refused else StreamFailed
                with pytest.raises(kind):
                    result.check()
        else:
            assert result.finish_reason == ("length" if len(expected.codes) >= frames else expected.reason)
            assert codes == said
            assert result.frames == len(said)
        self._compare(listener, expected.samples[: len(said) * self.speech.vocoder.samples_per_frame], result)

    def _compare(self, listener: Listener, whole: Samples, result: Result) -> None:
        samples, complete = listener.samples, not cut_short(result)
        cut = 0
        if listener.asked.trim_silence and len(samples):
            starts = range(0, len(whole), self.speech.vocoder.samples_per_frame)
            near = (s for s in starts if np.allclose(whole[s : s + len(samples)], samples[: len(whole) - s], atol=1e-6))
            cut = next(near, inf) if not complete else len(whole) - len(samples)  # type: ignore[assignment]
            assert cut < len(whole), "this is nothing that it says alone"
            assert np.sqrt(np.mean(whole[:cut] ** 2)) < SILENCE_LEVEL if cut else True
        elif listener.asked.trim_silence and complete:
            cut = len(whole)
        assert len(samples) <= len(whole) - cut
        assert len(samples) == len(whole) - cut or not complete
        np.testing.assert_allclose(samples, whole[cut : cut + len(samples)], rtol=0, atol=1e-6)

    def _alone(self, asked: Request) -> Alone:
        sampling = asked.sampling
        return alone(
            self.speech,
            request(asked.text, str(asked.voice), asked.seed or 0, LONGEST, layout=asked.layout, sampling=sampling),
        )


def play(speech: Qwen3TTSModel, ahead: int, examples: int, free: bool = False, steps: int = 30) -> None:
    """Lets hypothesis play; `pytest --log-cli-level=info` shows what the examples came to."""
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: Crowd(speech, ahead, free, seen),  # type: ignore[arg-type] # any callable will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # What an unstopped engine does is not the same twice: the first failure is what there is to see.
            phases=[Phase.generate] if free else [Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
    log.info("%d examples of %d steps: %s", examples, steps, dict(seen.most_common()))
