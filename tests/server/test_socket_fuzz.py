# SPDX-License-Identifier: Apache-2.0
"""Nonsense on the sockets: no fault of ours, no hang, and the next one is served."""

import logging

import pytest

from server.fakes import PausableEngine
from server.live_server import serving
from server.malformed_messages import babble

pytestmark = pytest.mark.slow


def test_malformed_messages_are_answered_and_free_everything(
    caplog: pytest.LogCaptureFixture, engine: PausableEngine
) -> None:
    with caplog.at_level(logging.ERROR), serving(engine) as server, server.client() as client:
        counts = babble(server, engine, 300, seed=1)
        assert counts["sound"] > 0
        assert counts["errors"] > 0
        assert not counts["closed 1011"]
        assert server.speak(client).status_code == 200
    assert [record for record in caplog.records if record.name.startswith(("polyvox", "uvicorn"))] == []
