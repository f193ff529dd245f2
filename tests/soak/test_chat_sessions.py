# SPDX-License-Identifier: Apache-2.0
"""Fifty conversations at once on the simulated GPU: speech starts early and has no gaps."""

from polyvox.bench.summary import percentile
from soak.chat_sessions import run

MAX_FIRST_AUDIO = 0.5  # seconds, p95, on a machine with nothing else to do


def test_fifty_conversations_at_once_have_no_gaps() -> None:
    results = run(num_sessions=50, num_turns=2, rate=75.0)
    assert not results.failures
    assert len(results.first_audio) == 100
    assert not results.gaps
    assert percentile(sorted(results.first_audio), 95) < MAX_FIRST_AUDIO
