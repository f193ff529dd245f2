# SPDX-License-Identifier: Apache-2.0
"""Findings of polyvox doctor: one line each, with what to do."""

from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

State = Literal["ok", "warn", "fail"]
SIGNS: dict[State, tuple[str, str]] = {"ok": ("ok", "green"), "warn": ("! ", "yellow"), "fail": ("✗ ", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, printed as one line."""

    subject: str
    state: State
    message: str
    fix: str | None = None
    essential: bool = False
    ends_checks: bool = False  # those that follow would fail for the same reason

    @property
    def broken(self) -> bool:
        return self.essential and self.state == "fail"


def counted(number: float, noun: str) -> str:
    """A number with its noun: "1 stream", "2 streams"."""
    return f"{number:.0f} {noun}" if number == 1 else f"{number:.0f} {noun}s"


def show(out: Console, finding: Finding) -> None:
    sign, colour = SIGNS[finding.state]
    line = Text.assemble((sign, colour), f" {finding.subject}: {finding.message}")
    if finding.fix:
        line.append(f" → {finding.fix}", "bold")
    out.print(line, soft_wrap=True)
