# SPDX-License-Identifier: Apache-2.0
"""Utterances: text that arrives in pieces, results, cancellation."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc.engine_processes import becomes_true, eventually
from ipc.fake_engine import LENGTH, FakeStream
from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.engine.config import queue_length
from polyvox.engine.interface import OnReady
from polyvox.errors import InvalidRequest, Overloaded, StreamFailed
from polyvox.long_form import PARAGRAPH_PAUSE
from polyvox.models.request import Request
from polyvox.server.request_log import RequestRecord
from polyvox.server.settings import Settings
from polyvox.server.synthesis import segment_streams
from polyvox.server.synthesis import service as service_module
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.segments import Segment, SegmentQueue, StreamingTokens
from polyvox.server.synthesis.service import MAX_REJECTIONS, MIN_PREPARING, PreparedUtterance, SynthesisService
from polyvox.server.synthesis.utterance import Utterance
from polyvox.text import TextRules
from server.fakes import CUSTOM, PausableEngine

CHUNK = 960  # bytes
TEXT = "First one. Then [pause:0.5s] two, and 3 cats. Last."
SENTENCES = [
    Segment("First one."),
    Segment("Then", 0.25),
    Segment("two, and three cats.", 0.5),
    Segment("Last.", 0.25),
]


def spoken(engine: PausableEngine, test: Callable[[SynthesisService], Awaitable[None]]) -> list[RequestRecord]:
    """Runs a test on a service in an event loop of its own and returns the records of its utterances."""
    ended: list[RequestRecord] = []

    async def run() -> None:
        service = SynthesisService(AsyncLocalEngine(engine), CUSTOM, lambda voice: voice, Settings())
        service.on_finished = ended.append
        try:
            async with asyncio.timeout(60):
                await test(service)
            assert not service.active
        finally:
            service.close()

    asyncio.run(run())
    return ended


async def all_of(utterance: Utterance) -> bytes:
    return b"".join([part async for part in utterance.audio()])


async def drained(queue: SegmentQueue) -> list[Segment]:
    found = []
    while (sentence := await queue.next()) is not None:
        found.append(sentence)
    return found


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_text_in_any_pieces_gives_the_same_segments(cuts: list[int]) -> None:
    async def grow() -> list[Segment]:
        queue = SegmentQueue(TextRules())
        positions = [0, *sorted(cuts), len(TEXT)]
        for start, end in itertools.pairwise(positions):
            queue.append(TEXT[start:end])
        queue.finish()
        queue.finish()
        return await drained(queue)

    assert asyncio.run(grow()) == SENTENCES


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("cut", range(len("One.\n\nTwo.")))
def test_a_paragraph_in_two_pieces_has_the_pause_of_a_paragraph(cut: int, normalize: bool) -> None:
    async def grow() -> list[Segment]:
        queue, text = SegmentQueue(TextRules(enabled=normalize)), "One.\n\nTwo."
        queue.append(text[:cut])
        queue.append(text[cut:])
        queue.finish()
        return await drained(queue)

    assert asyncio.run(grow()) == [Segment("One."), Segment("Two.", PARAGRAPH_PAUSE)]


@pytest.mark.parametrize(
    "text",
    [
        "Thanks for calling, how can I help you today? It costs $5 or 5 km.",
        "A | b | c\nHenry VIII and Dr. Smith met at 5 pm on the 3rd of May.\n\n- one *item* here\n- two",
        "Der Hund lief am 3. Mai 5 km weit. <break time='1s'/> Le chat est là.",
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_streamed_segments_have_the_text_of_whole_ones(text: str, size: int) -> None:
    async def main() -> list[str]:
        queue, found = SegmentQueue(TextRules(), "token"), list[Segment]()
        for start in range(0, len(text), size):
            queue.append(text[start : start + size])
            while (segment := queue.next_ready()) is not None:
                found.append(segment)
        queue.finish()
        rest = await drained(queue)
        texts = []
        for segment in found + rest:
            assert not isinstance(segment.streaming, StreamingTokens)
            more = [piece async for piece in segment.streaming.remaining_text()] if segment.streaming else []
            texts.append("".join([segment.text, *more]).rstrip())
        return texts

    assert asyncio.run(main()) == [one.text for one in asyncio.run(drained(SegmentQueue.from_text(text, TextRules())))]


def test_a_word_of_live_text_is_complete_when_the_next_one_begins() -> None:
    """It is passed on with the space after it, so that the tokenizer does not wait for another word."""
    queue = SegmentQueue(TextRules(), "token")
    for piece, expected in (("Hello", None), (" ", None), ("th", "Hello ")):
        queue.append(piece)
        segment = queue.next_ready()
        assert (segment and segment.text) == expected
    assert segment is not None
    assert segment.written_text == "Hello"


def test_a_complete_text_gives_the_same_segments() -> None:
    assert asyncio.run(drained(SegmentQueue.from_text(TEXT, TextRules()))) == SENTENCES
    late = SegmentQueue.from_text("[pause:1s] Hello. [pause:2s]", TextRules())
    assert asyncio.run(drained(late)) == [Segment("Hello.", 1.0)]
    assert late.trailing_silence == 2.0


def test_live_text_is_synthesised_as_it_arrives(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        utterance = await service.start(SynthesisOptions(live=True, format="pcm", seed=1), "live")
        parts = utterance.audio()
        for piece in ("Hel", "lo there. How ", "are"):
            utterance.append(piece)
        received = await anext(parts)  # of the first sentence, while the second is open
        assert [asked.text for asked in engine.requests] == ["Hello there."]
        utterance.append(" you?")
        utterance.finish()
        received += b"".join([part async for part in parts])
        assert [asked.text for asked in engine.requests] == ["Hello there.", "How are you?"]
        assert len(received) == 2 * LENGTH * CHUNK + 12_000

    (outcome,) = spoken(engine, test)
    assert (outcome.finish_reason, outcome.sentences, outcome.characters) == ("stop", 2, 25)
    assert outcome.language == "english"


@pytest.mark.parametrize("rate", ["", "<prosody rate='slow'>"])
def test_silence_comes_in_pieces_of_a_second(rate: str, engine: PausableEngine) -> None:
    """A reader's backpressure applies between them, and a cancellation ends the silence."""

    async def test(service: SynthesisService) -> None:
        utterance = await service.start(SynthesisOptions(live=True, format="pcm"), "silent")
        utterance.append(f"{rate}{'[pause:10s] ' * 3} Hello. {'[pause:10s] ' * 3}")
        utterance.finish()
        pieces = [piece async for piece in utterance.audio()]
        assert max(map(len, pieces)) <= 2 * 24_000 * 1.5  # slow speech makes a piece longer
        assert utterance.playing_seconds == pytest.approx(60, abs=5)

        cancelled = await service.start(SynthesisOptions(live=True, format="pcm"), "cancelled")
        cancelled.append(f"Hello. {'[pause:10s] ' * 3}")
        cancelled.finish()
        async for piece in cancelled.audio():
            if not any(piece):
                cancelled.cancel()
        assert cancelled.playing_seconds < 3

    assert [outcome.finish_reason for outcome in spoken(engine, test)] == ["stop", "cancelled"]


def test_live_text_without_words_finishes_at_once(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        utterance = await service.start(SynthesisOptions(live=True, format="pcm"), "empty")
        utterance.finish()
        assert await all_of(utterance) == b""

    (outcome,) = spoken(engine, test)
    assert outcome.finish_reason == "stop"


@pytest.mark.parametrize("text", ["Hello there.", "One. Two. Three."])
def test_a_cancelled_utterance_ends_without_an_error_and_frees_its_slot(text: str, engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        engine.resume(3)
        utterance = await service.start(SynthesisOptions(text, format="pcm"), "cancelled")
        parts = utterance.audio()
        assert len(await anext(parts)) == CHUNK
        utterance.cancel()
        utterance.cancel()
        rest = [part async for part in parts]
        assert len(rest) <= 3
        eventually(lambda: engine.streams == 0)

    (outcome,) = spoken(engine, test)
    assert outcome.finish_reason == "cancelled"


def test_a_live_utterance_can_be_cancelled_while_it_waits_for_text(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        utterance = await service.start(SynthesisOptions(live=True, format="mp3"), "waits")
        reading = asyncio.create_task(all_of(utterance))
        await asyncio.sleep(0)
        utterance.cancel()
        assert await reading == b""

    (outcome,) = spoken(engine, test)
    assert outcome.finish_reason == "cancelled"


def test_cancelling_the_reader_frees_everything(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        engine.resume(3)
        utterance = await service.start(SynthesisOptions("One. Two.", format="opus"), "reader")
        reading = asyncio.create_task(all_of(utterance))

        async def has_audio() -> bool:
            return utterance.record.audio_seconds > 0

        await becomes_true(has_audio)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        eventually(lambda: engine.streams == 0)

    (outcome,) = spoken(engine, test)
    assert outcome.finish_reason == "cancelled"


def test_cancelling_the_start_frees_everything(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        for turns in range(8):
            starting = asyncio.create_task(service.start(SynthesisOptions("Hello.", format="pcm"), "start"))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            try:
                started = await starting
            except asyncio.CancelledError:
                continue
            started.cancel()  # the engine was faster
            await started.close()
        async with asyncio.timeout(60):  # what was on its way comes back and is cancelled
            while engine.streams or service._num_preparing:
                await asyncio.sleep(0.01)

    assert {outcome.finish_reason for outcome in spoken(engine, test)} == {"cancelled"}


def test_a_burst_that_the_engine_accepts_is_not_rejected_while_it_is_prepared(engine: PausableEngine) -> None:
    num_slots = 2 * MIN_PREPARING
    num_accepted = num_slots + queue_length(None, num_slots)

    async def test(service: SynthesisService) -> None:
        service.num_slots, prepare_async, arrived = lambda: num_slots, service.prepare_async, asyncio.Event()

        async def prepare_together(options: SynthesisOptions) -> PreparedUtterance:
            await arrived.wait()
            return await prepare_async(options)

        service.prepare_async = prepare_together  # type: ignore[method-assign]
        options = SynthesisOptions("Hello.", "heart", format="pcm")
        starting = [asyncio.create_task(service.start(options, "burst")) for _ in range(num_accepted)]
        await asyncio.sleep(0)  # all of them wait
        with pytest.raises(Overloaded, match=f"{num_accepted} requests are being prepared"):
            await service.start(options, "one more")
        arrived.set()
        await asyncio.gather(*(all_of(utterance) for utterance in await asyncio.gather(*starting)))

    assert [record.finish_reason for record in spoken(engine, test)] == ["stop"] * num_accepted


def test_a_request_is_recognised_when_it_is_sent_again_and_not_if_it_is_another_one(engine: PausableEngine) -> None:
    first = SynthesisOptions("Hello.", "heart", seed=1, format="pcm")
    others: list[dict[str, Any]] = [{"text": "Hi."}, {"voice": "michael"}, {"seed": 2}, {"format": "wav"}]

    async def test(service: SynthesisService) -> None:
        for options in (first, first, *(replace(first, **change) for change in others)):
            await all_of(await service.start(options, "one"))

    spoken(engine, test)
    fingerprints = [request.fingerprint for request in engine.requests]
    assert fingerprints[0] == fingerprints[1] != 0
    assert len(set(fingerprints)) == 1 + len(others)


class RejectingEngine(PausableEngine):
    """Rejects later sentences, by default twice."""

    num_rejections, max_rejections = 0, 2

    def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
        if request.segment and self.num_rejections < self.max_rejections:
            self.num_rejections += 1
            raise Overloaded("all streams are taken", retry_after=2.5)
        return super().submit(request, on_ready)


def test_a_later_sentence_is_submitted_again_until_the_engine_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_streams, "RETRY_INTERVAL", 0.01)

    async def test(service: SynthesisService) -> None:
        utterance = await service.start(SynthesisOptions("One. Two.", format="pcm"), "again")
        await all_of(utterance)

    with closing(RejectingEngine()) as engine:
        (record,) = spoken(engine, test)
        assert [request.text for request in engine.requests] == ["One.", "Two."]
    assert (record.finish_reason, engine.num_rejections) == ("stop", 2)


def test_rejections_of_later_sentences_are_not_repeated_to_new_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "REJECTION_SECONDS", 60.0)
    monkeypatch.setattr(RejectingEngine, "max_rejections", 10**9)

    async def test(service: SynthesisService) -> None:
        for _ in range(MAX_REJECTIONS):
            with pytest.raises(Overloaded):
                await service.submit(Request("Two.", seed=1, segment=1))
        await all_of(await service.start(SynthesisOptions("One.", format="pcm"), "new"))

    with closing(RejectingEngine()) as engine:
        (record,) = spoken(engine, test)
    assert record.finish_reason == "stop"


def test_an_utterance_can_be_cancelled_while_a_later_sentence_is_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_streams, "RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(RejectingEngine, "max_rejections", 10**9)

    async def test(service: SynthesisService) -> None:
        utterance = await service.start(SynthesisOptions("One. Two.", format="pcm"), "cancelled")
        reading = asyncio.create_task(all_of(utterance))
        async with asyncio.timeout(60):
            while engine.num_rejections < 2 or engine.streams:
                await asyncio.sleep(0.01)
        utterance.cancel()
        await reading

    with closing(RejectingEngine()) as engine:
        (record,) = spoken(engine, test)
    assert record.finish_reason == "cancelled"


class LimitedStream(FakeStream):
    """Ends at the maximum length."""

    def step(self) -> None:
        super().step()
        if self.result is not None:
            self.result = replace(self.result, finish_reason="length")


class LimitingEngine(PausableEngine):
    """Its first sentences end at the maximum length."""

    def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
        if request.segment:
            return super().submit(request, on_ready)
        with self.work:
            stream = LimitedStream(self, request, on_ready)
            self._streams.append(stream)
            self.work.notify_all()
            return stream


def test_the_record_has_the_most_severe_end_of_all_sentences() -> None:
    async def test(service: SynthesisService) -> None:
        await all_of(await service.start(SynthesisOptions("One. Two.", format="pcm"), "limited"))

    with closing(LimitingEngine()) as engine:
        (record,) = spoken(engine, test)
    assert (record.finish_reason, record.sentences) == ("length", 2)


def test_each_sentence_is_submitted_with_the_bytes_that_follow_it(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        await all_of(await service.start(SynthesisOptions("One. Two two. Three.", format="pcm"), "three"))

    spoken(engine, test)
    assert [(request.segment, request.following_bytes) for request in engine.requests] == [(0, 14), (1, 6), (2, 0)]


def test_a_stream_that_the_engine_cancels_by_itself_is_a_failure(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        engine.resume(3)
        utterance = await service.start(SynthesisOptions("Hello.", format="pcm"), "cancelled")
        parts = utterance.audio()
        await anext(parts)
        for stream in engine._streams:
            stream.cancel()
        with pytest.raises(StreamFailed, match="before it was finished"):
            [part async for part in parts]

    (record,) = spoken(engine, test)
    assert record.finish_reason == "error"


def test_text_without_words_is_rejected_before_the_engine_is_called(engine: PausableEngine) -> None:
    async def test(service: SynthesisService) -> None:
        for text in ("", "  ", "<think>hm</think>"):
            with pytest.raises(InvalidRequest, match="must have at least one word"):
                await service.start(SynthesisOptions(text), "nothing")

    assert spoken(engine, test) == []
    assert engine.requests == []
