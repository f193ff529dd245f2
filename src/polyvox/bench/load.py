"""The load: which requests begin when, in one process or several, and what the client itself took."""

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from multiprocessing.connection import Connection
from typing import Literal, Protocol

from polyvox.bench.clients import Client, Target, connected, within
from polyvox.bench.ear import Clock, Failure
from polyvox.bench.metrics import DROPPED, Trace
from polyvox.bench.prompts import Phase, arrivals, order, request_seed
from polyvox.bench.summary import Spread, spread
from polyvox.errors import InvalidRequest, PolyvoxError

Mode = Literal["closed", "open"]

LAG_SECONDS = 0.01  # how often the event loop is asked how late it is
TICK_SECONDS = 0.25  # how often progress is told
SETTLE_SECONDS = 0.2  # from when all processes are ready to the beginning of the run
START_SECONDS = 60  # for a process to be ready
STREAMS_A_PROCESS = 64  # streams at once that one process reads without being late
SPARE_CONNECTIONS = 8
FAILED_SECONDS = 1.0  # from the beginning of a request that failed to the next of its stream
WARM_INDEX = -1  # requests of the warm-up count down from here, so that the measured ones have the same numbers always


@dataclass(frozen=True, slots=True)
class Load:
    """One run. closed: `level` streams at once, a new one for each that ends; open: `level` requests a second.

    warmup, seconds: how long requests are begun, not measured and measured; each stream of a closed loop has one
    that is measured, however slow the server is. requests: no more than so many measured ones. ramp: over how many
    seconds of the warm-up the streams of a closed loop begin.
    """

    mode: Mode
    level: float
    seconds: float = 30.0
    warmup: float = 5.0
    requests: int | None = None
    ramp: float = 0.0
    seed: int = 1
    timeout: float = 120.0
    max_in_flight: int = 4096
    keep: int = 0  # the sound of so many measured requests, the first in the sequence

    def check(self) -> None:
        if not 0 < self.level < inf or (self.mode == "closed" and self.level != int(self.level)):
            requirement = "must be a positive integer" if self.mode == "closed" else "must be above 0"
            raise InvalidRequest("level", self.level, requirement)
        for name in ("seconds", "timeout"):
            if not 0 < getattr(self, name) < inf:
                raise InvalidRequest(name, getattr(self, name), "must be above 0")
        if not 0 <= self.warmup < inf:
            raise InvalidRequest("warmup", self.warmup, "must be at least 0")
        if not 0 <= self.ramp <= self.warmup:
            raise InvalidRequest("ramp", self.ramp, f"must be between 0 and the warm-up of {self.warmup:g} s")
        if self.requests is not None and self.requests < 1:
            raise InvalidRequest("requests", self.requests, "must be at least 1")
        if self.max_in_flight < 1:
            raise InvalidRequest("max_in_flight", self.max_in_flight, "must be at least 1")
        if self.keep < 0:
            raise InvalidRequest("keep", self.keep, "must be at least 0")

    @property
    def label(self) -> str:
        """The load in a few words."""
        return f"{self.level:g} at once" if self.mode == "closed" else f"{self.level:g} a second"

    def processes(self, cores: int, each: int = STREAMS_A_PROCESS) -> int:
        """How many are needed to read so many streams where one reads `each`, and can be used."""
        streams = self.level if self.mode == "closed" else 4 * self.level  # a request a second is a few streams
        return max(1, min(cores, -(-int(streams) // each)))


@dataclass(frozen=True, slots=True)
class Part:
    """What one of several processes does of a load: every `of`-th request or stream, from `number` on."""

    load: Load
    texts: tuple[str, ...]
    number: int = 0
    of: int = 1

    def jobs(self, phase: Phase) -> Iterator[tuple[int, int]]:
        """(index, text) of this part's requests, in order."""
        numbered = enumerate(order(len(self.texts), self.load.seed, phase))
        for place, text in islice(numbered, self.number, None, self.of):
            yield (place if phase == "measured" else WARM_INDEX - place), text

    def trace(self, job: tuple[int, int], measured: bool, due: float) -> Trace:
        index, text = job
        trace = Trace(index, text, len(self.texts[text].split()), measured, due)
        if measured and index < self.load.keep:
            trace.sound = bytearray()
        return trace

    @property
    def requests(self) -> int | None:
        """How many measured ones at most."""
        most = self.load.requests
        return None if most is None else len(range(self.number, most, self.of))


@dataclass(frozen=True, slots=True)
class Lag:
    """What the client itself took: how late its event loop was, and its share of a core."""

    loop: Spread | None  # seconds; the worst process
    cpu: float  # the same
    processes: int  # 0: in the engine's own process, a thread beside its


@dataclass(slots=True)
class Outcome:
    """What a run gave."""

    traces: list[Trace] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    cpu: float = 0.0


class Progress(Protocol):
    def __call__(self, elapsed: float, done: int, under_way: int) -> None: ...


class Counts(Protocol):
    """Two numbers that another process may read: requests done, requests under way."""

    def __getitem__(self, index: int) -> int: ...
    def __setitem__(self, index: int, value: int) -> None: ...


Connect = Callable[[], AbstractAsyncContextManager[Client]]


class _Run:
    """One part, while it runs."""

    def __init__(self, client: Client, part: Part, begin: float, counts: Counts) -> None:
        self.client, self.part, self.load, self.counts = client, part, part.load, counts
        self.out = Outcome()
        clock = asyncio.get_running_loop().time  # monotonic, the same in all processes of a machine
        self.now: Clock = lambda: clock() - begin

    async def wait_until(self, when: float) -> None:
        if (rest := when - self.now()) > 0:
            await asyncio.sleep(rest)

    async def speak(self, trace: Trace) -> None:
        self.out.traces.append(trace)
        self.counts[1] += 1
        trace.sent = self.now()
        text, seed = self.part.texts[trace.prompt], request_seed(self.load.seed, trace.index)
        try:
            await within(self.load.timeout, self.client, text, seed, trace, self.now)
        except Failure as failure:
            trace.error, trace.detail = failure.kind, failure.detail
            trace.ended = self.now()
        self.counts[1] -= 1
        self.counts[0] += 1

    async def speak_and_rest(self, trace: Trace) -> None:
        """Where a server refuses at once, a stream that asked again at once would be a flood, not a listener."""
        await self.speak(trace)
        if trace.error is not None:
            await self.wait_until(trace.sent + FAILED_SECONDS)

    async def closed(self) -> None:
        load, part = self.load, self.part
        warm, measured = part.jobs("warm-up"), part.jobs("measured")
        left = part.requests
        streams = int(load.level)

        async def stream(number: int) -> None:
            nonlocal left
            await self.wait_until(load.ramp * number / streams)
            while (now := self.now()) < load.warmup:
                await self.speak_and_rest(part.trace(next(warm), False, now))
            begun = False
            while left != 0 and ((now := self.now()) < load.warmup + load.seconds or not begun):
                left, begun = None if left is None else left - 1, True
                await self.speak_and_rest(part.trace(next(measured), True, now))

        await asyncio.gather(*(stream(number) for number in range(part.number, streams, part.of)))

    async def open(self) -> None:
        load, part = self.load, self.part
        due: list[tuple[float, Trace]] = []
        warm = arrivals(load.level, load.warmup, load.seed, "warm-up") if load.warmup else []
        then = arrivals(load.level, load.seconds, load.seed, "measured")[: load.requests]
        phases: tuple[tuple[Phase, list[float], float], ...]
        phases = (("warm-up", warm, 0.0), ("measured", then, load.warmup))
        for phase, times, after in phases:
            for when, job in zip(times[part.number :: part.of], part.jobs(phase), strict=False):  # jobs never end
                due.append((after + when, part.trace(job, phase == "measured", after + when)))
        async with asyncio.TaskGroup() as group:
            for when, trace in due:
                await self.wait_until(when)
                if self.counts[1] >= -(-load.max_in_flight // part.of):
                    trace.sent = trace.ended = self.now()
                    trace.error = DROPPED
                    self.out.traces.append(trace)
                else:
                    group.create_task(self.speak(trace))

    async def watch(self) -> None:
        """How late this event loop is, again and again."""
        while True:
            before = self.now()
            await asyncio.sleep(LAG_SECONDS)
            self.out.lags.append(max(0.0, self.now() - before - LAG_SECONDS))

    async def run(self) -> Outcome:
        await self.wait_until(0.0)
        watch = asyncio.create_task(self.watch())
        cpu = time.thread_time()
        try:
            await (self.closed() if self.load.mode == "closed" else self.open())
        finally:
            watch.cancel()
        self.out.cpu = (time.thread_time() - cpu) / max(self.now(), 1e-9)
        return self.out


def _open_files(connections: int) -> None:
    """A stream is an open file: asks for as many as may be had."""
    try:
        import resource
    except ImportError:  # not Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def drive(connect: Connect, part: Part, counts: Counts, progress: Progress | None = None) -> Outcome:
    """A part of a load in the event loop that runs."""
    async with connect() as client:
        clock = asyncio.get_running_loop().time
        begin = clock() + SETTLE_SECONDS
        if progress is None:
            return await _Run(client, part, begin, counts).run()
        task = asyncio.create_task(_Run(client, part, begin, counts).run())
        try:
            while not task.done():
                await asyncio.wait([task], timeout=TICK_SECONDS)
                progress(clock() - begin, counts[0], counts[1])
        finally:
            task.cancel()
        return await task


def run_here(connect: Connect, load: Load, texts: tuple[str, ...], progress: Progress | None = None) -> Outcome:
    """A load in this process, with any client."""
    load.check()
    return asyncio.run(drive(connect, Part(load, texts), [0, 0], progress))


def run(
    target: Target, load: Load, texts: tuple[str, ...], processes: int = 1, progress: Progress | None = None
) -> tuple[list[Trace], Lag]:
    """A load on a server, in so many processes; the traces by when they began, and what the client took."""
    target.check()
    return run_apart(_Connect(target, load, processes), load, texts, processes, progress)


def run_apart(
    connect: Connect, load: Load, texts: tuple[str, ...], processes: int = 1, progress: Progress | None = None
) -> tuple[list[Trace], Lag]:
    """The same with any client that can be sent to another process."""
    load.check()
    if load.mode == "closed":
        processes = min(processes, int(load.level))
    parts = [Part(load, texts, number, processes) for number in range(processes)]
    outcomes = [run_here(connect, load, texts, progress)] if processes == 1 else _elsewhere(connect, parts, progress)
    traces = sorted((trace for out in outcomes for trace in out.traces), key=lambda trace: trace.sent)
    return traces, lag_of(outcomes)


def lag_of(outcomes: list[Outcome], processes: int | None = None) -> Lag:
    """What the client took, from what its processes noted."""
    loops = [found for out in outcomes if (found := spread(out.lags))]
    worst = max(loops, key=lambda found: found.p99, default=None)
    return Lag(worst, max(out.cpu for out in outcomes), len(outcomes) if processes is None else processes)


@dataclass(frozen=True, slots=True)
class _Connect:
    """Connects to a server; a value, so that it may be sent to another process."""

    target: Target
    load: Load
    parts: int

    def __call__(self) -> AbstractAsyncContextManager[Client]:
        most = self.load.level if self.load.mode == "closed" else self.load.max_in_flight
        connections = -(-int(most) // self.parts) + SPARE_CONNECTIONS
        _open_files(connections)
        return connected(self.target, connections)


def _elsewhere(connect: Connect, parts: list[Part], progress: Progress | None) -> list[Outcome]:
    """Each part in a process of its own; all begin at the same moment of the clock that they share."""
    context = multiprocessing.get_context("spawn")
    workers = []
    try:
        for part in parts:
            ours, theirs = context.Pipe()
            counts = context.Array("q", 2, lock=False)
            process = context.Process(target=_work, args=(theirs, connect, part, counts), daemon=True)
            process.start()
            theirs.close()
            workers.append((process, ours, counts))
        for _, pipe, _ in workers:
            if not pipe.poll(START_SECONDS):
                raise PolyvoxError("A process of the benchmark did not start")
            _received(pipe)
        begin = time.monotonic() + SETTLE_SECONDS
        for _, pipe, _ in workers:
            pipe.send(begin)
        outcomes: list[Outcome | None] = [None] * len(workers)
        while None in outcomes:
            for number, (_, pipe, _) in enumerate(workers):
                if outcomes[number] is None and pipe.poll(TICK_SECONDS / len(workers)):
                    outcomes[number] = _received(pipe)
            if progress is not None:
                done, under_way = (sum(counts[i] for _, _, counts in workers) for i in (0, 1))
                progress(time.monotonic() - begin, done, under_way)
        return [out for out in outcomes if out is not None]
    finally:
        for process, pipe, _ in workers:
            pipe.close()
            process.terminate()
            process.join()


def _received(pipe: Connection) -> Outcome | None:
    """What a process has sent: None when it is ready, then its outcome."""
    try:
        got: Outcome | Exception | None = pipe.recv()
    except EOFError:
        raise PolyvoxError("A process of the benchmark has died; run again with --processes 1 to see why") from None
    if isinstance(got, Exception):
        raise got
    return got


def _work(pipe: Connection, connect: Connect, part: Part, counts: Counts) -> None:
    async def go() -> Outcome:
        async with connect() as client:
            gc.freeze()  # a collector that searches everything would be heard as a late packet
            pipe.send(None)
            return await _Run(client, part, pipe.recv(), counts).run()

    try:
        pipe.send(asyncio.run(go()))
    except PolyvoxError as error:
        pipe.send(error)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass  # the other side has gone, and nobody asks any more


def rounded(traces: list[Trace]) -> list[Trace]:
    """The same without what only a computer needs: microseconds are exact enough for a file."""
    return [
        replace(
            trace,
            scheduled=round(trace.scheduled, 6),
            sent=round(trace.sent, 6),
            first_byte=None if trace.first_byte is None else round(trace.first_byte, 6),
            ended=round(trace.ended, 6),
            arrivals=[(round(when, 6), count) for when, count in trace.arrivals],
        )
        for trace in traces
    ]
