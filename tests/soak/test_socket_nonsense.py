# SPDX-License-Identifier: Apache-2.0
"""Thousands of messages of nonsense on the sockets."""

import logging
import sys

import pytest

from server.fakes import PausableEngine
from server.live_server import serving
from server.malformed_messages import babble


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_malformed_messages_free_everything(
    seed: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = PausableEngine()
    try:
        with caplog.at_level(logging.ERROR), serving(engine) as server, server.client() as client:
            counts = babble(server, engine, 10_000, seed=100 + seed)
            with capsys.disabled():
                body = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
                sys.stdout.write(f"\nseed {seed}: {body}\n")
            assert not counts["closed 1011"]
            assert server.speak(client).status_code == 200
        assert [record for record in caplog.records if record.name.startswith(("polyvox", "uvicorn"))] == []
    finally:
        engine.close()
