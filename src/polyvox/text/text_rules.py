# SPDX-License-Identifier: Apache-2.0
"""Options of text normalisation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyvox.errors import InvalidRequest

ENGLISH = ("auto", "english")


@dataclass(frozen=True, slots=True)
class TextRules:
    """How text is normalised.

    language: "auto" and "english" have rules for numbers, dates and so on; for other languages only Unicode and markup
    are cleaned. lexicon: words and their respellings; whole words match in any case, the longest first. enabled: False
    passes text through unchanged.
    """

    language: str = "auto"
    lexicon: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True

    def __post_init__(self) -> None:
        for word, respelling in self.lexicon.items():
            if not word.strip() or not any(map(str.isalnum, word)) or "\n" in word:
                raise InvalidRequest("lexicon", word, "words must have a letter or digit and be on one line")
            if not respelling.strip():
                raise InvalidRequest("lexicon", f"{word} = {respelling}", "the respelling must not be empty")

    @property
    def english(self) -> bool:
        return self.language.strip().lower() in ENGLISH
