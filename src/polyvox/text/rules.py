# SPDX-License-Identifier: Apache-2.0
"""Normalisation rules: a pattern and its replacement."""

import re
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[re.Match[str]], str | None]

# Letters, without digits, superscripts and fractions.
LETTER = r"[^\W0-9_²³¹⁰⁴-⁹¼-¾⅐-⅞]"
NUM = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+)"
SIGN = r"(?:(?<![^\s(\[\"'=<>≤≥≈~*×/:])[-−±])?"
TO = r" ?[-–—] ?"
LEFT = r"(?<!\w)(?<!\d[.,])"  # before a number; a pattern that starts with it matches no letter at its start
TH = r"(?:st|nd|rd|th)"


@dataclass(frozen=True, slots=True)
class Rule:
    """`say` returns the words for a match of `pattern`; None passes it to the following rules."""

    name: str
    pattern: re.Pattern[str]
    say: Say
    starts_with_number: bool


class Rules(list[Rule]):
    """An ordered list of rules. As a decorator it adds a function; of several decorators, the lowest comes first."""

    def __call__(self, name: str, pattern: str, flags: int = 0) -> Callable[[Say], Say]:
        # Only ASCII digits; those of other scripts are not changed.
        compiled = re.compile(pattern.replace(r"\d", "[0-9]"), flags)

        def add(say: Say) -> Say:
            self.append(Rule(name, compiled, say, pattern.startswith(LEFT)))
            return say

        return add

    def words(self, name: str, pattern: str, spoken: str) -> None:
        """Add a rule with fixed words."""
        self(name, pattern)(lambda _: spoken)


def before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - 32) : match.start()]


def after(match: re.Match[str]) -> str:
    return match.string[match.end() :]
