"""The real engine in a process of its own: the same speech, and the same mercy for everyone else when it dies."""

import itertools
import multiprocessing
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from conftest import Loaded
from engine.speaking import request, solo
from ipc.engine_processes import ROUNDING, TIMEOUT, eventually, spoken, traces
from ipc.speech_processes import ENDLESS, SLOTS, assert_survives_a_kill, build
from polyvox.errors import InvalidRequest, StreamFailed
from polyvox.ipc.client import RemoteEngine, RemoteStream
from polyvox.ipc.messages import EngineEndpoint
from polyvox.ipc.supervisor import EngineProcess
from polyvox.ipc.worker import EngineProcessConfig
from polyvox.models.request import ClonedVoice, Request

SPAWN = multiprocessing.get_context("spawn")
TEXT = "the other assistant, the other user"


@pytest.fixture(scope="module")
def process(checkpoints: Path) -> Iterator[EngineProcess]:
    with EngineProcess(
        partial(build, checkpoints / "custom_voice", "float64"), EngineProcessConfig(failures=100)
    ) as running:
        yield running


@pytest.fixture
def engine(process: EngineProcess) -> Iterator[RemoteEngine]:
    remote = RemoteEngine(process.door)
    yield remote
    remote.close()


def test_speech_from_another_process_is_the_same(engine: RemoteEngine, loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float64").speech
    asked = [request(voice=voice, seed=seed) for voice in ("serena", "vivian") for seed in (1, 2)]
    streams = [engine.submit(one) for one in asked]
    for stream, one in zip(streams, asked, strict=True):
        np.testing.assert_allclose(spoken(stream), solo(speech, one), atol=ROUNDING)
        assert stream.result is not None
        assert stream.result.finish_reason in ("stop", "length")


def test_live_text_crosses_the_border(engine: RemoteEngine, loaded: Loaded) -> None:
    stream = engine.submit(request("the oth", live=True, guard=False))
    stream.append("er assistant, the")
    stream.append(" other user")
    stream.finish_text()
    whole = solo(loaded("custom_voice", "float64").speech, request(TEXT, layout="streaming", guard=False))
    np.testing.assert_allclose(spoken(stream), whole, atol=ROUNDING)


def test_rows_that_another_model_made_say_what_their_text_says(engine: RemoteEngine, loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float64").speech
    rest = speech.tokenizer.text(TEXT)[len(speech.tokenizer.text("the other")) :]
    stream = engine.submit(request("the other ", live=True, guard=False))
    middle = len(rest) // 2
    assert middle
    stream.append_rows(speech.text_rows(rest[:middle], last=False).float().numpy())
    stream.append_rows(speech.text_rows(rest[middle:], last=True).float().numpy(), last=True)
    whole = solo(speech, request(TEXT, layout="streaming", guard=False))
    np.testing.assert_allclose(spoken(stream), whole, atol=ROUNDING)


def test_rows_of_the_wrong_size_end_their_stream_with_a_sentence(engine: RemoteEngine) -> None:
    stream = engine.submit(request("the other ", live=True))
    stream.append_rows(np.zeros((1, 7), np.float32))
    with pytest.raises(StreamFailed, match="rows of 48 finite numbers"):
        spoken(stream)
    eventually(lambda: engine.stats()["slots_free"] == SLOTS)


def test_a_bad_request_is_refused_as_it_is_at_home(engine: RemoteEngine) -> None:
    with pytest.raises(InvalidRequest, match="serena, eric, vivian") as caught:
        engine.submit(Request("hello", "nobody"))
    assert caught.value.field == "voice"
    with pytest.raises(InvalidRequest, match="Base model"):
        engine.submit(Request("hello", ClonedVoice(np.zeros(48, np.float32))))


def listen(door: EngineEndpoint, tell: Connection) -> None:
    """A server process that holds one stream for ever, and asks for another and another."""
    engine = RemoteEngine(door)
    held = engine.submit(request("the other ", live=True))
    for seed in itertools.count():
        for _ in engine.submit(request(seed=seed, frames=ENDLESS, guard=False)).chunks(TIMEOUT):
            tell.send(held.seed)


def test_a_server_that_is_killed_takes_nothing_from_another(
    process: EngineProcess, engine: RemoteEngine, loaded: Loaded
) -> None:
    cancelled = engine.stats().get("finished_cancelled", 0)
    hear, tell = SPAWN.Pipe(duplex=False)
    server = SPAWN.Process(target=listen, args=(process.door, tell))
    server.start()
    assert hear.poll(TIMEOUT)
    asked = request(TEXT, seed=3, frames=ENDLESS, guard=False)
    chunks = engine.submit(asked).chunks(TIMEOUT)
    heard = [next(chunks)]
    server.kill()
    heard += chunks
    server.join(TIMEOUT)
    assert [chunk.index for chunk in heard] == list(range(len(heard)))
    samples = np.concatenate([chunk.samples for chunk in heard])
    np.testing.assert_allclose(samples, solo(loaded("custom_voice", "float64").speech, asked), atol=ROUNDING)
    eventually(lambda: engine.stats()["slots_free"] == SLOTS)
    assert engine.stats()["finished_cancelled"] > cancelled


def test_an_engine_that_is_killed_again_and_again_serves_the_next_request(
    process: EngineProcess, engine: RemoteEngine, loaded: Loaded
) -> None:
    for _ in range(3):
        assert_survives_a_kill(process, engine, loaded("custom_voice", "float64").speech)


def test_the_end_under_load_takes_less_than_two_seconds_and_leaves_nothing(checkpoints: Path) -> None:
    before = traces()
    process = EngineProcess(partial(build, checkpoints / "custom_voice", "float32"))
    pid, engine = process.pid, RemoteEngine(process.door)
    assert pid is not None
    streams = [engine.submit(request(seed=seed, frames=ENDLESS, guard=False)) for seed in range(SLOTS + 2)]
    ends: list[Exception] = []

    def read(stream: RemoteStream) -> None:
        try:
            list(stream.chunks(TIMEOUT))
        except StreamFailed as error:
            ends.append(error)

    readers = [threading.Thread(target=read, args=(stream,)) for stream in streams]
    for reader in readers:
        reader.start()
    eventually(lambda: engine.stats().get("frames", 0) > 10)
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < 2
    for reader in readers:
        reader.join(TIMEOUT)
    assert len(ends) == len(streams)
    engine.close()
    assert not Path(f"/proc/{pid}").exists()
    assert traces() == before
