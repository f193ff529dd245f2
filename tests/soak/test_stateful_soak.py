# SPDX-License-Identifier: Apache-2.0
"""The stateful test of tests/engine/test_engine_machine.py for about ten minutes."""

import os

import pytest

from conftest import Loaded
from engine.engine_machine import run_machine

# Per parameter set; about a third of a second each on one core.
EXAMPLES = int(os.environ.get("POLYVOX_SOAK_EXAMPLES", "400"))


@pytest.mark.parametrize("free", [False, True], ids=["stepped", "free-running"])
@pytest.mark.parametrize("pipeline", [0, 1], ids=["not pipelined", "pipelined"])
def test_random_operations_leave_every_stream_equal_to_its_solo_run(loaded: Loaded, pipeline: int, free: bool) -> None:
    run_machine(loaded("custom_voice", "float64").model, pipeline, EXAMPLES, free, steps=50)
