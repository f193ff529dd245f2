# SPDX-License-Identifier: Apache-2.0
"""The stateful test of tests/engine/test_stateful.py for about ten minutes."""

import os

import pytest

from conftest import Loaded
from engine.random_operations import play

# Per parameter set; about a third of a second each on one core.
EXAMPLES = int(os.environ.get("POLYVOX_SOAK_EXAMPLES", "400"))


@pytest.mark.parametrize("free", [False, True], ids=["stepped", "free-running"])
@pytest.mark.parametrize("ahead", [0, 1], ids=["at once", "one step late"])
def test_random_operations_leave_every_stream_equal_to_its_solo_run(loaded: Loaded, ahead: int, free: bool) -> None:
    play(loaded("custom_voice", "float64").speech, ahead, EXAMPLES, free, steps=50)
