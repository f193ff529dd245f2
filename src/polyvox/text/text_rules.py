# SPDX-License-Identifier: Apache-2.0
"""Options of text normalisation."""

from dataclasses import dataclass, field

from polyvox.text.lexicon import Lexicon

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class TextRules:
    """How text is normalised.

    language: the language of all sentences, by name or code; "auto" detects the language of each sentence. In a
    language without rules only Unicode and markup are cleaned. lexicon: words and their pronunciations. enabled: False
    passes text through unchanged. phonemes: the model takes phonemes; otherwise words with phonemes are spoken as they
    are written. default_language: with "auto", the language of sentences that show none. ssml: a text that starts with
    <speak> must be well-formed; otherwise its tags are read like those of other text.
    """

    language: str = "auto"
    lexicon: Lexicon = field(default_factory=Lexicon)
    enabled: bool = True
    phonemes: bool = False
    default_language: str = "english"
    ssml: bool = True

    @property
    def is_auto(self) -> bool:
        return self.language.strip().lower() == AUTO
