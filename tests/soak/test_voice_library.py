# SPDX-License-Identifier: Apache-2.0
"""The voice library under more kills than `make test` has time for."""

from pathlib import Path

from voices.killed_writers import run

ROUNDS = 1000  # of two kills each


def test_two_thousand_kills_leave_an_intact_library(tmp_path: Path) -> None:
    run(tmp_path / "voices", ROUNDS)
