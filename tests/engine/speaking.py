"""What tests of an engine do with streams."""

from functools import cache
from typing import Any

import numpy as np

from polyvox.audio.clip import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.local import LocalEngine
from polyvox.engine.stream import LocalStream
from polyvox.models.qwen3_tts.speech import Speech
from polyvox.models.request import Request

PATIENCE = 60  # seconds that no test should need


def spoken(stream: LocalStream) -> Samples:
    """All samples of a stream, its chunks in order and its end told once."""
    chunks = list(stream.chunks(PATIENCE))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])


@cache
def solo(speech: Speech, request: Request) -> Samples:
    """What a request says alone on an engine that nobody else ever used."""
    engine = LocalEngine(speech, EngineConfig(slots=1))
    try:
        return spoken(engine.submit(request))
    finally:
        engine.close()


def assert_all_free(engine: LocalEngine) -> None:
    """Nothing is held, at the latest a step after the last stream's end."""
    with engine.lock:
        assert engine._work.wait_for(lambda: not engine._streams, PATIENCE)
    stats = engine.stats()
    assert stats["streams"] == stats["waiting"] == 0
    assert stats["slots_free"] == engine.config.slots
    assert stats["pages_free"] == engine.config.pages == engine.scheduler.pages_free
    assert sorted(engine._stepper.free_slots) == list(range(engine.config.slots))
    assert sorted(engine._stepper.free_pages) == list(range(1, engine.config.pages + 1))


def request(text: str = "hello there", voice: str = "serena", seed: int = 1, frames: int = 20, **more: Any) -> Request:
    return Request(text, voice, "english", seed=seed, max_frames=frames, **more)


def wait_for_end(stream: LocalStream) -> None:
    with stream._engine.lock:
        assert stream._ready.wait_for(lambda: stream.result is not None, PATIENCE)
