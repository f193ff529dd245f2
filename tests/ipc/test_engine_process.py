"""The engine in its own process: order, credits, deaths on both sides, and nothing left behind."""

import asyncio
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from ipc.engine_processes import (
    TIMEOUT,
    await_another,
    await_end_of,
    children,
    eventually,
    folders,
    is_back,
    request,
    send,
    traces,
)
from ipc.fake_engine import (
    ABOUT,
    BUFFER,
    CHUNK_SAMPLES,
    SAMPLE_RATE,
    FakeEngine,
    chunk_samples,
    gated,
    mortal,
    unbuildable,
)
from polyvox.engine.interface import Chunk, Engine, Stream
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, PolyvoxError, StreamFailed
from polyvox.ipc import client, messages
from polyvox.ipc.client import CREDIT, RemoteEngine, RemoteStream
from polyvox.ipc.supervisor import EngineProcess
from polyvox.ipc.worker import BEATS, EngineProcessConfig
from polyvox.models.request import ClonedVoice, Request

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 1.5  # of the shared process, so that a server that stands still is let go soon
RING = 40 * CHUNK_SAMPLES


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    hosting = EngineProcessConfig(ring_samples=RING, patience=PATIENCE)
    with EngineProcess(partial(FakeEngine, step_seconds=0.001), hosting=hosting) as running:
        yield running


@pytest.fixture
def engine(process: EngineProcess) -> Iterator[RemoteEngine]:
    running = RemoteEngine(process.door)
    yield running
    running.close()


def assert_heard(chunks: list[Chunk], seed: int, count: int) -> None:
    assert [chunk.index for chunk in chunks] == list(range(count))
    assert [chunk.final for chunk in chunks] == [False] * (count - 1) + [True]
    for chunk in chunks:
        np.testing.assert_array_equal(chunk.samples, chunk_samples(seed, chunk.index))


# Streams


def test_a_remote_engine_is_an_engine(engine: RemoteEngine) -> None:
    plain: Engine = engine
    stream: Stream = plain.submit(request(1))
    assert plain.sample_rate == SAMPLE_RATE
    assert stream.seed == 1
    assert_heard(list(stream.chunks(TIMEOUT)), seed=1, count=10)
    assert stream.result is not None
    assert stream.result.finish_reason == "stop"
    assert stream.result.frames == 10


def listen(door: messages.EngineEndpoint, seeds: list[int], chunks: int, heard: Connection) -> None:
    """A server process: all its streams at once, their chunks back to the test."""
    engine = RemoteEngine(door)
    streams = [engine.submit(request(seed, chunks)) for seed in seeds]
    for stream in streams:
        heard.send([(chunk.samples, chunk.index, chunk.final) for chunk in stream.chunks(TIMEOUT)])
    engine.close()


def test_several_server_processes_hear_their_own_chunks_in_order(process: EngineProcess) -> None:
    crowds = [[100 * server + stream for stream in range(8)] for server in range(1, 4)]
    pipes = [SPAWN.Pipe(duplex=False) for _ in crowds]
    servers = [
        SPAWN.Process(target=listen, args=(process.door, seeds, 60, pipe[1]))
        for seeds, pipe in zip(crowds, pipes, strict=True)
    ]
    for server in servers:
        server.start()
    for seeds, (hear, _) in zip(crowds, pipes, strict=True):
        for seed in seeds:
            assert hear.poll(TIMEOUT)
            assert_heard([Chunk(*values) for values in hear.recv()], seed, count=60)
    for server in servers:
        server.join(TIMEOUT)
        assert server.exitcode == 0


def test_one_wake_up_brings_the_chunks_of_many_streams(engine: RemoteEngine) -> None:
    before = engine.stats()
    streams = [engine.submit(request(seed, chunks=5)) for seed in range(200, 232)]
    for stream in streams:
        assert len(list(stream.chunks(TIMEOUT))) == 5
    after = engine.stats()
    wakeups = after["wakeups"] - before["wakeups"] - len(streams)  # one for each answer
    steps = after["steps"] - before["steps"]
    assert wakeups <= 2 * steps < 32 * 5


def test_a_stream_can_be_taken_from_without_a_thread_of_its_own(engine: RemoteEngine) -> None:
    chunks: list[Chunk] = []
    done = threading.Event()

    def on_ready(stream: RemoteStream) -> None:
        chunks.extend(stream.take(3))
        if chunks[-1].final:
            assert stream.result is not None
            done.set()

    engine.submit(request(2, chunks=30), on_ready=on_ready)
    assert done.wait(TIMEOUT)
    assert_heard(chunks, seed=2, count=30)


def test_a_cancelled_stream_ends_at_once_and_any_number_of_times(engine: RemoteEngine) -> None:
    stream = engine.submit(request(3, chunks=1_000_000))
    chunks = stream.chunks(TIMEOUT)
    next(chunks)
    stream.cancel()
    stream.cancel()
    assert list(chunks)[-1].final
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"
    stream.cancel()
    eventually(lambda: engine.stats()["streams"] == 0)


def test_a_reader_that_leaves_in_the_middle_cancels_its_stream(engine: RemoteEngine) -> None:
    stream = engine.submit(request(4, chunks=1_000_000))
    for _ in stream.chunks(TIMEOUT):
        break
    eventually(lambda: engine.stats()["streams"] == 0)


# Readers in an event loop


async def hear(stream: Stream) -> list[Chunk]:
    return [chunk async for chunk in stream]


def test_a_reader_in_an_event_loop_hears_what_a_thread_hears(engine: RemoteEngine) -> None:
    async def crowd() -> list[list[Chunk]]:
        streams = [engine.submit(request(seed, chunks=100)) for seed in range(40, 48)]
        return await asyncio.gather(*(hear(stream) for stream in streams))

    for seed, chunks in zip(range(40, 48), asyncio.run(crowd()), strict=True):
        assert_heard(chunks, seed, count=100)
        assert_heard(list(engine.submit(request(seed, chunks=100)).chunks(TIMEOUT)), seed, count=100)


def test_a_task_that_is_cancelled_cancels_its_stream(engine: RemoteEngine) -> None:
    stream = engine.submit(request(48, chunks=2, text="two words", live=True))

    async def leave() -> None:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                begun.set()  # then it waits for words that never come

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert [chunk.final for chunk in stream.chunks(TIMEOUT)][-1:] == [True]
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"
    eventually(lambda: engine.stats()["streams"] == 0)


def test_an_event_loop_that_is_closed_under_its_reader_harms_nobody(engine: RemoteEngine) -> None:
    stream = engine.submit(request(49, text="one", live=True))
    loop = asyncio.new_event_loop()
    reading = aiter(stream)
    assert loop.run_until_complete(anext(reading)).index == 0
    loop.close()
    stream.append("two three four")
    stream.finish_text()
    assert_heard(list(engine.submit(request(50)).chunks(TIMEOUT)), seed=50, count=10)
    assert [chunk.index for chunk in stream.chunks(TIMEOUT)] == [1, 2, 3]


# Live text


def test_no_append_is_lost_between_a_look_and_a_wait(engine: RemoteEngine) -> None:
    stream = engine.submit(request(5, text="", live=True))
    chunks = stream.chunks(TIMEOUT)
    for word in range(500):
        stream.append("word ")
        assert next(chunks).index == word
    stream.finish_text()
    assert [chunk.final for chunk in chunks] == [True]


def test_text_that_is_not_possible_is_told_by_the_append_or_by_the_stream(engine: RemoteEngine) -> None:
    finished = engine.submit(request(6, text="", live=True))
    finished.finish_text()
    finished.finish_text()
    for stream in (finished, engine.submit(request(7))):
        with pytest.raises(InvalidRequest, match="requires a live request"):
            stream.append("more")
    refused = engine.submit(request(8, text="", live=True))
    refused.append("impossible")
    with pytest.raises(StreamFailed, match="got 'impossible'"):
        list(refused.chunks(TIMEOUT))
    assert refused.result is not None
    assert refused.result.finish_reason == "error"
    eventually(lambda: engine.stats()["streams"] == 0)


def test_rows_cross_as_arrays_and_the_last_close_the_text(engine: RemoteEngine) -> None:
    stream = engine.submit(request(20, text="word", live=True))
    before = engine.stats().get("rows", 0)
    stream.append_rows(np.ones((3, 48), np.float32))
    stream.append_rows(np.full((2, 48), 2, np.float32), last=True)
    stream.finish_text()
    with pytest.raises(InvalidRequest, match="text is not finished"):
        stream.append_rows(np.ones((1, 48), np.float32))
    assert_heard(list(stream.chunks(TIMEOUT)), seed=20, count=6)
    assert engine.stats()["rows"] - before == (3 + 2 * 2) * 48


# Errors and values


def test_a_stream_that_found_no_place_tells_when_to_come_back(engine: RemoteEngine) -> None:
    stream = engine.submit(Request("expires"))
    with pytest.raises(Overloaded, match="no place came free") as caught:
        list(stream.chunks(TIMEOUT))
    assert type(caught.value) is Overloaded
    assert caught.value.retry_after == 2.5
    with pytest.raises(Overloaded):
        asyncio.run(hear(engine.submit(Request("expires"))))


def test_errors_cross_with_class_fields_and_message(engine: RemoteEngine) -> None:
    local = FakeEngine()
    for text, kind in (("invalid", InvalidRequest), ("overloaded", Overloaded)):
        with pytest.raises(kind) as here:
            local.submit(Request(text))
        with pytest.raises(kind) as there:
            engine.submit(Request(text))
        assert type(there.value) is kind
        assert str(there.value) == str(here.value)
        assert vars(there.value) == vars(here.value)
    local.close()


def test_a_bug_in_the_engine_is_told_and_takes_nobody_along(engine: RemoteEngine) -> None:
    with pytest.raises(PolyvoxError, match="ZeroDivisionError: a bug"):
        engine.submit(Request("bug"))
    assert_heard(list(engine.submit(request(9)).chunks(TIMEOUT)), seed=9, count=10)


def test_a_voice_crosses_as_arrays_and_not_as_lists(engine: RemoteEngine) -> None:
    vector = np.linspace(-1, 1, 2048).astype(np.float32)
    codes = np.arange(16_000).reshape(1000, 16)
    spoken = Request("hello", voice=ClonedVoice(vector, codes, "what was said"), max_frames=1)
    # A list would take nine bytes and an object for each number.
    assert len(pickle.dumps(messages.Submit(0, spoken, 8), protocol=5)) < vector.nbytes + codes.nbytes + 2000
    (chunk,) = engine.submit(spoken).chunks(TIMEOUT)
    np.testing.assert_array_equal(chunk.samples, vector)
    listed = ClonedVoice(vector.tolist(), codes, "what was said")
    with pytest.raises(InvalidRequest, match="got 'list'"):
        engine.submit(Request("hello", voice=listed))


def test_a_chunk_larger_than_the_ring_ends_its_own_stream_only(engine: RemoteEngine) -> None:
    huge = ClonedVoice(np.zeros(RING + 1, np.float32), np.zeros((1, 16), np.int64))
    stream = engine.submit(Request("hello", voice=huge))
    with pytest.raises(StreamFailed, match="more than the ring"):
        list(stream.chunks(TIMEOUT))
    assert_heard(list(engine.submit(request(10)).chunks(TIMEOUT)), seed=10, count=10)
    eventually(lambda: engine.stats()["streams"] == 0)


# Credits, and servers that fail


@pytest.mark.parametrize("credit", [1, 2, 8])
def test_a_slow_reader_pauses_only_its_own_stream(process: EngineProcess, credit: int) -> None:
    engine = RemoteEngine(process.door, credit=credit)
    slow, quick = engine.submit(request(1000 + credit, chunks=200)), engine.submit(request(12, chunks=200))
    assert_heard(list(quick.chunks(TIMEOUT)), seed=12, count=200)
    assert engine.stats()[f"made.{slow.seed}"] == credit + BUFFER
    assert_heard(list(slow.chunks(TIMEOUT)), seed=slow.seed, count=200)
    engine.close()


def test_a_request_that_takes_long_to_prepare_delays_no_stream_of_its_server(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    heard: list[Chunk] = []
    slow = threading.Thread(
        target=lambda: heard.extend(engine.submit(request(19, text=f"gate {gate}")).chunks(TIMEOUT))
    )
    slow.start()
    try:
        assert_heard(list(engine.submit(request(11, chunks=100)).chunks(TIMEOUT)), seed=11, count=100)
        assert not heard
    finally:
        gate.write_text("open")
        slow.join(TIMEOUT)
    assert_heard(heard, seed=19, count=10)


def test_a_reader_whose_callback_throws_loses_its_stream_and_nobody_elses(
    engine: RemoteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def on_ready(_: RemoteStream) -> None:
        raise RuntimeError("the client has gone")

    failed = engine.submit(request(13, chunks=1_000_000), on_ready=on_ready)
    assert_heard(list(engine.submit(request(14)).chunks(TIMEOUT)), seed=14, count=10)
    eventually(lambda: engine.stats()["streams"] == 0)
    assert [chunk.final for chunk in failed.chunks(TIMEOUT)] == [True]
    assert "the client has gone" in caplog.text


def test_an_engine_that_reads_nothing_holds_up_nobody_who_writes_to_it(
    process: EngineProcess, engine: RemoteEngine
) -> None:
    stream = engine.submit(Request("one", live=True, seed=1))
    pid = send(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        stream.append("word " * (1 << 20))  # more than the socket takes
        for chunk in range(100):
            stream.take(chunk)
            stream.cancel()
        assert time.monotonic() - began < client.PATIENCE / 2
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [chunk.final for chunk in stream.chunks(TIMEOUT)][-1]
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"


def test_an_engine_that_leaves_too_much_unread_is_given_up(
    process: EngineProcess, engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_OUTGOING", 1 << 20)
    stream = engine.submit(Request("one", live=True, seed=1))
    pid = send(process, signal.SIGSTOP)
    try:
        for _ in range(20):
            stream.append("word " * 20_000)
        with pytest.raises(StreamFailed, match="ended before this stream did"):
            list(stream.chunks(TIMEOUT))
        stream.cancel()  # and whoever comes late is not surprised
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(partial(is_back, engine))


def test_a_server_that_takes_nothing_is_let_go_and_delays_nobody(process: EngineProcess, engine: RemoteEngine) -> None:
    stuck, ring = messages.knock(process.door, patience=1.0)
    for seed in range(2000, 2010):
        stuck.send(messages.Submit(seed, request(seed, chunks=1_000_000), credit=8))  # 80 chunks for a ring of 40
    assert_heard(list(engine.submit(request(15, chunks=50)).chunks(TIMEOUT)), seed=15, count=50)
    assert engine.stats()["streams"] == 10  # nobody waited until they were let go
    eventually(lambda: engine.stats()["streams"] == 0)
    with pytest.raises(EOFError):
        list(iter(stuck.receive, None))
    stuck.close()
    ring.close()


def stall(door: messages.EngineEndpoint, ready: Connection) -> None:
    """A server process that is killed in the middle of its streams."""
    engine = RemoteEngine(door)
    streams = [engine.submit(request(seed, chunks=1_000_000)) for seed in range(8)]
    readers = [stream.chunks(TIMEOUT) for stream in streams]
    for reader in readers:
        ready.send(next(reader).index)
    threading.Event().wait(TIMEOUT)


def test_a_server_that_dies_releases_its_streams(process: EngineProcess, engine: RemoteEngine) -> None:
    mine = engine.submit(request(16, chunks=300))
    before = engine.stats()["cancelled"]
    hear, tell = SPAWN.Pipe(duplex=False)
    server = SPAWN.Process(target=stall, args=(process.door, tell))
    server.start()
    for _ in range(8):
        assert hear.poll(TIMEOUT)
        assert hear.recv() == 0
    assert engine.stats()["cancelled"] == before
    server.kill()
    server.join(TIMEOUT)
    assert_heard(list(mine.chunks(TIMEOUT)), seed=16, count=300)
    eventually(lambda: engine.stats()["cancelled"] == before + 8)


def test_only_this_user_can_come_in(process: EngineProcess) -> None:
    assert process.door.folder.stat().st_mode & 0o077 == 0


# The process's deaths


def test_an_engine_that_is_killed_twenty_times_under_load_is_there_for_the_next_request() -> None:
    before = children()
    with EngineProcess(partial(FakeEngine, step_seconds=0.001), hosting=EngineProcessConfig(failures=100)) as process:
        engines = [RemoteEngine(process.door) for _ in range(2)]
        for _ in range(20):
            streams = [engine.submit(request(seed, chunks=1_000_000)) for engine in engines for seed in range(4)]
            readers = [stream.chunks(TIMEOUT) for stream in streams]
            for reader in readers:
                assert next(reader).index == 0
            killed = send(process)
            for stream, reader in zip(streams, readers, strict=True):
                with pytest.raises(StreamFailed, match="ended before this stream did"):
                    list(reader)
                assert stream.result is not None
                assert stream.result.finish_reason == "error"
            await_another(process, killed, *engines)
        for engine in engines:
            assert_heard(list(engine.submit(request(18)).chunks(TIMEOUT)), seed=18, count=10)
            engine.close()
    assert children() == before


HANG = EngineProcessConfig(hang_seconds=1.5, grace=0.1, failures=100)


@pytest.mark.parametrize("text", ["hangs", "deadlocks"])
def test_an_engine_that_hangs_is_replaced_and_tells_where_it_hung(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with EngineProcess(FakeEngine, HANG) as process:
        engine, pid = RemoteEngine(process.door), process.pid
        assert pid is not None
        streams = [engine.submit(request(1, chunks=1_000_000))]
        with suppress(EngineDown):  # where the engine hangs before its answer has left
            streams.append(engine.submit(Request(text)))
        for stream in streams:
            with pytest.raises(StreamFailed, match="ended before this stream did"):
                list(stream.chunks(TIMEOUT))
        await_another(process, pid, engine)
        assert_heard(list(engine.submit(request(2)).chunks(TIMEOUT)), seed=2, count=10)
        engine.close()
    assert "in _for_ever" in capfd.readouterr().err


def test_a_process_that_is_stopped_is_replaced() -> None:
    before = children()
    with EngineProcess(FakeEngine, HANG) as process:
        engine = RemoteEngine(process.door)
        reader = engine.submit(request(1, chunks=1_000_000)).chunks(TIMEOUT)
        next(reader)
        stopped = send(process, signal.SIGSTOP)
        with pytest.raises(StreamFailed, match="ended before this stream did"):
            list(reader)
        await_another(process, stopped, engine)
        assert_heard(list(engine.submit(request(2)).chunks(TIMEOUT)), seed=2, count=10)
        engine.close()
    assert children() == before


def test_streams_that_wait_for_text_or_for_their_reader_are_no_hang() -> None:
    with EngineProcess(FakeEngine, HANG) as process:
        engine, pid = RemoteEngine(process.door), process.pid
        for_text, for_reader = engine.submit(request(1, text="", live=True)), engine.submit(request(2, chunks=50))
        eventually(lambda: engine.stats().get("made.2") == CREDIT + BUFFER)
        steps, asked, since = engine.stats()["steps"], 0, time.monotonic()
        while time.monotonic() < since + 2 * HANG.hang_seconds or asked < 2 * BEATS:
            threading.Event().wait(HANG.hang_seconds / BEATS)
            asked = int(engine.stats()["asked"])
        assert engine.stats()["steps"] == steps
        for_text.append("now")
        for_text.finish_text()
        assert len(list(for_text.chunks(TIMEOUT))) in (1, 2)  # the end may be told with the word, or after it
        assert_heard(list(for_reader.chunks(TIMEOUT)), seed=2, count=50)
        assert process.pid == pid
        engine.close()


def test_requests_are_refused_with_a_retry_time_while_the_engine_is_started_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with EngineProcess(partial(gated, str(gate))) as process:
        engine = RemoteEngine(process.door)
        stream = engine.submit(request(1, chunks=1_000_000))
        os.mkfifo(gate)
        killed = send(process)
        with pytest.raises(StreamFailed):
            list(stream.chunks(TIMEOUT))
        for refused in (lambda: engine.submit(request(1)), engine.stats):
            with pytest.raises(EngineDown, match="started again") as down:
                refused()
            assert down.value.retry_after >= 1
        gate.write_text("open")  # waits until the new process stands before it
        await_another(process, killed, engine)
        killed = send(process)
        eventually(lambda: process.pid is None)
        began = time.monotonic()
        process.close()  # the third process stands before the gate
        assert time.monotonic() - began < 2
        engine.close()


def test_after_three_failures_in_a_minute_the_supervisor_gives_up_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "gone"
    now = [0.0]
    process = EngineProcess(partial(mortal, str(flag)), clock=lambda: now[0])
    engine = RemoteEngine(process.door)
    for _ in range(2):  # too far apart to count together
        await_another(process, send(process), engine)
        now[0] = 61.0
    assert "failed 3 times" not in caplog.text
    flag.touch()  # the second failure within the minute is the broken engine, the third the start that follows
    with pytest.raises(EngineDown):
        engine.submit(Request("broken"))
    eventually(lambda: process.door.notice.exists() or threading.Event().wait(0.01))
    for _ in range(2):
        with pytest.raises(EngineDown, match=r"failed 3 times in 60 s.*the checkpoint is gone"):
            engine.submit(request(1))
    assert [record.levelname for record in caplog.records if "failed 3 times" in record.message] == ["ERROR"]
    engine.close()
    process.close()


def test_an_engine_that_cannot_be_built_is_told_at_the_start() -> None:
    before = (children(), folders(), threading.enumerate())
    with pytest.raises(EngineDown, match="ValueError: no such checkpoint"):
        EngineProcess(unbuildable)
    assert (children(), folders(), threading.enumerate()) == before


# The end


def test_close_under_load_takes_less_than_two_seconds_and_leaves_nothing() -> None:
    before = traces()
    process = EngineProcess(FakeEngine)
    engine = RemoteEngine(process.door)
    streams = [engine.submit(request(seed, chunks=1_000_000)) for seed in range(32)]
    reading = [threading.Thread(target=lambda s=s: list(s.chunks(TIMEOUT))) for s in streams[:4]]
    for reader in reading:
        reader.start()
    began = time.monotonic()
    engine.close()
    process.close()
    assert time.monotonic() - began < 2
    for reader in reading:
        reader.join(TIMEOUT)
    assert {stream.result.finish_reason for stream in streams if stream.result} == {"cancelled"}
    assert all(stream.result for stream in streams)
    engine.close()
    process.close()
    with pytest.raises(EngineDown, match="closed"):
        engine.submit(request(1))
    assert traces() == before


def test_an_engine_that_does_not_end_is_killed_and_its_readers_are_told() -> None:
    process = EngineProcess(partial(FakeEngine, close_seconds=TIMEOUT), hosting=EngineProcessConfig(grace=0.2))
    engine = RemoteEngine(process.door)
    stream = engine.submit(request(1, chunks=1_000_000))
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < 2
    with pytest.raises(StreamFailed):
        list(stream.chunks(TIMEOUT))
    with pytest.raises(EngineDown, match="closed"):
        engine.submit(request(1))
    engine.close()


def supervise(tell: Connection, gate: str) -> None:
    os.setsid()
    process = EngineProcess(partial(gated, gate))
    tell.send((process.pid, process.door.folder))
    threading.Event().wait(TIMEOUT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("starting", [False, True])
def test_a_supervisor_that_is_killed_leaves_neither_engine_nor_folder(
    number: signal.Signals, starting: bool, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    hear, tell = SPAWN.Pipe(duplex=False)
    supervisor = SPAWN.Process(target=supervise, args=(tell, str(gate)))
    supervisor.start()
    assert hear.poll(TIMEOUT)
    pid, folder = hear.recv()
    assert supervisor.pid is not None
    with ExitStack() as held:
        if starting:
            os.mkfifo(gate)
            os.kill(pid, signal.SIGKILL)
            held.enter_context(gate.open("w"))  # waits until the next process stands before it
            (pid,) = {int(name) for name in os.listdir("/proc") if name.isdigit() and holds(int(name), gate)}
        if number == signal.SIGTERM:  # as a service manager does it
            os.killpg(supervisor.pid, number)
        else:
            os.kill(supervisor.pid, number)
        supervisor.join(TIMEOUT)
        await_end_of(pid)
        assert not folder.exists()


def forget(tell: Connection) -> None:
    tell.send(EngineProcess(FakeEngine).door.folder)


def test_a_process_that_forgets_to_close_ends_all_the_same() -> None:
    hear, tell = SPAWN.Pipe(duplex=False)
    forgetful = SPAWN.Process(target=forget, args=(tell,))
    forgetful.start()
    assert hear.poll(TIMEOUT)
    folder = hear.recv()
    forgetful.join(TIMEOUT)
    assert forgetful.exitcode == 0
    assert not folder.exists()


def holds(pid: int, file: Path) -> bool:
    """Whether another process has the file open."""
    try:
        files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return pid != os.getpid() and str(file) in files


def test_what_the_model_is_and_voices_of_recordings_cross(engine: RemoteEngine) -> None:
    assert engine.info() == ABOUT
    voice = engine.clone(np.full(1000, 0.5, np.float32), "What is said.")
    assert voice.vector.tolist() == [0.5] * 4
    assert voice.transcript == "What is said."
    with pytest.raises(InvalidRequest, match="silence"):
        engine.clone(np.zeros(0, np.float32))
