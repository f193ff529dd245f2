"""Thousands of messages of nonsense on the sockets."""

import logging

import pytest

from server.fakes import HeldEngine
from server.nonsense import babble
from server.serving import serving


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_messages_of_nonsense_leave_nothing_behind(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = HeldEngine()
    try:
        with caplog.at_level(logging.ERROR), serving(engine) as server, server.client() as client:
            counts = babble(server, engine, 10_000, seed=100 + seed)
            print(f"\nseed {seed}:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
            assert not counts["closed 1011"]
            assert server.speak(client).status_code == 200
        assert [record.message for record in caplog.records] == []
    finally:
        engine.close()
