# SPDX-License-Identifier: Apache-2.0
"""The simulated model of the mixed soak on a real engine: its audio identifies the request."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import Loaded
from engine.synthesis import read_all
from polyvox.audio.samples import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.models.request import ClonedVoice, Request
from soak.mixed_soak import START_TIMEOUT, SoakServer, running_server
from soak.simulated_model import SAMPLES_PER_FRAME, SimulatedModel

TEXT = "hello there, the others"


@pytest.fixture
def engine(loaded: Loaded) -> Iterator[LocalEngine]:
    running = LocalEngine(SimulatedModel(loaded("base", "float32").model), EngineConfig(max_streams=4, context=512))
    yield running
    running.close()


def request(engine: LocalEngine, seed: int, segment: int = 0, live: bool = False) -> Request:
    voice = ClonedVoice(np.zeros(engine.info().hidden_size, np.float32))
    return Request("hel" if live else TEXT, voice=voice, seed=seed, segment=segment, live=live)


def speak(engine: LocalEngine, seed: int, segment: int = 0) -> Samples:
    return read_all(engine.submit(request(engine, seed, segment)))


def test_equal_requests_give_equal_audio_and_others_do_not(engine: LocalEngine) -> None:
    first = speak(engine, 1)
    together = [engine.submit(request(engine, seed)) for seed in (1, 2, 1)]
    same, other, again = map(read_all, together)
    assert np.array_equal(first, same)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, speak(engine, 1, segment=1))


def test_every_frame_of_a_stream_differs(engine: LocalEngine) -> None:
    frames = speak(engine, 3).reshape(-1, SAMPLES_PER_FRAME)
    assert len({frame.tobytes() for frame in frames}) == len(frames) > len(TEXT) / 2


def test_live_text_is_spoken_to_its_end(engine: LocalEngine) -> None:
    stream = engine.submit(request(engine, 1, live=True))
    for piece in (TEXT[3:9], TEXT[9:]):
        stream.append(piece)
    stream.finish_text()
    samples = read_all(stream)
    assert len(samples) >= len(speak(engine, 1))
    assert stream.result is not None
    assert stream.result.finish_reason == "stop"


@pytest.mark.slow
def test_the_simulated_server_starts(tmp_path: Path) -> None:
    async def check(server: SoakServer) -> None:
        await server.wait_until_ready(START_TIMEOUT)
        assert await server.model_name() == "simulated"

    with running_server(tmp_path, "simulated") as server:
        asyncio.run(check(server))
        assert len(server.tree.of_role("server")) == 2
        assert len(server.tree.of_role("engine")) == 1
