# SPDX-License-Identifier: Apache-2.0
"""The real engine's process under many kills and cancellations; run by `make soak`."""

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conftest import Loaded
from engine.synthesis import request
from ipc.engine_processes import QUICK_RESTARTS, becomes_true, children, folders
from ipc.speech_processes import MAX_FRAMES, SLOTS, assert_survives_a_kill, build
from polyvox.ipc.client import AsyncRemoteEngine, AsyncRemoteStream
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess

NUM_KILLS = 20
NUM_STREAMS = 1000
CONCURRENT_STREAMS = 8  # more than there are slots, so that some are cancelled in the queue
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_GROWTH = 4 << 20  # bytes that a thousand streams may cost; a running one holds about 100 kB
pytestmark = pytest.mark.anyio


@pytest.fixture
def process(checkpoints: Path) -> Iterator[EngineProcess]:
    before = children(), folders()
    config = EngineProcessConfig(restarts=QUICK_RESTARTS)
    with EngineProcess(partial(build, checkpoints / "custom_voice", "float32"), config) as running:
        yield running
    assert (children(), folders()) == before


async def test_an_engine_that_is_killed_twenty_times_serves_the_next_request(
    process: EngineProcess, loaded: Loaded
) -> None:
    engine = AsyncRemoteEngine(process.endpoint)
    for _ in range(NUM_KILLS):
        await assert_survives_a_kill(process, engine, loaded("custom_voice", "float32").model)
    await engine.close()


def resident_bytes(process: EngineProcess) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def read_some(stream: AsyncRemoteStream, num_chunks: int) -> None:
    if num_chunks:
        async for chunk in stream:
            if chunk.index + 1 >= num_chunks:
                break


async def cancel_many(engine: AsyncRemoteEngine, count: int, chance: random.Random) -> None:
    """Cancels each stream at its own moment: in the queue, while it waits for text, after some chunks."""
    open_streams: list[tuple[AsyncRemoteStream, bool]] = []
    for seed in range(count):
        live = chance.random() < 0.3
        stream = await engine.submit(request("the other ", seed=seed, frames=MAX_FRAMES, guard=False, live=live))
        if live and chance.random() < 0.5:
            stream.append("assistant, the ")
        open_streams.append((stream, live))
        if len(open_streams) == CONCURRENT_STREAMS and chance.random() < 0.3:
            open_streams.pop()[0].cancel()  # it is still in the queue
        elif len(open_streams) == CONCURRENT_STREAMS:
            oldest, awaits_text = open_streams.pop(0)  # it has a slot, or gets one
            await read_some(oldest, chance.randrange(2 if awaits_text else 6))
            oldest.cancel()
    for stream, _ in open_streams:
        stream.cancel()

    async def idle() -> bool:
        stats = await engine.stats()
        return stats["slots_free"] == SLOTS and stats["waiting"] == 0

    await becomes_true(idle)


async def test_a_thousand_cancelled_streams_cost_no_memory_and_no_slot(process: EngineProcess) -> None:
    engine, chance = AsyncRemoteEngine(process.endpoint), random.Random(1)
    await cancel_many(engine, NUM_STREAMS // 4, chance)
    before, stats = resident_bytes(process), await engine.stats()
    await cancel_many(engine, NUM_STREAMS, chance)
    after = await engine.stats()
    assert resident_bytes(process) - before < MAX_GROWTH
    assert after["pages_free"] == stats["pages_free"]
    assert after["streams"] == after["waiting"] == 0
    assert after["finished_cancelled"] - stats["finished_cancelled"] > NUM_STREAMS / 2
    await engine.close()
