# SPDX-License-Identifier: Apache-2.0
"""The capture rejects audio that arrives after the end, and audio of another seed."""

import pytest

from conformance.capture import TEXT, StreamCapture
from conformance.server_process import ServerProcess


def test_a_whole_response_is_not_early_and_another_seed_is_not_equal(server: ServerProcess) -> None:
    body = {"input": TEXT, "seed": 8, "stream": False}
    capture = StreamCapture(server)
    with (
        pytest.raises(AssertionError, match="arrived after the utterance was finished"),
        server.client() as client,
        capture,
    ):
        capture.add(client.post("/v1/audio/speech", json=body).raise_for_status().content)
    capture.check(format="mp3", voice="heart")
    capture.seed = 3
    with pytest.raises(AssertionError, match=r"correlation|instead of"):
        capture.check(format="mp3", voice="heart")
