"""The real engine in a process of its own: the same speech, and the same mercy for everyone else when it dies."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import Loaded
from engine.speaking import PATIENCE, request, solo
from polyvox.engine.config import EngineConfig
from polyvox.engine.local import LocalEngine
from polyvox.engine.remote import RemoteEngine, RemoteStream
from polyvox.engine.supervisor import EngineProcess
from polyvox.errors import EngineDown, InvalidRequest, StreamFailed
from polyvox.models.request import ClonedVoice, Request
from polyvox.tts import load

ROUNDING = 1 / 32767  # samples cross as 16 bits


def build(folder: Path) -> LocalEngine:
    return load(folder, device="cpu", dtype="float64", config=EngineConfig(slots=3)).engine


@pytest.fixture(scope="module")
def process(checkpoints: Path) -> Iterator[EngineProcess]:
    with EngineProcess(partial(build, checkpoints / "custom_voice")) as running:
        yield running


@pytest.fixture
def engine(process: EngineProcess) -> Iterator[RemoteEngine]:
    remote = RemoteEngine(process.door)
    yield remote
    remote.close()


def submit_when_up(engine: RemoteEngine, asked: Request) -> RemoteStream:
    """Comes back as long as it is told to, and looks more often than it is told to."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return engine.submit(asked)
        except EngineDown:
            assert time.monotonic() < until
            threading.Event().wait(0.05)


def test_speech_from_another_process_is_the_same(engine: RemoteEngine, loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float64").speech
    asked = [request(voice=voice, seed=seed) for voice in ("serena", "vivian") for seed in (1, 2)]
    streams = [engine.submit(one) for one in asked]
    for stream, one in zip(streams, asked, strict=True):
        samples = np.concatenate([chunk.samples for chunk in stream.chunks(PATIENCE)])
        np.testing.assert_allclose(samples, solo(speech, one), atol=ROUNDING)
        assert stream.result is not None
        assert stream.result.finish_reason in ("stop", "length")


def test_live_text_crosses_the_border(engine: RemoteEngine, loaded: Loaded) -> None:
    text = "the other assistant, the other user"
    stream = engine.submit(request("the oth", live=True, guard=False))
    stream.append("er assistant, the")
    stream.append(" other user")
    stream.finish_text()
    samples = np.concatenate([chunk.samples for chunk in stream.chunks(PATIENCE)])
    whole = solo(loaded("custom_voice", "float64").speech, request(text, layout="streaming", guard=False))
    np.testing.assert_allclose(samples, whole, atol=ROUNDING)


def test_a_bad_request_is_refused_as_it_is_at_home(engine: RemoteEngine) -> None:
    with pytest.raises(InvalidRequest, match="serena, eric, vivian") as caught:
        engine.submit(Request("hello", "nobody"))
    assert caught.value.field == "voice"
    with pytest.raises(InvalidRequest, match="only Base models clone"):
        engine.submit(Request("hello", ClonedVoice(np.zeros(48, np.float32))))


def test_an_engine_that_dies_is_replaced(process: EngineProcess, engine: RemoteEngine) -> None:
    stream = engine.submit(request(live=True, frames=200))
    before = process.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    with pytest.raises(StreamFailed):
        list(stream.chunks(PATIENCE))
    again = submit_when_up(engine, request())
    assert sum(len(chunk.samples) for chunk in again.chunks(PATIENCE)) > 0
    assert process.pid != before
