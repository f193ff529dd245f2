# SPDX-License-Identifier: Apache-2.0
"""Fifty conversations at once on the simulated GPU, over HTTP and as realtime sessions: speech starts early and has no
gaps."""

import pytest

from polyvox.bench.summary import percentile
from soak import chat_sessions, realtime_sessions
from soak.chat_sessions import RunSessions, run

MAX_FIRST_AUDIO = 0.5  # seconds, p95, on a machine with nothing else to do


@pytest.mark.parametrize("run_sessions", [chat_sessions.run_sessions, realtime_sessions.run_sessions])
def test_fifty_conversations_at_once_have_no_gaps(run_sessions: RunSessions) -> None:
    results = run(num_sessions=50, num_turns=2, rate=75.0, run_sessions=run_sessions)
    assert not results.failures
    assert len(results.first_audio) == 100
    assert not results.gaps
    assert percentile(sorted(results.first_audio), 95) < MAX_FIRST_AUDIO
