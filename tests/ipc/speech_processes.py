"""The real engine in another process, and what must hold when that is killed."""

from pathlib import Path

import numpy as np
import pytest

from engine.speaking import request, solo
from ipc.engine_processes import ROUNDING, TIMEOUT, await_another, children, send, spoken
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.errors import StreamFailed
from polyvox.ipc.client import RemoteEngine
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.tts import load

SLOTS = 3
ENDLESS = 255  # frames, the most a tiny model allows: more chunks than credit, so that it does not end unread


def build(folder: Path, dtype: str) -> LocalEngine:
    config = EngineConfig(max_streams=SLOTS, max_queue_seconds=TIMEOUT)
    return load(folder, device="cpu", dtype=dtype, config=config).engine


def assert_survives_a_kill(process: EngineProcess, engine: RemoteEngine, speech: Qwen3TTSModel) -> None:
    """Streams that speak, wait for text and wait for a place: all are told, and the next request is served."""
    before = children()
    speaking = [engine.submit(request(seed=seed, frames=ENDLESS, guard=False)) for seed in range(2)]
    waiting = engine.submit(request(live=True))
    queued = engine.submit(request())
    readers = {stream: stream.chunks(TIMEOUT) for stream in (*speaking, waiting, queued)}
    for stream in speaking:
        assert next(readers[stream]).index == 0
    killed = send(process)
    for stream, reader in readers.items():
        with pytest.raises(StreamFailed, match="ended before this stream did"):
            list(reader)
        assert stream.result is not None
        assert stream.result.finish_reason == "error"
    await_another(process, killed, engine)
    assert len(children()) == len(before)
    assert killed not in children()
    asked = request(seed=killed % 5)
    np.testing.assert_allclose(spoken(engine.submit(asked)), solo(speech, asked), atol=ROUNDING)
