"""Whole runs in real time: several processes, and the engine in this one."""

from collections.abc import Iterator
from functools import partial

import pytest

from bench.fake_server import FakeServer, SegmentQueue, serving, tone
from polyvox.bench.clients import Target
from polyvox.bench.inprocess import EngineClient, engine_client
from polyvox.bench.load import Load, lag_of, run, run_here
from polyvox.bench.prompts import prompts
from polyvox.bench.summary import summarise
from polyvox.tts import TTS


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer(standard=SegmentQueue([(0.02, tone(100)), (0.02, tone(100))]))) as served:
        yield served


def test_several_processes_make_one_run(server: FakeServer) -> None:
    load = Load("closed", 4, seconds=30, warmup=0.1, requests=10)
    ticks: list[tuple[int, int]] = []
    found, lag = run(
        Target(server.address), load, prompts(), 2, lambda _elapsed, done, under_way: ticks.append((done, under_way))
    )
    summary = summarise(found)
    assert (summary.requests, summary.succeeded) == (10, 10), summary.errors
    assert sorted(trace.index for trace in found if trace.measured) == list(range(10))
    assert [trace.sent for trace in found] == sorted(trace.sent for trace in found)
    assert lag.processes == 2
    assert lag.loop is not None
    assert lag.loop.count > 0
    assert ticks[-1] == (len(found), 0)


def test_each_of_several_processes_may_have_a_request_under_way(server: FakeServer) -> None:
    load = Load("open", 10.0, seconds=0.6, warmup=0.0, max_in_flight=1)
    found, _ = run(Target(server.address), load, prompts(), 2)
    assert summarise(found).succeeded > 0


def test_an_error_of_another_process_is_told_here() -> None:
    found, _ = run(Target("http://127.0.0.1:9"), Load("closed", 2, requests=2, warmup=0.0), ("Say it.",), 2)
    assert {trace.error for trace in found} == {"connect"}


def test_one_process_reads_in_this_one(server: FakeServer) -> None:
    ticks: list[float] = []
    load = Load("open", 40.0, seconds=0.5, warmup=0.1)
    found, lag = run(Target(server.address), load, prompts(), 1, lambda now, *_: ticks.append(now))
    assert {trace.error for trace in found} == {None}
    assert ticks
    assert lag.processes == 1


def test_the_engine_in_process_speaks_utterances_of_a_forced_length(embedded: TTS) -> None:
    sampling = embedded.speech.config.sampling
    client = EngineClient(embedded.engine, sampling, frames=6)
    load = Load("closed", 2, warmup=0.0, requests=4, seconds=60)
    out = run_here(partial(engine_client, client), load, prompts())
    summary = summarise(out.traces)
    assert summary.succeeded == 4, summary.errors
    assert {trace.samples for trace in out.traces} == {6 * embedded.speech.samples_per_frame}
    assert lag_of([out]).cpu > 0
    assert summary.peak == 2


def test_what_the_engine_refuses_is_a_failure_by_its_code(embedded: TTS) -> None:
    client = EngineClient(embedded.engine, embedded.speech.config.sampling, voice="nobody")
    out = run_here(partial(engine_client, client), Load("closed", 1, requests=1, warmup=0.0), prompts())
    assert [trace.error for trace in out.traces] == ["invalid_request"]
