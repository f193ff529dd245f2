# SPDX-License-Identifier: Apache-2.0
"""Pronunciation lexicon: words and phrases with a respelling or phonemes."""

import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass

from polyvox.errors import InvalidRequest
from polyvox.text.unicode_cleaner import UnicodeCleaner

MAX_WORD, MAX_PRONUNCIATION = 100, 240  # characters
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # PLS files are XML
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
        if _NOT_IN_XML.search(self.word + self.respelling + self.phonemes + self.alphabet):
            raise InvalidRequest("pronunciation", self.word, "must have no control characters or lone surrogates")
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
        self._by_token: dict[str, _TokenEntries] = {}  # by the first token of the word, in lower case
        for each in self.pronunciations:
            word = " ".join(UnicodeCleaner().append(each.word, end=True).split())
            self._by_token.setdefault(_TOKEN.findall(word.lower())[0], _TokenEntries()).add(word, each)
        words = [word for entries in self._by_token.values() for word in entries.words]
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

    def over(self, base: "Lexicon") -> "Lexicon":
        """This lexicon with another one as its base, without building it again. It must have no base yet."""
        assert self._base is None
        found = copy(self)
        found._base = base
        found.joining_words = self.joining_words | base.joining_words
        found.has_cjk = self.has_cjk or base.has_cjk
        return found

    def match(self, text: str, at: int) -> tuple[Pronunciation, int] | None:
        """The pronunciation of the words that start at a position, and the position after them."""
        if at and (text[at - 1].isalnum() or text[at - 1] == "_"):
            return None
        token = _TOKEN.match(text, at)
        return self._match(token[0].lower(), text, at) if token else None

    def _match(self, token: str, text: str, at: int) -> tuple[Pronunciation, int] | None:
        entries = self._by_token.get(token)
        found = entries.longest(text, at) if entries is not None else None
        other = self._base._match(token, text, at) if self._base is not None else None
        return max(filter(None, (found, other)), key=lambda candidate: candidate[1], default=None)


class _TokenEntries:
    """The words and phrases that start with the same token. A lookup takes as long for a thousand as for one."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._lengths: list[int] = []  # of the words; the longest first
        self._exact: dict[str, Pronunciation] = {}
        self._any_case: dict[str, Pronunciation] = {}

    def add(self, word: str, pronunciation: Pronunciation) -> None:
        self.words.append(word)
        self._lengths = sorted({len(word), *self._lengths}, reverse=True)
        if pronunciation.match_case:
            self._exact.setdefault(word, pronunciation)
        else:
            self._any_case.setdefault(word.lower(), pronunciation)

    def longest(self, text: str, at: int) -> tuple[Pronunciation, int] | None:
        """The longest word at a position, and the position after it. A run of spaces counts as one."""
        positions = [at]
        while len(positions) < self._lengths[0] and positions[-1] + 1 < len(text):
            following = positions[-1] + 1
            if text[following - 1] == " ":
                while following < len(text) and text[following] == " ":
                    following += 1
            positions.append(following)
        collapsed = "".join(text[position : position + 1] for position in positions)
        for length in self._lengths:
            if length > len(collapsed):
                continue
            end, words = positions[length - 1] + 1, collapsed[:length]
            if not (text[end : end + 1].isalnum() or text[end : end + 1] == "_"):
                found = self._exact.get(words) or self._any_case.get(words.lower())
                if found is not None:
                    return found, end
        return None
