#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of text normalisation by category, on the cases of tests/text.

    python tools/text_accuracy.py [--failures] [--auto] [FILE ...]

The language is the one that the file is named after, or English; with --auto it is detected.

A case is `category, written, spoken`, separated by tabs; ` | ` separates several correct readings. Plain text and
punctuation must be equal to a reading. In the other categories only words count: case, punctuation and hyphens do not.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polyvox.text import TextRules, format_parts, normalize_text
from polyvox.text.languages import LANGUAGES

CASES = Path(__file__).parents[1] / "tests/text/english_cases.tsv"
RULES = TextRules(language="english")
_EXACT = ("plain", "punctuation")
_SEPARATORS = re.compile(r"[^\w']+|(?<!\w)'|'(?!\w)")


@dataclass(frozen=True, slots=True)
class Case:
    """A written text and its correct readings."""

    category: str
    written: str
    readings: tuple[str, ...]
    rules: TextRules = RULES

    @property
    def spoken(self) -> str:
        """The text that normalisation gives."""
        return format_parts(normalize_text(self.written, self.rules))

    @property
    def is_correct(self) -> bool:
        if self.category in _EXACT:
            return self.spoken in self.readings
        return _words(self.spoken) in map(_words, self.readings)


def _words(text: str) -> str:
    return " ".join(_SEPARATORS.sub(" ", text.casefold()).split())


def load_cases(path: Path = CASES, rules: TextRules = RULES) -> list[Case]:
    """The cases of a file."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line.strip())
    return [Case(category, written, tuple(spoken.split(" | ")), rules) for category, written, spoken in rows]


def accuracy_table(cases: Iterable[Case]) -> tuple[str, float]:
    """A table by category, and the accuracy over all cases, from 0 to 1."""
    total, correct = Counter[str](), Counter[str]()
    for case in cases:
        total[case.category] += 1
        correct[case.category] += case.is_correct
    rows = [(name, correct[name], total[name]) for name in total] + [("all", correct.total(), total.total())]
    lines = ["| category | correct | cases | accuracy |", "|---|---|---|---|"]
    lines += [f"| {name} | {right} | {count} | {100 * right / count:.1f} % |" for name, right, count in rows]
    return "\n".join(lines), correct.total() / total.total()


def _rules_for(path: Path) -> TextRules:
    if "--auto" in sys.argv:
        return TextRules()
    return TextRules(language=path.stem) if path.stem in LANGUAGES else RULES


def main() -> None:
    paths = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")] or [CASES]
    cases = [case for path in paths for case in load_cases(path, _rules_for(path))]
    if "--failures" in sys.argv:
        for case in cases:
            if not case.is_correct:
                readings = " | ".join(case.readings[:3])
                print(f"{case.category}: {case.written!r} -> {case.spoken!r}, must be {readings!r}")
    print(accuracy_table(cases)[0])


if __name__ == "__main__":
    main()
