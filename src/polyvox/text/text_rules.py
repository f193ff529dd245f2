# SPDX-License-Identifier: Apache-2.0
"""Options of text normalisation."""

from dataclasses import dataclass, field

from polyvox.text.lexicon import Lexicon

ENGLISH = ("auto", "english")


@dataclass(frozen=True, slots=True)
class TextRules:
    """How text is normalised.

    language: "auto" and "english" have rules for numbers, dates and so on; for other languages only Unicode and markup
    are cleaned. lexicon: words and their pronunciations. enabled: False passes text through unchanged. phonemes: the
    model takes phonemes; otherwise words with phonemes are spoken as they are written.
    """

    language: str = "auto"
    lexicon: Lexicon = field(default_factory=Lexicon)
    enabled: bool = True
    phonemes: bool = False

    @property
    def english(self) -> bool:
        return self.language.strip().lower() in ENGLISH
