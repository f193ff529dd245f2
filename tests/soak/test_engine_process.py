"""The real engine's process for longer than `make test` has time for; run by `make soak`."""

import itertools
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conftest import Loaded
from engine.speaking import request
from ipc.engine_processes import TIMEOUT, children, eventually, folders
from ipc.speech_processes import ENDLESS, SLOTS, assert_survives_a_kill, build
from polyvox.ipc.client import RemoteEngine, RemoteStream
from polyvox.ipc.supervisor import EngineProcess
from polyvox.ipc.worker import EngineProcessConfig

KILLS = 20
STREAMS = 1000
CROWD = 8  # streams at once: more than there are slots, so that some are cancelled while they wait
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GROWTH = 4 << 20  # bytes that a thousand streams may cost, where one of them holds about 100 kB while it runs


@pytest.fixture
def process(checkpoints: Path) -> Iterator[EngineProcess]:
    before = children(), folders()
    hosting = EngineProcessConfig(failures=2 * KILLS)
    with EngineProcess(partial(build, checkpoints / "custom_voice", "float32"), hosting) as running:
        yield running
    assert (children(), folders()) == before


def test_an_engine_that_is_killed_twenty_times_serves_the_next_request(process: EngineProcess, loaded: Loaded) -> None:
    engine = RemoteEngine(process.door)
    for _ in range(KILLS):
        assert_survives_a_kill(process, engine, loaded("custom_voice", "float32").speech)
    engine.close()


def resident(process: EngineProcess) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def cancel_many(engine: RemoteEngine, count: int, chance: random.Random) -> None:
    """Each in its own moment: while it waits for a place or for text, after some chunks, by going away."""
    crowd: list[tuple[RemoteStream, bool]] = []
    for seed in range(count):
        live = chance.random() < 0.3
        stream = engine.submit(request("the other ", seed=seed, frames=ENDLESS, guard=False, live=live))
        if live and chance.random() < 0.5:
            stream.append("assistant, the ")
        crowd.append((stream, live))
        if len(crowd) == CROWD and chance.random() < 0.3:
            crowd.pop()[0].cancel()  # there are more than there are slots
        elif len(crowd) == CROWD:
            oldest, waits = crowd.pop(0)  # so it has a slot, or will
            list(itertools.islice(oldest.chunks(TIMEOUT), chance.randrange(2 if waits else 6)))
            oldest.cancel()
    for stream, _ in crowd:
        stream.cancel()
    eventually(lambda: engine.stats()["slots_free"] == SLOTS and engine.stats()["waiting"] == 0)


def test_a_thousand_cancelled_streams_cost_no_memory_and_no_slot(process: EngineProcess) -> None:
    engine, chance = RemoteEngine(process.door), random.Random(1)
    cancel_many(engine, STREAMS // 4, chance)
    before, stats = resident(process), engine.stats()
    cancel_many(engine, STREAMS, chance)
    after = engine.stats()
    assert resident(process) - before < GROWTH
    assert after["pages_free"] == stats["pages_free"]
    assert after["streams"] == after["waiting"] == 0
    assert after["finished_cancelled"] - stats["finished_cancelled"] > STREAMS / 2
    engine.close()
