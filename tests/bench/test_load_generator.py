# SPDX-License-Identifier: Apache-2.0
"""Closed and open loops on a virtual clock; then in real time, with several processes and with the engine."""

from collections.abc import Iterator
from functools import partial

import pytest

from bench.fake_server import FakeServer, Script, run_virtual, scripted_traces, serving, tone
from polyvox.bench.clients import ServerTarget, connect
from polyvox.bench.engine_client import EngineClient, engine_client
from polyvox.bench.load import Load, LoadShard, Mode
from polyvox.bench.load_generator import client_lag, run_in_process, run_on_server, run_shard
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.prompts import prompts
from polyvox.bench.summary import Summary, summarise
from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.errors import InvalidRequest
from polyvox.tts import TTS

pytestmark = pytest.mark.slow


def simulated(script: Script, load: Load) -> tuple[Summary, list[RequestTrace]]:
    found, _ = scripted_traces(script, "http", load)
    return summarise(found), found


def test_a_closed_loop_keeps_its_concurrency() -> None:
    script = Script([(0.1, tone(300)), (0.3, tone(100))], end_after=0.1)  # half a second each
    summary, found = simulated(script, Load("closed", 4, seconds=2.9, warmup=0.9))
    assert summary.peak == 4
    assert summary.requests == 24
    assert sum(not trace.measured for trace in found) == 8
    assert sorted(trace.index for trace in found if trace.measured) == list(range(24))
    assert summary.throughput == pytest.approx(4 * 0.4 / 0.5, rel=1e-3)
    assert summary.underruns.count == 0
    assert summary.late is not None
    assert summary.late.max == pytest.approx(0, abs=1e-6)


def test_a_closed_loop_backs_off_after_a_rejection() -> None:
    load = Load("closed", 2, seconds=2, warmup=0.5, timeout=2)
    found, server = scripted_traces(Script(status=503), "http", load)
    assert [trace.sent for trace in found] == pytest.approx([0, 0, 1, 1, 2, 2], abs=0.05)
    assert len(server.bodies) == len(found)


def test_a_listener_sends_its_next_request_when_it_has_played_the_last_one() -> None:
    script = Script([(0.1, tone(300)), (0.3, tone(700))])  # received in 0.4 s, played until 1.1 s
    summary, found = simulated(script, Load("listeners", 2, seconds=2.0, warmup=0.5))
    assert [trace.sent for trace in found] == pytest.approx([0, 0, 1.1, 1.1, 2.2, 2.2], abs=0.01)
    assert (summary.requests, summary.peak, summary.underruns.count) == (4, 2, 0)


def test_a_listener_plays_on_after_an_underrun_and_backs_off_after_a_rejection() -> None:
    late = Script([(0.1, tone(100)), (0.5, tone(400))])  # 0.4 s late: played until 1 s
    _, found = simulated(late, Load("listeners", 1, seconds=0.6, warmup=0.5))
    assert [trace.sent for trace in found] == pytest.approx([0, 1.0], abs=0.01)
    found, _ = scripted_traces(Script(status=503), "http", Load("listeners", 1, seconds=2, warmup=0.5, timeout=2))
    assert [trace.sent for trace in found] == pytest.approx([0, 1, 2], abs=0.05)


def test_a_ramp_staggers_the_streams_and_the_number_of_prompts_ends_the_run() -> None:
    _, found = simulated(Script([(3.0, tone(100))]), Load("closed", 4, seconds=60, warmup=2.0, ramp=2.0, num_prompts=6))
    first = sorted(trace.sent for trace in found)[:4]
    assert first == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=1e-5)
    assert sum(trace.measured for trace in found) == 6


@pytest.mark.parametrize("mode", ["closed", "open"])
def test_a_number_of_prompts_is_sent_however_long_it_takes(mode: Mode) -> None:
    load = Load(mode, 2, seconds=1.0, warmup=1.0, num_prompts=20, timeout=60)
    summary, found = simulated(Script([(3.0, tone(100))]), load)
    assert (summary.requests, summary.succeeded) == (20, 20)
    assert max(trace.sent for trace in found) > 3.0


def test_each_stream_of_a_closed_loop_has_a_measured_request_on_a_slow_server() -> None:
    summary, found = simulated(Script([(7.0, tone(100))]), Load("closed", 3, seconds=1.0, warmup=1.0, timeout=60))
    assert (summary.requests, len(found)) == (3, 6)


def test_an_open_loop_sends_on_schedule_to_a_slow_server() -> None:
    summary, found = simulated(Script(accept_after=5.0), Load("open", 10.0, seconds=5.0, warmup=1.0))
    assert summary.late is not None
    assert summary.late.max == pytest.approx(0, abs=1e-5)
    assert summary.peak > 40
    assert all(1.0 <= trace.scheduled < 6.0 for trace in found if trace.measured)
    assert summary.ttfp is not None
    assert summary.ttfp.p50 == pytest.approx(5.1, abs=1e-4)


def test_an_open_loop_drops_and_counts_requests_above_max_in_flight() -> None:
    summary, _ = simulated(Script(accept_after=5.0), Load("open", 10.0, seconds=5.0, warmup=0.0, max_in_flight=7))
    assert summary.peak == 7
    assert summary.dropped == summary.requests - 7 > 20
    assert summary.failed == 0


def test_the_shards_of_a_load_add_up_to_the_whole() -> None:
    load, texts = Load("open", 20.0, seconds=2.0, warmup=0.5), ("One.", "Two.", "Three.")
    server = FakeServer()

    async def run(number: int, of: int) -> list[RequestTrace]:
        async with server.running():
            shard, target = LoadShard(load, texts, number, of), ServerTarget(server.address)
            return (await run_shard(lambda: connect(target, 100), shard, [0, 0])).traces

    def schedule(traces: list[RequestTrace]) -> list[tuple[int, int, float]]:
        ordered = sorted(traces, key=lambda trace: trace.scheduled)
        return [(trace.index, trace.prompt, round(trace.scheduled, 6)) for trace in ordered]

    shards = [trace for number in range(3) for trace in run_virtual(run(number, 3))]
    assert schedule(shards) == schedule(run_virtual(run(0, 1)))


def test_invalid_loads_are_rejected() -> None:
    for load in (Load("closed", 1.5), Load("open", 0), Load("closed", 1, ramp=9, warmup=1), Load("open", 1, seconds=0)):
        with pytest.raises(InvalidRequest):
            load.check()


def test_more_streams_use_more_processes_up_to_the_number_of_cores() -> None:
    assert Load("closed", 64).num_processes(16) == 1
    assert Load("closed", 512).num_processes(16) == 8
    assert Load("open", 40).num_processes(16) == 3
    assert Load("closed", 4096).num_processes(2) == 2


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer(default=Script([(0.02, tone(100)), (0.02, tone(100))]))) as served:
        yield served


def test_several_processes_generate_one_load(server: FakeServer) -> None:
    load = Load("closed", 4, seconds=30, warmup=0.1, num_prompts=10)
    progress: list[tuple[int, int]] = []
    found, lag = run_on_server(
        ServerTarget(server.address), load, prompts(), 2, lambda _, done, in_flight: progress.append((done, in_flight))
    )
    summary = summarise(found)
    assert (summary.requests, summary.succeeded) == (10, 10), summary.errors
    assert sorted(trace.index for trace in found if trace.measured) == list(range(10))
    assert [trace.sent for trace in found] == sorted(trace.sent for trace in found)
    assert lag.processes == 2
    assert lag.loop is not None
    assert lag.loop.count > 0
    assert progress[-1] == (len(found), 0)


def test_each_process_may_have_a_request_in_flight(server: FakeServer) -> None:
    load = Load("open", 10.0, seconds=0.6, warmup=0.0, max_in_flight=1)
    found, _ = run_on_server(ServerTarget(server.address), load, prompts(), 2)
    assert summarise(found).succeeded > 0


def test_failures_in_other_processes_are_reported() -> None:
    load = Load("closed", 2, num_prompts=2, warmup=0.0)
    found, _ = run_on_server(ServerTarget("http://127.0.0.1:9"), load, ("Say it.",), 2)
    assert {trace.error for trace in found} == {"connect"}


def test_a_single_process_runs_in_this_one(server: FakeServer) -> None:
    progress: list[float] = []
    load = Load("open", 40.0, seconds=0.5, warmup=0.1)
    found, lag = run_on_server(ServerTarget(server.address), load, prompts(), 1, lambda now, *_: progress.append(now))
    assert {trace.error for trace in found} == {None}
    assert progress
    assert lag.processes == 1


def test_the_engine_in_process_generates_utterances_of_a_fixed_length(embedded: TTS) -> None:
    client = EngineClient(AsyncLocalEngine(embedded.engine), embedded.model.info().sampling, frames=6)
    load = Load("closed", 2, warmup=0.0, num_prompts=4, seconds=60)
    result = run_in_process(partial(engine_client, client), load, prompts())
    summary = summarise(result.traces)
    assert summary.succeeded == 4, summary.errors
    assert {trace.samples for trace in result.traces} == {6 * embedded.model.vocoder.samples_per_frame}
    assert client_lag([result]).cpu > 0
    assert summary.peak == 2


def test_a_request_rejected_by_the_engine_is_counted_by_its_code(embedded: TTS) -> None:
    client = EngineClient(AsyncLocalEngine(embedded.engine), embedded.model.info().sampling, voice="unknown")
    load = Load("closed", 1, num_prompts=1, warmup=0.0)
    result = run_in_process(partial(engine_client, client), load, prompts())
    assert [trace.error for trace in result.traces] == ["invalid_request"]
