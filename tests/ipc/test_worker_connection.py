# SPDX-License-Identifier: Apache-2.0
"""The engine's end of one connection: what is taken from streams, and what waits for the ring."""

import asyncio
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.held_lock import holding
from ipc.engine_processes import RING_SAMPLES, TIMEOUT, becomes_true, request
from ipc.fake_engine import CHUNK_SAMPLES, FakeEngine, FakeStream, chunk_samples, notify_readers
from ipc.raw_connection import connected, next_update, submit
from polyvox.audio.pcm import to_pcm
from polyvox.audio.samples import Samples
from polyvox.engine import preparation
from polyvox.engine.interface import OnReady
from polyvox.ipc import messages, worker_connection
from polyvox.ipc.audio_ring import AudioRing, create_shared_memory
from polyvox.ipc.worker_connection import MAX_STATS_REQUESTS
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

pytestmark = pytest.mark.anyio


class BufferedStream(FakeStream):
    """Has all its chunks from the start, so the engine sends no notification later."""

    def __init__(self, engine: FakeEngine, asked: Request) -> None:
        super().__init__(engine, asked, None)
        with engine.work:
            while self.result is None:
                self.step()


class BufferedEngine(FakeEngine):
    def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:  # noqa: ARG002
        return BufferedStream(self, request)


class SteppedEngine(FakeEngine):
    """Its streams get a chunk when a test calls `step_all`, which then notifies their readers."""

    def __init__(self) -> None:
        super().__init__()
        self.stepped: list[FakeStream] = []

    def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
        self.stepped.append(FakeStream(self, request, on_ready))
        return self.stepped[-1]

    def step_all(self) -> None:
        with self.work:
            streams = [stream for stream in self.stepped if stream.result is None]
            for stream in streams:
                stream.step()
        notify_readers(streams)


async def test_a_step_is_one_update_with_the_chunks_of_all_streams() -> None:
    engine, count = SteppedEngine(), 64
    async with connected(engine, count * CHUNK_SAMPLES) as (_, server):
        for id in range(count):
            server.send(submit(id, request(id, chunks=3), credit=8))
        replies = 0
        while replies < count:
            replies += len((await next_update(server)).replies)
        for step in range(3):
            await asyncio.to_thread(engine.step_all)
            update = await next_update(server)
            assert {header.id: header.index for header in update.chunks} == dict.fromkeys(range(count), step)
            assert len(update.results) == (count if step == 2 else 0)
            server.send(messages.Consumed((step + 1) * count * CHUNK_SAMPLES, {}))
        assert server.updates.empty()


class UnknownModelEngine(FakeEngine):
    def info(self) -> ModelInfo:
        raise RuntimeError("the model is unknown")


async def test_a_query_that_fails_in_the_engine_is_an_error_reply_and_the_connection_stays() -> None:
    async with connected(UnknownModelEngine(), CHUNK_SAMPLES) as (_, server):
        server.send(messages.GetInfo(1))
        (reply,) = (await next_update(server)).replies
        assert isinstance(reply, messages.ErrorReply)
        assert "the model is unknown" in str(reply.error())
        server.send(messages.GetStats(2))
        (reply,) = (await next_update(server)).replies
        assert isinstance(reply, messages.StatsReply)


async def test_a_busy_engine_delays_its_answers_but_not_the_event_loop() -> None:
    engine = SteppedEngine()
    async with connected(engine, RING_SAMPLES) as (_, server):
        server.send(submit(0, request(1, chunks=3), credit=8))
        await next_update(server)
        with holding(engine.work) as holder:
            notify_readers(engine.stepped)  # as if it had chunks
            server.send(messages.GetStats(1))
            server.send(submit(2, request(2, chunks=3), credit=8))
            server.send(messages.AcquireKey(3, "key", 1))
            replies: set[int] = set()
            while 3 not in replies:
                replies |= {reply.id for reply in (await next_update(server)).replies}
            assert holder.is_alive()
            assert 1 not in replies
        while replies != {1, 2, 3}:
            replies |= {reply.id for reply in (await next_update(server)).replies}
        await asyncio.to_thread(engine.step_all)
        chunks: set[int] = set()
        while chunks != {0, 2}:
            chunks |= {header.id for header in (await next_update(server)).chunks}


async def test_first_text_is_applied_by_a_thread_and_more_of_it_by_the_event_loop() -> None:
    """With the first text a stream is prepared, with its voice, and waits for the engine's lock."""
    applied: list[str] = []

    class FirstTextStream(FakeStream):
        def append(self, text: str) -> None:
            applied.append(threading.current_thread().name)
            super().append(text)
            self.awaits_text = False

    class FirstTextEngine(FakeEngine):
        def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
            stream = FirstTextStream(self, request, on_ready)
            stream.awaits_text = True
            return stream

    engine = FirstTextEngine()
    async with connected(engine, RING_SAMPLES) as (_, server):
        server.send(submit(0, Request("", seed=1, live=True), credit=8))
        await next_update(server)
        server.send(messages.AppendText(0, "first"))
        await becomes_true(lambda: asyncio.sleep(0, len(applied) == 1))
        server.send(messages.AppendText(0, "second"))
        await becomes_true(lambda: asyncio.sleep(0, len(applied) == 2))
    assert "polyvox-prepare-text" in applied[0]
    assert "polyvox-prepare-text" not in applied[1]


async def test_pending_requests_for_statistics_are_bounded_and_one_call_of_the_engine() -> None:
    engine, num_calls = FakeEngine(), 0

    def stats() -> dict[str, float]:
        nonlocal num_calls
        num_calls += 1
        return {"streams": 0.0}

    engine.stats = stats  # type: ignore[method-assign]
    async with connected(engine, RING_SAMPLES) as (_, server):
        with holding(engine.work):
            for id in range(MAX_STATS_REQUESTS + 1):
                server.send(messages.GetStats(id))
            (rejected,) = (await next_update(server)).replies
            assert isinstance(rejected, messages.ErrorReply)
            assert rejected.id == MAX_STATS_REQUESTS
            assert num_calls == 0
        replies = (await next_update(server)).replies
        assert [reply.id for reply in replies] == list(range(MAX_STATS_REQUESTS))
        assert num_calls == 1


@settings(max_examples=15, deadline=None)
@given(
    ring_chunks=st.integers(1, 9),
    credit=st.integers(1, 4),
    num_chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_every_chunk_arrives_once_and_unchanged_for_any_ring_credit_and_order_of_reading(
    ring_chunks: int, credit: int, num_chunks: list[int], seed: int
) -> None:
    order = random.Random(seed)  # not hypothesis' own: the number of updates depends on the threads

    async def main() -> None:
        file = create_shared_memory(ring_chunks * CHUNK_SAMPLES + 7)  # so that chunks continue at its start
        reader = AudioRing(file)
        async with connected(BufferedEngine(), file=file) as (connection, server):
            for id, chunks in enumerate(num_chunks):
                server.send(submit(id, request(id, chunks), credit))
            received: dict[int, int] = dict.fromkeys(range(len(num_chunks)), 0)
            unread: dict[int, int] = dict.fromkeys(received, 0)  # chunks whose credit the server has
            ended: set[int] = set()
            while len(ended) < len(num_chunks):
                update = await next_update(server)
                for header in update.chunks:
                    expected = to_pcm(chunk_samples(header.id, received[header.id]))
                    assert np.array_equal(reader.read(header.num_samples), expected)
                    assert header.index == received[header.id]
                    received[header.id] += 1
                    unread[header.id] += 1
                    assert unread[header.id] <= credit
                ended |= set(update.results)
                returned = {id: count for id, count in unread.items() if order.random() < 0.5 or count == credit}
                for id in returned:
                    unread[id] = 0
                server.send(messages.Consumed(reader.consumed, returned))
            assert list(received.values()) == num_chunks
            assert not connection._deliveries
            assert not connection._ids
        reader.close()

    asyncio.run(main())


async def test_credit_wakes_a_stream_that_has_run_out_of_it() -> None:
    async with connected(BufferedEngine(), RING_SAMPLES) as (_, server):
        server.send(submit(0, request(1, chunks=6), credit=2))
        headers: list[messages.ChunkHeader] = []
        for expected in (2, 4, 6):
            while len(headers) < expected:
                headers += (await next_update(server)).chunks
            assert len(headers) == expected
            server.send(messages.Consumed(expected * CHUNK_SAMPLES, {0: 1}))
            server.send(messages.Consumed(expected * CHUNK_SAMPLES, {0: 1}))
    assert [header.index for header in headers] == list(range(6))


async def test_a_final_chunk_and_its_result_come_together_however_full_the_ring_is() -> None:
    """Several streams that end at once, and a ring too small for all of them."""
    async with connected(BufferedEngine(), 3 * CHUNK_SAMPLES) as (connection, server):
        for id in range(4):
            server.send(submit(id, request(id, chunks=2), credit=0))
        replies = 0
        while replies < 4:
            replies += len((await next_update(server)).replies)
        server.send(messages.Consumed(0, dict.fromkeys(range(4), 2)))  # all are ready in one flush
        ended: set[int] = set()
        indices: dict[int, list[int]] = {id: [] for id in range(4)}
        position = 0
        while len(ended) < 4:
            update = await next_update(server)
            for header in update.chunks:
                indices[header.id].append(header.index)
                position += header.num_samples
            final = {header.id for header in update.chunks if header.final}
            assert final == set(update.results)
            ended |= final
            server.send(messages.Consumed(position, {}))
        assert all(seen == [0, 1] for seen in indices.values())
        assert not connection._deliveries


async def test_a_reader_that_leaves_a_generated_stream_frees_the_audio_it_did_not_read() -> None:
    async with connected(BufferedEngine(), RING_SAMPLES) as (connection, server):
        server.send(submit(0, request(1, chunks=6), credit=2))
        while not (await next_update(server)).chunks:
            pass
        server.send(messages.Cancel(0))
        while not (update := await next_update(server)).results:
            pass
        assert update.results[0].finish_reason == "cancelled"
        assert not connection._deliveries


async def test_audio_that_is_ready_while_another_stream_is_cancelled_is_sent_without_a_further_notification() -> None:
    engine = SteppedEngine()
    async with connected(engine, RING_SAMPLES) as (connection, server):
        server.send(submit(0, request(1, chunks=2), credit=1))
        server.send(submit(1, request(2, chunks=3), credit=8))
        replies = 0
        while replies < 2:
            replies += len((await next_update(server)).replies)
        for _ in range(2):
            engine.step_all()
            while not (await next_update(server)).chunks:
                pass
        engine.step_all()  # the last step of stream 1
        connection._cancel(0)  # before the update with its audio: stream 0 has ended, but is not read to its end
        results: dict[int, str] = {}
        while len(results) < 2:
            results |= {id: result.finish_reason for id, result in (await next_update(server)).results.items()}
        assert results == {0: "cancelled", 1: "stop"}


async def test_a_text_that_is_rejected_while_chunks_are_taken_ends_the_stream_with_the_reason() -> None:
    async with connected(FakeEngine(), RING_SAMPLES) as (_, server):
        server.send(submit(0, Request("one", seed=1, live=True), credit=8))
        while not (await next_update(server)).chunks:
            pass
        server.send(messages.AppendText(0, "two"))
        server.send(messages.AppendText(0, "impossible"))
        server.send(messages.AppendText(0, "three"))
        while not (update := await next_update(server)).results:
            pass
    assert update.results[0].finish_reason == "error"
    assert "impossible" in str(update.results[0].error)


async def test_a_flood_of_texts_ends_its_stream_and_not_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MAX_PENDING_TEXTS", 10)
    monkeypatch.setattr(worker_connection, "MAX_INLINE_CHARS", 0)  # a thread applies the text
    entered, proceed = threading.Event(), threading.Event()

    class SlowTextStream(FakeStream):
        def append(self, text: str) -> None:
            entered.set()
            assert proceed.wait(TIMEOUT)
            super().append(text)

    class SlowTextEngine(FakeEngine):
        def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
            with self.work:
                stream = SlowTextStream(self, request, on_ready)
                self._streams.append(stream)
                self.work.notify_all()
                return stream

    async with connected(SlowTextEngine(), RING_SAMPLES) as (_, server):
        server.send(submit(0, Request("", seed=1, live=True), credit=8))
        await next_update(server)
        server.send(messages.AppendText(0, "first"))
        await asyncio.to_thread(entered.wait, TIMEOUT)
        for _ in range(11):
            server.send(messages.AppendText(0, "word"))
        while not (update := await next_update(server)).results:
            pass
        proceed.set()
        assert "at most 10 texts may be pending" in str(update.results[0].error)
        server.send(submit(1, request(2, chunks=3), credit=8))
        while not (update := await next_update(server)).results:
            pass
        assert update.results[1].finish_reason == "stop"


async def test_a_reply_does_not_wait_for_a_full_ring() -> None:
    async with connected(FakeEngine(), 2 * CHUNK_SAMPLES) as (connection, server):

        async def full() -> bool:
            return bool(connection._outgoing and connection._ready)

        for id in (0, 1):  # the first fills the ring, the second is ready
            server.send(submit(id, request(id, chunks=20), credit=4))
        await becomes_true(full)
        server.send(messages.GetStats(2))
        replies: set[int] = set()
        while 2 not in replies:
            replies |= {reply.id for reply in (await next_update(server)).replies}


async def test_a_stream_that_is_cancelled_before_the_engine_accepts_it_is_cancelled_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_connection, "MAX_INLINE_BYTES", 0)  # a thread submits it
    proceed, accepted = threading.Event(), threading.Event()

    class SlowEngine(SteppedEngine):
        def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
            assert proceed.wait(TIMEOUT)
            stream = super().submit(request, on_ready)
            accepted.set()
            return stream

    engine = SlowEngine()
    async with connected(engine, RING_SAMPLES) as (connection, server):
        server.send(submit(0, request(1, chunks=3), credit=8))
        server.send(messages.Cancel(0))
        server.send(messages.GetStats(1))
        await next_update(server)  # the cancel was received
        proceed.set()
        assert await asyncio.to_thread(accepted.wait, TIMEOUT)

        async def cancelled() -> bool:
            return engine.stepped[0].cancelled

        await becomes_true(cancelled)
        assert not connection._deliveries
        assert not connection._ids


@pytest.mark.parametrize("max_inline_bytes", [worker_connection.MAX_INLINE_BYTES, 0], ids=["inline", "in-a-thread"])
async def test_requests_do_not_wait_for_clones(max_inline_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proceed = threading.Event()
    engine = FakeEngine()
    clone = engine.clone

    def slow(samples: Samples, transcript: str | None = None) -> ClonedVoice:
        assert proceed.wait(TIMEOUT)
        return clone(samples, transcript)

    monkeypatch.setattr(engine, "clone", slow)
    monkeypatch.setattr(worker_connection, "MAX_INLINE_BYTES", max_inline_bytes)
    async with connected(engine, RING_SAMPLES) as (_, server):
        for id in range(10):
            server.send(messages.Clone(id, np.ones(10, np.float32), None))
        server.send(submit(10, request(10, chunks=1), credit=8))
        (reply,) = (await next_update(server)).replies
        assert isinstance(reply, messages.SubmitReply)
        proceed.set()
        cloned: set[int] = set()
        while len(cloned) < 10:
            cloned |= {
                reply.id for reply in (await next_update(server)).replies if isinstance(reply, messages.CloneReply)
            }
    assert cloned == set(range(10))


async def test_requests_beyond_the_preparation_queue_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    proceed = threading.Event()
    engine = FakeEngine()
    accept = engine.submit

    def slow(asked: Request, on_ready: OnReady | None = None) -> FakeStream:
        assert proceed.wait(TIMEOUT)
        return accept(asked, on_ready)

    monkeypatch.setattr(engine, "submit", slow)
    monkeypatch.setattr(worker_connection, "MAX_INLINE_BYTES", 0)
    async with connected(engine, RING_SAMPLES, max_pending=20) as (_, server):
        for id in range(21):
            server.send(submit(id, request(id, chunks=1), credit=8))
        (reply,) = (await next_update(server)).replies
        assert isinstance(reply, messages.ErrorReply)
        assert reply.error_type == "Overloaded"
        assert reply.id == 20
        proceed.set()
