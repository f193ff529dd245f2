"""The judge of all clients can say no: to sound that comes at the end, and to sound that is another's."""

import pytest

from conformance.hearing import TEXT, Hearing
from conformance.serve import Served


def test_an_answer_that_comes_whole_is_not_early_and_another_seed_is_not_the_same(server: Served) -> None:
    body = {"input": TEXT, "seed": 8, "stream": False}
    hearing = Hearing(server)
    with (
        pytest.raises(AssertionError, match="came when the utterance was finished"),
        server.client() as client,
        hearing,
    ):
        hearing.hear(client.post("/v1/audio/speech", json=body).raise_for_status().content)
    hearing.check(format="mp3", voice="heart")
    hearing.seed = 3
    with pytest.raises(AssertionError, match=r"alike by|instead of"):
        hearing.check(format="mp3", voice="heart")
