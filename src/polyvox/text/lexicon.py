# SPDX-License-Identifier: Apache-2.0
"""Pronunciation lexicon: words and phrases with a respelling or phonemes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from polyvox.errors import InvalidRequest
from polyvox.text.unicode_cleaner import UnicodeCleaner

MAX_WORD, MAX_PRONUNCIATION = 100, 240  # characters
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(r"[^\W_]+|\S")
_ALNUM = re.compile(r"[^\W_]+")
_CJK_LETTER = re.compile(f"[{CJK}]")


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """How a word or phrase is spoken: as a respelling, or with phonemes by models that take them."""

    word: str
    respelling: str = ""
    phonemes: str = ""
    alphabet: str = "ipa"  # of the phonemes
    match_case: bool = False

    def __post_init__(self) -> None:
        if not any(map(str.isalnum, self.word)) or "\n" in self.word:
            raise InvalidRequest("pronunciation", self.word, "words must have a letter or digit and be on one line")
        if bool(self.respelling.strip()) == bool(self.phonemes.strip()):
            raise InvalidRequest("pronunciation", self.word, "must have either a respelling or phonemes")
        if len(self.word) > MAX_WORD or len(self.respelling + self.phonemes) > MAX_PRONUNCIATION:
            limits = f"{MAX_WORD} characters and pronunciations at most {MAX_PRONUNCIATION}"
            raise InvalidRequest("pronunciation", self.word, f"words must have at most {limits}")


class Lexicon:
    """Pronunciations by word. Whole words match; of several at a position the longest one applies.

    base: another lexicon, whose pronunciations apply where this one has no equal word.
    """

    def __init__(self, pronunciations: Iterable[Pronunciation] = (), base: "Lexicon | None" = None) -> None:
        self.pronunciations = tuple(pronunciations)
        self._base = base
        # By the first token of the word, in lower case; the longest first, then those that match case.
        self._by_token: dict[str, list[tuple[str, Pronunciation]]] = {}
        for each in self.pronunciations:
            word = " ".join(UnicodeCleaner().append(each.word, end=True).split())
            self._by_token.setdefault(_TOKEN.findall(word.lower())[0], []).append((word, each))
        for entries in self._by_token.values():
            entries.sort(key=lambda entry: (-len(entry[0]), not entry[1].match_case))
        words = [word for entries in self._by_token.values() for word, _ in entries]
        # Words after which a phrase may go on, in lower case.
        self.joining_words = {part for word in words if " " in word for part in _ALNUM.findall(word.lower())[:-1]}
        self.has_cjk = any(map(_CJK_LETTER.search, words))
        if base is not None:
            self.joining_words |= base.joining_words
            self.has_cjk |= base.has_cjk

    @classmethod
    def from_words(cls, respellings: Mapping[str, str]) -> "Lexicon":
        """A lexicon of respellings that match in any case."""
        return cls(Pronunciation(word, respelling) for word, respelling in respellings.items())

    def __len__(self) -> int:
        return len(self.pronunciations) + (len(self._base) if self._base else 0)

    def updated(self, pronunciations: Iterable[Pronunciation]) -> "Lexicon":
        """A lexicon with other pronunciations as well, which replace those of equal words."""
        others = tuple(pronunciations)
        return Lexicon(others, base=self) if others else self

    def match(self, text: str, at: int) -> tuple[Pronunciation, int] | None:
        """The pronunciation of the words that start at a position, and the position after them."""
        if at and (text[at - 1].isalnum() or text[at - 1] == "_"):
            return None
        token = _TOKEN.match(text, at)
        return self._match(token[0].lower(), text, at) if token else None

    def _match(self, token: str, text: str, at: int) -> tuple[Pronunciation, int] | None:
        found: tuple[Pronunciation, int] | None = None
        for word, pronunciation in self._by_token.get(token, ()):
            if match := _pattern(word, pronunciation.match_case).match(text, at):
                found = pronunciation, match.end()
                break
        other = self._base._match(token, text, at) if self._base is not None else None
        return max(filter(None, (found, other)), key=lambda candidate: candidate[1], default=None)


@lru_cache(10_000)
def _pattern(word: str, match_case: bool) -> re.Pattern[str]:
    return re.compile(re.escape(word).replace(r"\ ", " +") + r"(?!\w)", 0 if match_case else re.IGNORECASE)
