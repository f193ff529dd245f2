# SPDX-License-Identifier: Apache-2.0
"""Which recorded audio a capacity search keeps until it is transcribed."""

import socket
from contextlib import ExitStack

from polyvox.bench.load import ClientLag, Load
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.results import Run
from polyvox.cli.bench_session import BenchOptions, BenchSession


def run(level: float) -> Run:
    trace = RequestTrace(0, 0, 1, True, 0.0, arrivals=[(0.1, 1)], pcm=bytearray(b"ab"))
    return Run(Load("closed", level), ClientLag(None, 0.0, 1), [trace])


def test_only_loads_that_may_be_the_result_keep_their_audio() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        session = BenchSession(BenchOptions(base_url=url), [Load("closed", 8)], stack)
    failing: set[int] = set()

    def levels_with_audio_after(level: float, failed: bool = False) -> list[float]:
        session.runs.append(run(level))
        if failed:
            failing.add(id(session.runs[-1]))
        session.discard_audio(lambda each: id(each) in failing, repeats=2)
        return [each.load.level for each in session.runs if each.traces[0].pcm is not None]

    assert levels_with_audio_after(1) == [1]
    assert levels_with_audio_after(1) == [1, 1]
    assert levels_with_audio_after(2) == [1, 1, 2]  # its second repeat may fail
    assert levels_with_audio_after(2) == [2, 2]
    assert levels_with_audio_after(4) == [2, 2, 4]
    assert levels_with_audio_after(4, failed=True) == [2, 2]
    assert levels_with_audio_after(3) == [2, 2, 3]
    assert levels_with_audio_after(3) == [3, 3]
