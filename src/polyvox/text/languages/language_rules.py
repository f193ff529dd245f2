# SPDX-License-Identifier: Apache-2.0
"""What text normalisation needs to know about a language."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from polyvox.text.rules import Rule


def _never(_text: str, _start: int, _end: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Announcements:
    """Words for content that is not read as text."""

    code_block: Callable[[int], str]  # by its number of lines
    image: str
    task: str
    completed_task: str


@dataclass(frozen=True, slots=True)
class LanguageRules:
    """The rules of one language.

    special_words, special_pattern: the words at which a rule may start; all others are spoken as they are written.
    joins_next: whether a rule may match the word from `start` to `end` of a text together with the next word; the text
    starts where the segment starts.
    """

    name: str
    rules: list[Rule] = field(default_factory=list)
    special_words: frozenset[str] = frozenset()
    joins_next: Callable[[str, int, int], bool] = _never
    formulas: list[Rule] = field(default_factory=list)
    cardinal: Callable[[str], str] | None = None
    signs: Mapping[str, str] = field(default_factory=dict)
    link: Callable[[str], str] = str
    code: Callable[[str], str] = str
    say_as: Callable[[str, str, str], str | None] | None = None
    announcements: Announcements | None = None
    special_pattern: re.Pattern[str] | None = None
    names_emoji: bool = False
    keeps_foreign_numbers: bool = False  # numbers next to letters of a script other than Latin stay as written

    def is_special(self, word: str) -> bool:
        """Whether a rule may start at a word."""
        return not self.special_words.isdisjoint((word, word.lower())) or (
            self.special_pattern is not None and self.special_pattern.fullmatch(word) is not None
        )

    @property
    def word_rules(self) -> list[Rule]:
        """The rules that may start with a letter."""
        return [rule for rule in self.rules if not rule.starts_with_number]
