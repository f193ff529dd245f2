# SPDX-License-Identifier: Apache-2.0
"""What Spanish, Portuguese and Italian share: the gender of nouns by their ending."""

import re

from polyvox.text.languages.grammar import Grammar, Noun, word_set

# Masculine nouns that end in -a.
_MASCULINE = word_set(
    "día días dia dias problema problemas sistema sistemas programa programas tema temas idioma idiomas mapa mapas "
    "planeta planetas clima climas poema poemas drama dramas cinema cinemas grama gramas kilograma quilograma "
    "turista turistas problemi sistemi programmi temi"
)


class RomanceGrammar(Grammar):
    """A language in which the gender of most nouns shows in their ending."""

    feminine_endings: tuple[str, ...]
    feminine_nouns: frozenset[str] = frozenset()

    def is_feminine(self, word: str) -> bool:
        lower = word.lower()
        return lower in self.feminine_nouns or (lower.endswith(self.feminine_endings) and lower not in _MASCULINE)

    def counted_noun(self, word: str, text: str) -> Noun | None:
        return Noun(word, "", "f" if self.is_feminine(word) else "m")

    def fraction(self, over: int, under: int, noun: Noun | None = None) -> str | None:
        spoken = super().fraction(over, under)
        if spoken and (over, under) == (1, 2) and noun is not None and noun.gender == "f":
            return spoken[:-1] + "a"
        return spoken

    def roman_before_noun(self, value: int, before: str, after: str) -> str | None:
        """An ordinal between an article and a noun: la II Guerra Mundial."""
        noun = re.match(r" ([^\W0-9_]{3,})", after)
        if not noun or not re.search(
            r"\b(?:la|el|il|a|o|na|no|da|do|de la|del|della|alla|nella) $", before, re.IGNORECASE
        ):
            return None
        return self.ordinal(value, "f" if self.is_feminine(noun[1]) else "m")

    def degrees(self, text: str, scale: str) -> str:
        return self.count(text, self.degree) + (" Fahrenheit" if scale == "F" else "")
