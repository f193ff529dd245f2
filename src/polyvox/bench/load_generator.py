# SPDX-License-Identifier: Apache-2.0
"""The load generator: starts requests in a closed or open loop, in one process or several."""

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection
from typing import Protocol

from polyvox.bench.clients import Client, ServerTarget, connect, synthesise_with_timeout
from polyvox.bench.load import ClientLag, Load, LoadShard
from polyvox.bench.metrics import DROPPED, RequestTrace, play
from polyvox.bench.prompts import Phase, poisson_arrivals, request_seed
from polyvox.bench.receiver import Clock, RequestFailed
from polyvox.bench.summary import distribution
from polyvox.errors import PolyvoxError

LAG_INTERVAL = 0.01  # seconds between measurements of the event loop lag
PROGRESS_INTERVAL = 0.25
START_DELAY = 0.2  # seconds from when all processes are ready to the start of the run
PROCESS_START_TIMEOUT = 60
SPARE_CONNECTIONS = 8
FAILURE_INTERVAL = 1.0  # minimum seconds between two requests of a stream if the first one failed


@dataclass(slots=True)
class ShardResult:
    """The result of one shard."""

    traces: list[RequestTrace] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    cpu: float = 0.0


class ProgressCallback(Protocol):
    def __call__(self, elapsed: float, completed: int, in_flight: int) -> None: ...


class SharedCounters(Protocol):
    """Two integers, which may be shared with another process: completed requests, requests in flight."""

    def __getitem__(self, index: int) -> int: ...
    def __setitem__(self, index: int, value: int) -> None: ...


COMPLETED, IN_FLIGHT = 0, 1  # indices of SharedCounters

ClientFactory = Callable[[], AbstractAsyncContextManager[Client]]


class _ShardRunner:
    """Generates the load of one shard."""

    def __init__(self, client: Client, shard: LoadShard, begin: float, counters: SharedCounters) -> None:
        self.client, self.shard, self.load, self.counters = client, shard, shard.load, counters
        self.result = ShardResult()
        clock = asyncio.get_running_loop().time  # monotonic, and the same in all processes of a machine
        self.now: Clock = lambda: clock() - begin

    async def run(self) -> ShardResult:
        await self._sleep_until(0.0)
        monitor = asyncio.create_task(self._measure_lag())
        cpu = time.thread_time()
        try:
            await (self._closed_loop() if self.load.is_closed else self._open_loop())
        finally:
            monitor.cancel()
        self.result.cpu = (time.thread_time() - cpu) / max(self.now(), 1e-9)
        return self.result

    async def _closed_loop(self) -> None:
        load, shard = self.load, self.shard
        warmup, measured = shard.jobs("warm-up"), shard.jobs("measured")
        remaining = shard.num_prompts
        end = load.warmup + load.seconds if remaining is None else inf
        streams = int(load.level)

        async def stream(number: int) -> None:
            nonlocal remaining
            await self._sleep_until(load.ramp * number / streams)
            while (now := self.now()) < load.warmup:
                await self._send_and_wait(shard.new_trace(next(warmup), False, now), end)
            started = False
            while remaining != 0 and ((now := self.now()) < end or not started):
                remaining, started = None if remaining is None else remaining - 1, True
                await self._send_and_wait(shard.new_trace(next(measured), True, now), end)

        await asyncio.gather(*(stream(number) for number in range(shard.number, streams, shard.of)))

    async def _open_loop(self) -> None:
        max_in_flight = -(-self.load.max_in_flight // self.shard.of)
        async with asyncio.TaskGroup() as group:
            for trace in self._open_loop_schedule():
                await self._sleep_until(trace.scheduled)
                if self.counters[IN_FLIGHT] >= max_in_flight:
                    trace.sent = trace.ended = self.now()
                    trace.error = DROPPED
                    self.result.traces.append(trace)
                else:
                    group.create_task(self._send(trace))

    def _open_loop_schedule(self) -> list[RequestTrace]:
        load, shard = self.load, self.shard
        warmup = poisson_arrivals(load.level, load.warmup, load.seed, "warm-up") if load.warmup else []
        seconds = load.seconds if load.num_prompts is None else inf
        measured = poisson_arrivals(load.level, seconds, load.seed, "measured", load.num_prompts)
        phases: tuple[tuple[Phase, list[float], float], ...]
        phases = (("warm-up", warmup, 0.0), ("measured", measured, load.warmup))
        return [
            shard.new_trace(job, phase == "measured", start + when)
            for phase, times, start in phases
            for when, job in zip(times[shard.number :: shard.of], shard.jobs(phase), strict=False)  # jobs are endless
        ]

    async def _send(self, trace: RequestTrace) -> None:
        self.result.traces.append(trace)
        self.counters[IN_FLIGHT] += 1
        trace.sent = self.now()
        text, seed = self.shard.texts[trace.prompt], request_seed(self.load.seed, trace.index)
        try:
            await synthesise_with_timeout(self.load.timeout, self.client, text, seed, trace, self.now)
        except RequestFailed as failure:
            trace.error, trace.detail = failure.kind, failure.detail
            trace.ended = self.now()
        self.counters[IN_FLIGHT] -= 1
        self.counters[COMPLETED] += 1

    async def _send_and_wait(self, trace: RequestTrace, end: float) -> None:
        """Waits after a failure: retrying a fast rejection at once would flood the server. A listener plays the audio,
        until the end of the run.
        """
        await self._send(trace)
        if trace.error is not None:
            await self._sleep_until(trace.sent + FAILURE_INTERVAL)
        elif self.load.mode == "listeners" and (playback := play(trace.arrivals, trace.sample_rate, trace.ended)):
            await self._sleep_until(min(playback.played_at(trace.samples), end))

    async def _measure_lag(self) -> None:
        """Repeatedly measures how late the event loop wakes up."""
        while True:
            before = self.now()
            await asyncio.sleep(LAG_INTERVAL)
            self.result.lags.append(max(0.0, self.now() - before - LAG_INTERVAL))

    async def _sleep_until(self, when: float) -> None:
        if (rest := when - self.now()) > 0:
            await asyncio.sleep(rest)


async def run_shard(
    new_client: ClientFactory, shard: LoadShard, counters: SharedCounters, progress: ProgressCallback | None = None
) -> ShardResult:
    """Runs one shard in the current event loop."""
    async with new_client() as client:
        clock = asyncio.get_running_loop().time
        begin = clock() + START_DELAY
        if progress is None:
            return await _ShardRunner(client, shard, begin, counters).run()
        task = asyncio.create_task(_ShardRunner(client, shard, begin, counters).run())
        try:
            while not task.done():
                await asyncio.wait([task], timeout=PROGRESS_INTERVAL)
                progress(clock() - begin, counters[COMPLETED], counters[IN_FLIGHT])
        finally:
            task.cancel()
        return await task


def run_in_process(
    new_client: ClientFactory, load: Load, texts: tuple[str, ...], progress: ProgressCallback | None = None
) -> ShardResult:
    """Runs a load in this process, with any client."""
    load.check()
    return asyncio.run(run_shard(new_client, LoadShard(load, texts), [0, 0], progress))


def run_on_server(
    target: ServerTarget,
    load: Load,
    texts: tuple[str, ...],
    processes: int = 1,
    progress: ProgressCallback | None = None,
) -> tuple[list[RequestTrace], ClientLag]:
    """Runs a load on a server. Returns the traces in the order of their start, and the client's lag."""
    target.check()
    return run_in_processes(_ServerClientFactory(target, load, processes), load, texts, processes, progress)


def run_in_processes(
    new_client: ClientFactory,
    load: Load,
    texts: tuple[str, ...],
    processes: int = 1,
    progress: ProgressCallback | None = None,
) -> tuple[list[RequestTrace], ClientLag]:
    """Runs a load with any client whose factory can be pickled."""
    load.check()
    if load.is_closed:
        processes = min(processes, int(load.level))
    if processes == 1:
        results = [run_in_process(new_client, load, texts, progress)]
    else:
        shards = [LoadShard(load, texts, number, processes) for number in range(processes)]
        results = _run_shards(new_client, shards, progress)
    traces = sorted((trace for result in results for trace in result.traces), key=lambda trace: trace.sent)
    return traces, client_lag(results)


def client_lag(results: list[ShardResult], processes: int | None = None) -> ClientLag:
    """The lag of the worst client process."""
    loops = [found for result in results if (found := distribution(result.lags))]
    worst = max(loops, key=lambda found: found.p99, default=None)
    return ClientLag(worst, max(result.cpu for result in results), len(results) if processes is None else processes)


@dataclass(frozen=True, slots=True)
class _ServerClientFactory:
    """Connects to a server; picklable."""

    target: ServerTarget
    load: Load
    processes: int

    def __call__(self) -> AbstractAsyncContextManager[Client]:
        streams = self.load.level if self.load.is_closed else self.load.max_in_flight
        connections = -(-int(streams) // self.processes) + SPARE_CONNECTIONS
        _raise_file_limit(connections)
        return connect(self.target, connections)


def _raise_file_limit(connections: int) -> None:
    """Raises the limit of open files, up to the hard limit, if the connections need it."""
    try:
        import resource
    except ImportError:  # not Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _run_shards(
    new_client: ClientFactory, shards: list[LoadShard], progress: ProgressCallback | None
) -> list[ShardResult]:
    """Runs each shard in its own process; all start at the same time of the shared clock."""
    context = multiprocessing.get_context("spawn")
    workers = []
    try:
        for shard in shards:
            parent, child = context.Pipe()
            counters = context.Array("q", 2, lock=False)
            process = context.Process(target=_worker, args=(child, new_client, shard, counters), daemon=True)
            process.start()
            child.close()
            workers.append((process, parent, counters))
        for _, pipe, _ in workers:
            if not pipe.poll(PROCESS_START_TIMEOUT):
                raise PolyvoxError("A benchmark client process did not start.")
            _receive(pipe)
        begin = time.monotonic() + START_DELAY
        for _, pipe, _ in workers:
            pipe.send(begin)
        results: list[ShardResult | None] = [None] * len(workers)
        while None in results:
            for number, (_, pipe, _) in enumerate(workers):
                if results[number] is None and pipe.poll(PROGRESS_INTERVAL / len(workers)):
                    results[number] = _receive(pipe)
            if progress is not None:
                completed, in_flight = (sum(each[i] for _, _, each in workers) for i in (COMPLETED, IN_FLIGHT))
                progress(time.monotonic() - begin, completed, in_flight)
        return [result for result in results if result is not None]
    finally:
        for process, pipe, _ in workers:
            pipe.close()
            process.terminate()
            process.join()


def _receive(pipe: Connection) -> ShardResult | None:
    """A message of a worker: None when it is ready, then its result."""
    try:
        message: ShardResult | Exception | None = pipe.recv()
    except EOFError:
        raise PolyvoxError("A benchmark client process died. Use --processes 1 to see the error.") from None
    if isinstance(message, Exception):
        raise message
    return message


def _worker(pipe: Connection, new_client: ClientFactory, shard: LoadShard, counters: SharedCounters) -> None:
    async def run() -> ShardResult:
        async with new_client() as client:
            gc.freeze()  # a full garbage collection would be measured as a late packet
            pipe.send(None)
            return await _ShardRunner(client, shard, pipe.recv(), counters).run()

    try:
        pipe.send(asyncio.run(run()))
    except PolyvoxError as error:
        pipe.send(error)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass  # the parent process has exited
