# SPDX-License-Identifier: Apache-2.0
"""The benchmark of conversations runs with a tiny checkpoint on any machine."""

import asyncio

import pytest
from benchmarks.conversations import HEADING, Options, build, measure, row

from polyvox.engine.async_engine import AsyncLocalEngine

pytestmark = pytest.mark.slow


def test_every_stream_has_all_its_speech_and_a_row_of_figures() -> None:
    options = Options("tiny", "cpu", tokens=6, rate=400.0, frames=12, prompt=20, spread=0.01)

    async def main() -> str:
        engine = AsyncLocalEngine(build(options, 2))
        try:
            answers = await measure(engine, options, 2)
        finally:
            await engine.close()
        samples_per_frame, delay = 48, 18
        assert {round(answer.speech * 24_000) for answer in answers} == {12 * samples_per_frame - delay}
        assert all(0 < answer.first_audio <= answer.elapsed for answer in answers)
        return row(answers)

    line = asyncio.run(main())
    assert line.startswith("| 2 | ")
    assert line.count("|") == HEADING.splitlines()[0].count("|")
