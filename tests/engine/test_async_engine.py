# SPDX-License-Identifier: Apache-2.0
"""`AsyncEngine` for an engine in the same process: streams, live text, errors, timeouts, counts of keys."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from unittest import mock

import numpy as np
import pytest

from ipc.engine_processes import becomes_true, request
from ipc.fake_engine import FakeEngine, FakeStream, chunk_samples
from polyvox.engine import async_engine, preparation
from polyvox.engine.async_engine import AsyncLocalEngine, AsyncLocalStream
from polyvox.engine.interface import AsyncEngine, AsyncStream, Chunk, OnReady
from polyvox.engine.key_counts import KeyCounts
from polyvox.engine.preparation import PreparationPool, TextWriter
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, PolyvoxError, StreamFailed
from polyvox.models.request import Request


@asynccontextmanager
async def running(timeout: float = 30.0) -> AsyncIterator[AsyncLocalEngine]:
    engine = AsyncLocalEngine(FakeEngine(), timeout)
    try:
        yield engine
    finally:
        await engine.close()


async def read(stream: AsyncStream) -> list[Chunk]:
    return [chunk async for chunk in stream]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_streams_are_read_in_order_and_end_with_a_result(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with running() as local:
            engine: AsyncEngine = local
            streams = [await engine.submit(request(seed, chunks=20)) for seed in range(4)]
            for seed, chunks in enumerate(await asyncio.gather(*(read(stream) for stream in streams))):
                assert [chunk.index for chunk in chunks] == list(range(20))
                assert chunks[-1].final
                np.testing.assert_array_equal(chunks[3].samples, chunk_samples(seed, 3))
                assert streams[seed].seed == seed
            assert all(stream.result and stream.result.finish_reason == "stop" for stream in streams)
            assert (await engine.stats())["streams"] == 0
            assert (await engine.info()).hidden_size == 4
            assert (await engine.clone(np.ones(10, np.float32))).vector.tolist() == [1.0] * 4

    runner.run(main())


def test_live_text_is_applied_in_order_without_blocking(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit(request(1, text="", live=True))
            for _ in range(50):
                stream.append("word ")
            stream.append_tokens([1, 2])
            stream.append_rows(np.ones((3, 4), np.float32), last=True)
            stream.finish_text()
            with pytest.raises(InvalidRequest, match="requires a live request"):
                stream.append("more")
            assert len(await read(stream)) in (55, 56)  # the end may come with the last chunk or after it

    runner.run(main())


def test_rejected_text_ends_the_stream_with_the_reason(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with running() as engine:
            stream = await engine.submit(request(1, text="", live=True))
            stream.append("impossible")
            with pytest.raises(StreamFailed, match="got 'impossible'"):
                await read(stream)
            assert stream.result is not None
            assert stream.result.finish_reason == "error"

    runner.run(main())


def test_a_flood_of_texts_ends_only_its_own_stream(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MAX_PENDING_TEXTS", 10)
    monkeypatch.setattr(async_engine, "MAX_INLINE_CHARS", 0)  # a thread applies the text
    entered, proceed = threading.Event(), threading.Event()

    class SlowStream(FakeEngine):
        def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
            stream = super().submit(request, on_ready)
            append = stream.append

            def slow(text: str) -> None:
                entered.set()
                assert proceed.wait(30)
                append(text)

            stream.append = slow  # type: ignore[method-assign]
            return stream

    async def main() -> None:
        engine = AsyncLocalEngine(SlowStream())
        flooded = await engine.submit(request(1, text="", live=True))
        other = await engine.submit(request(2))
        flooded.append("first")
        await asyncio.to_thread(entered.wait, 30)
        for _ in range(11):
            flooded.append("word ")
        proceed.set()
        with pytest.raises(StreamFailed, match="at most 10 texts may be pending"):
            await read(flooded)
        assert len(await read(other)) == 10
        await engine.close()

    runner.run(main())


def test_errors_of_the_engine_are_raised(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with running() as engine:
            for text, kind in (("invalid", InvalidRequest), ("overloaded", Overloaded), ("bug", PolyvoxError)):
                with pytest.raises(kind):
                    await engine.submit(Request(text))

    runner.run(main())


def test_a_call_that_times_out_raises_and_cancels_its_stream_later(runner: asyncio.Runner) -> None:
    proceed = threading.Event()
    fake = FakeEngine()
    submit = fake.submit

    def slow(asked: Request) -> object:
        assert proceed.wait(30)
        return submit(asked)

    fake.submit = slow  # type: ignore[assignment, method-assign]

    async def main() -> None:
        engine = AsyncLocalEngine(fake, timeout=0.05)
        with pytest.raises(EngineDown, match=r"did not answer within 0.05 s"):
            await engine.submit(request(1, chunks=1_000_000))
        proceed.set()

        async def cancelled() -> bool:
            return fake.stats()["cancelled"] == 1

        await becomes_true(cancelled)
        await engine.close()

    runner.run(main())


def test_leaving_the_iteration_early_cancels_the_stream(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with running() as engine:
            stream, reading = await engine.submit(request(1, text="one", live=True)), asyncio.Event()

            async def read_on() -> None:
                async for _ in stream:
                    reading.set()

            task = asyncio.create_task(read_on())
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            async def cancelled() -> bool:
                return (await engine.stats())["cancelled"] == 1

            await becomes_true(cancelled)

    runner.run(main())


def test_requests_beyond_the_preparation_queue_are_rejected() -> None:
    pool, proceed = PreparationPool(num_threads=1, max_pending=2), threading.Event()
    futures = [pool.submit(proceed.wait, 30) for _ in range(2)]
    assert pool.run_inline(lambda: 1) is None
    with pytest.raises(Overloaded, match="2 requests are already being prepared"):
        pool.submit(proceed.wait, 30)
    proceed.set()
    assert all(future.result(30) for future in futures)
    assert pool.submit(proceed.wait, 30).result(30)
    pool.close()


def test_an_event_loop_does_small_work_itself_for_a_share_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("polyvox.engine.preparation.time.monotonic", lambda: now)
    pool = PreparationPool()

    def work(seconds: float) -> float:
        nonlocal now
        now += seconds
        return seconds

    def fail() -> None:
        raise ValueError("no")

    for seconds in (0.001, 0.024):
        outcome = pool.run_inline(partial(work, seconds))
        assert outcome is not None
        assert outcome.result(0) == seconds
    now += 0.09
    assert pool.run_inline(lambda: work(0.01)) is None
    now += 0.02
    failed = pool.run_inline(fail)
    assert failed is not None
    assert isinstance(failed.exception(0), ValueError)
    pool.close()


def test_text_does_not_wait_for_requests_nor_requests_for_text() -> None:
    pool, proceed, applied = PreparationPool(num_threads=1), threading.Event(), threading.Event()
    in_progress = pool.submit(proceed.wait, 30)
    pool.submit_text(applied.set)
    assert applied.wait(30)
    assert pool.run_inline(lambda: 1) is None
    assert pool.run_text_inline(lambda: None)
    proceed.set()
    assert in_progress.result(30)
    finished = threading.Event()

    def block() -> None:
        finished.wait(30)

    for _ in range(2 * preparation.NUM_TEXT_THREADS):
        pool.submit_text(block)
    assert pool.submit(lambda: 1).result(30) == 1
    finished.set()
    pool.close()


def test_requests_do_not_wait_for_clones_whose_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MAX_PENDING_CLONES", 8)
    pool, proceed = PreparationPool(), threading.Event()
    clones = [pool.submit_clone(proceed.wait, 30) for _ in range(8)]
    with pytest.raises(Overloaded, match="8 voices are already being cloned"):
        pool.submit_clone(proceed.wait, 30)
    assert pool.run_inline(lambda: 1) is not None
    assert pool.submit(lambda: 1).result(30) == 1
    assert not any(clone.done() for clone in clones)
    proceed.set()
    assert all(clone.result(30) for clone in clones)
    pool.close()


def test_small_text_is_applied_by_the_event_loop_unless_other_text_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.engine.preparation.time.monotonic", lambda: 100.0)  # work takes no time
    pool, proceed, done = PreparationPool(num_threads=1), threading.Event(), threading.Event()
    applied: list[int] = []
    engine = FakeEngine()
    writer = TextWriter(pool, engine.submit(request(1, text="one", live=True)))
    writer.write(partial(applied.append, 1), small=True)
    assert applied == [1]
    writer.write(lambda: applied.append(2) if proceed.wait(30) else None)
    writer.write(partial(applied.append, 3), small=True)
    writer.write(done.set)
    assert applied == [1]
    proceed.set()
    assert done.wait(30)
    assert applied == [1, 2, 3]
    pool.close()
    engine.close()


def test_small_text_needs_no_thread_unless_the_stream_waits_for_its_first_token(runner: asyncio.Runner) -> None:
    async def main() -> None:
        fake = FakeEngine()
        pool, threads = PreparationPool(), list[str]()
        with mock.patch.object(pool, "submit_text", side_effect=lambda _: threads.append("one")):
            stream = fake.submit(request(1, text="one", live=True))
            live = AsyncLocalStream(stream, request(1, text="one", live=True), pool)
            live.append("two")
            assert stream.goal == 2
            live.append("two" * preparation.MAX_INLINE_CHARS)
            assert threads == ["one"]
            stream.awaits_text = True
            waiting = AsyncLocalStream(stream, request(1, text="one", live=True), pool)
            waiting.append("three")
            assert threads == ["one"] * 2
        live.cancel()
        pool.close()
        await asyncio.to_thread(fake.close)

    runner.run(main())


def test_counts_of_keys_are_limited_and_given_back(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with running() as engine:
            assert await engine.acquire_key("a", 2)
            assert await engine.acquire_key("a", 2)
            assert not await engine.acquire_key("a", 2)
            assert await engine.acquire_key("b", 2)
            engine.release_key("a")
            assert await engine.acquire_key("a", 2)

    runner.run(main())


def test_a_key_without_requests_takes_no_memory() -> None:
    keys = KeyCounts()
    assert not keys.acquire("none", 0)
    assert keys.acquire("a", 2)
    assert keys.acquire("a", 2)
    keys.release("a", 2)
    keys.release("a")  # it has none
    assert len(keys) == 0
