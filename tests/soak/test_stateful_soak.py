"""The same as tests/engine/test_stateful.py for about ten minutes: `make soak`."""

import os

import pytest

from conftest import Loaded
from engine.random_operations import play

# Examples of each of the four; about a third of a second each on one core.
EXAMPLES = int(os.environ.get("POLYVOX_SOAK_EXAMPLES", "400"))


@pytest.mark.parametrize("free", [False, True], ids=["part by part", "unstopped"])
@pytest.mark.parametrize("ahead", [0, 1], ids=["at once", "one step late"])
def test_whatever_happens_for_long_each_stream_says_what_it_says_alone(loaded: Loaded, ahead: int, free: bool) -> None:
    play(loaded("custom_voice", "float64").speech, ahead, EXAMPLES, free, steps=50)
