"""The voice library under many more kills than `make test` has time for."""

from pathlib import Path

from voices.killed_writers import run

ROUNDS = 1000  # of two kills each


def test_two_thousand_kills_leave_a_sound_library(tmp_path: Path) -> None:
    run(tmp_path / "voices", ROUNDS)
