# SPDX-License-Identifier: Apache-2.0
"""CPU time of the connection between a server process and the engine's process, per call and per chunk.

    python benchmarks/ipc_cost.py --streams 256 --steps 200

The engine has no model: each step gives every stream one chunk of 80 ms. CPU time is used instead of wall time, so the
figures hold on a busy machine.
"""

import argparse
import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from polyvox.audio.pcm import Pcm
from polyvox.audio.samples import Samples
from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_lock import try_lock
from polyvox.engine.interface import Chunk, OnReady, Result, Stream
from polyvox.errors import NOT_SHOWN
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.request import ClonedVoice, Request, Sampling

SAMPLE_RATE = 24_000
CHUNK: Pcm = np.zeros(1920, np.int16)
INFO = ModelInfo(
    ModelIdentity("none", "none"),
    voices=(),
    languages=("auto",),
    takes_instructions=False,
    designs_voices=False,
    hidden_size=1,
    frame_seconds=0.08,
    sampling=Sampling(),
)
NUM_CALLS = 2000


class PacedStream:
    """A stream that the engine fills with one chunk per step."""

    def __init__(self, on_ready: OnReady | None, num_chunks: int) -> None:
        self._num_chunks, self.on_ready = num_chunks, on_ready
        self.seed, self.awaits_text = 0, False
        self.result: Result | None = None
        self.buffer: deque[Chunk] = deque()
        self._index = 0

    def step(self) -> None:
        final = self._index + 1 == self._num_chunks
        self.buffer.append(Chunk(CHUNK, self._index, final))
        self._index += 1
        if final:
            self.result = Result("stop", 0)

    def cancel(self) -> None:
        pass


class PacedEngine:
    """Steps all streams at a fixed rate once `expected` of them are submitted."""

    sample_rate = SAMPLE_RATE

    def __init__(self, expected: int, period: float) -> None:
        self._expected, self._period = expected, period
        self._streams: list[PacedStream] = []
        self._lock = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, request: Request, on_ready: OnReady | None = None) -> PacedStream:
        stream = PacedStream(on_ready, request.max_frames or 1)
        with self._lock:
            self._streams.append(stream)
        return stream

    def take_all(self, wanted: Sequence[tuple[PacedStream, int]]) -> list[list[Chunk]]:
        with self._lock:
            return [[s.buffer.popleft() for _ in range(min(limit, len(s.buffer)))] for s, limit in wanted]

    def submit_inline(self, request: Request, on_ready: OnReady | None = None) -> PacedStream | None:
        with self.try_lock(0.0) as locked:
            return self.submit(request, on_ready) if locked else None

    def try_lock(self, timeout: float) -> AbstractContextManager[bool]:
        return try_lock(self._lock, timeout)

    def current_load(self) -> EngineLoad:
        with self._lock:
            num_streams = len(self._streams)
        return EngineLoad(time.monotonic(), self._expected, self._expected - num_streams, num_streams=num_streams)

    def stats(self) -> dict[str, float]:
        return {"cpu": time.process_time()}

    broken: str | None = None

    def info(self) -> ModelInfo:
        return INFO

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:  # noqa: ARG002
        raise INFO.unsupported("recording", NOT_SHOWN, "can_clone")

    def close(self) -> None:
        pass

    def _run(self) -> None:
        while True:
            time.sleep(self._period)
            with self._lock:
                streams = list(self._streams) if len(self._streams) >= self._expected else []
                for stream in streams:
                    stream.step()
                self._streams = [stream for stream in self._streams if stream.result is None]
            by_callback: dict[OnReady, list[PacedStream]] = {}
            for stream in streams:
                if stream.on_ready is not None:
                    by_callback.setdefault(stream.on_ready, []).append(stream)
            for on_ready, ready in by_callback.items():
                on_ready(ready)  # type: ignore[arg-type]


async def measure(process: EngineProcess, num_streams: int, num_steps: int) -> None:
    engine = AsyncRemoteEngine(process.endpoint)

    async def read(stream: Stream) -> int:
        return sum([1 async for _ in stream])

    before, mine = (await engine.stats())["cpu"], time.process_time()
    wall = time.perf_counter()
    for _ in range(NUM_CALLS):
        after = (await engine.stats())["cpu"]
    wall = time.perf_counter() - wall
    calls = [1e6 * each / NUM_CALLS for each in (wall, after - before, time.process_time() - mine)]
    streams = [await engine.submit(Request("text", max_frames=num_steps)) for _ in range(num_streams)]
    before, mine = (await engine.stats())["cpu"], time.process_time()
    chunks = sum(await asyncio.gather(*(read(stream) for stream in streams)))  # type: ignore[arg-type]
    after = (await engine.stats())["cpu"]
    cost = [1e6 * each / chunks for each in (after - before, time.process_time() - mine)]
    sys.stdout.write(
        f"call: round trip {calls[0]:.0f} us, CPU of the engine {calls[1]:.0f} us, of the server {calls[2]:.0f} us\n"
        f"chunk: CPU of the engine {cost[0]:.1f} us, of the server {cost[1]:.1f} us ({chunks} chunks)\n"
    )
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--period", type=float, default=0.04, help="seconds between two steps")
    given = parser.parse_args()
    with EngineProcess(partial(PacedEngine, given.streams, given.period)) as process:  # type: ignore[arg-type]
        asyncio.run(measure(process, given.streams, given.steps))


if __name__ == "__main__":
    main()
