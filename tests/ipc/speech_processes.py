# SPDX-License-Identifier: Apache-2.0
"""The real engine in another process, and what must hold when it is killed."""

from pathlib import Path

import numpy as np

from engine.synthesis import request, solo_samples
from ipc.engine_processes import TIMEOUT, TOLERANCE, assert_lost, children, read_samples, restarted, send
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.tts import load

SLOTS = 3
MAX_FRAMES = 255  # of a tiny model: more chunks than credit, so that an unread stream does not end


def build(folder: Path, dtype: str) -> LocalEngine:
    config = EngineConfig(max_streams=SLOTS, max_queue_seconds=TIMEOUT, pcm=True)
    return load(folder, device="cpu", dtype=dtype, config=config).detach_engine()


async def assert_survives_a_kill(process: EngineProcess, engine: AsyncRemoteEngine, speech: Qwen3TTSModel) -> None:
    """Streams that run, wait for text and wait in the queue all fail; the next request is served."""
    before = children()
    running = [await engine.submit(request(seed=seed, frames=MAX_FRAMES, guard=False)) for seed in range(2)]
    awaiting_text = await engine.submit(request(live=True))
    queued = await engine.submit(request())
    readers = {stream: aiter(stream) for stream in (*running, awaiting_text, queued)}
    for stream in running:
        assert (await anext(readers[stream])).index == 0
    killed = send(process)
    for stream, reader in readers.items():
        await assert_lost(stream, reader)
    await restarted(process, killed, engine)
    assert len(children()) == len(before)
    assert killed not in children()
    asked = request(seed=killed % 5)
    samples = await read_samples(await engine.submit(asked))
    np.testing.assert_allclose(samples, solo_samples(speech, asked), atol=TOLERANCE)
