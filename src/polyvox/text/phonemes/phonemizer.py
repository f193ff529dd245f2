# SPDX-License-Identifier: Apache-2.0
"""Whole and streamed text to phonemes, with the same result for any fragmentation.

A word is emitted when white space follows it. Only words that look ahead (heteronyms and function words such as "the")
also wait for the next word or punctuation mark.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from polyvox.text.languages.english.number_words import cardinal
from polyvox.text.phonemes.heteronyms import Context
from polyvox.text.phonemes.inline_phonemes import MARK_CLOSE, MARK_OPEN, split_marked
from polyvox.text.phonemes.pronouncer import expected, is_known, isolated, looks_ahead, pronounce, spell
from polyvox.text.phonemes.spelling_model import MAX_LETTERS

MAX_DIGITS = 15

_SPACE = re.compile(r"\s+")
_PIECE = re.compile(
    rf"(?P<marked>{MARK_OPEN}[^{MARK_OPEN}{MARK_CLOSE}]*{MARK_CLOSE})"
    r"|(?P<dotted>(?:[^\W\d_]\.){2,}|Ph\.D\.)"
    r"|(?P<title>(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc)\.(?!\.))"
    r"|(?P<number>\d+)"
    r"|(?P<word>'?[^\W\d_]+(?:['-][^\W\d_]+)*'?)"
    r"|(?P<marks>\.\.+|--+|[^\w\s]|_)"
)
_MARKS = {mark: mark for mark in ";:,.!?—…"} | dict(zip("–-―()[]。，？！", "———((((.,?!", strict=True))
# When several marks follow each other the first of these is kept. A bracket is a comma before the next word.
_BRACKET = "("
_STRENGTH = "?!….;:—," + _BRACKET
_SYMBOL_WORDS = {"&": "and", "%": "percent", "+": "plus", "=": "equals", "@": "at", "°": "degrees", "#": "number"}
_TIMES = frozenset({"a.m.", "p.m.", "A.M.", "P.M."})


@dataclass(frozen=True, slots=True)
class Token:
    """A word, or a punctuation mark. `phonemes` are given for a word whose pronunciation is fixed."""

    text: str
    is_mark: bool = False
    phonemes: str | None = None


class PhonemeStream:
    """Phonemes of a text whose pieces may have any size, in order and as early as possible."""

    def __init__(self) -> None:
        self._text = ""
        self._tokens: deque[Token] = deque()
        self._before = self._second_before = ""
        self._begun = self._after_mark = self._after_bracket = False
        self._starts_sentence = True

    def append(self, piece: str) -> str:
        """The phonemes that this piece completes."""
        if _SPACE.search(piece) is None:
            self._text += piece
            return ""
        *chunks, self._text = _SPACE.split(self._text + piece)
        for chunk in chunks:
            self._tokens.extend(_tokens(chunk))
        return self._emit(end=False)

    def finish(self) -> str:
        """The remaining phonemes."""
        self._tokens.extend(_tokens(self._text))
        self._text = ""
        return self._emit(end=True)

    @property
    def has_pending(self) -> bool:
        """Whether text is buffered that may have words."""
        return bool(self._text or self._tokens)

    def _emit(self, end: bool) -> str:
        made: list[str] = []
        while self._tokens:
            token = self._tokens[0]
            after = self._tokens[1] if len(self._tokens) > 1 else None
            if after is None and not end and _waits(token):
                break
            self._tokens.popleft()
            made.append(self._mark(token) if token.is_mark else self._word(token, after))
        return "".join(made)

    def _word(self, token: Token, after: Token | None) -> str:
        context = Context(self._before, self._second_before, after.text if after else "")
        phonemes = token.phonemes
        if phonemes is None:
            next_phonemes = "" if after is None or after.is_mark else after.phonemes or expected(after.text)
            phonemes = pronounce(token.text, context, next_phonemes, self._starts_sentence)
        if token.text in _TIMES or token.text[-1:] == ".":
            ends = after is None or (token.text in _TIMES and not after.is_mark and after.text[:1].isupper())
            phonemes += "." if ends and phonemes else ""
        if not phonemes:
            return ""
        self._second_before, self._before = self._before, token.text
        space = ", " if self._after_bracket and not self._after_mark else " " if self._begun else ""
        self._after_bracket = False
        self._begun, self._after_mark = True, phonemes[-1] == "."
        self._starts_sentence = self._after_mark
        return space + phonemes

    def _mark(self, token: Token) -> str:
        self._before = self._second_before = ""
        self._starts_sentence = self._starts_sentence or token.text in ".!?…"
        if not self._begun or self._after_mark or token.text == _BRACKET:
            self._after_bracket = self._begun and token.text == _BRACKET
            return ""
        self._after_bracket = False
        self._after_mark = True
        return f" {token.text}" if token.text == "—" else token.text


def phonemize(text: str) -> str:
    """The phonemes of a text with punctuation: words are separated by spaces, stress marks stand before vowels."""
    stream = PhonemeStream()
    return stream.append(text) + stream.finish()


def _waits(token: Token) -> bool:
    if token.is_mark:
        return False
    return token.text[-1:] == "." or (token.phonemes is None and looks_ahead(token.text))


def _tokens(chunk: str) -> Iterator[Token]:
    """The words and marks of a chunk without white space."""
    marks = ""
    for match in _PIECE.finditer(chunk.replace("’", "'").replace("‘", "'")):
        if match.lastgroup == "marks":
            mark = "…" if match[0].startswith("..") else "—" if match[0].startswith("--") else match[0]
            if mark == "-" and chunk != "-":  # a hyphen inside a word
                continue
            if mark in _MARKS:
                marks += _MARKS[mark]
                continue
            words = [Token(_SYMBOL_WORDS[mark])] if mark in _SYMBOL_WORDS else []
        else:
            words = list(_word_tokens(match))
        if words and marks:
            yield _strongest(marks)
            marks = ""
        yield from words
    if marks:
        yield _strongest(marks)


def _word_tokens(match: re.Match[str]) -> Iterator[Token]:
    text = match[0]
    if match.lastgroup == "marked":
        written, phonemes = split_marked(text)
        yield Token(written, phonemes=phonemes)
    elif match.lastgroup == "dotted":
        yield Token(text, phonemes=spell(text))
    elif match.lastgroup == "title":
        yield Token(text, phonemes=isolated(text[:-1]))
    elif match.lastgroup == "number":
        numbers = [text] if len(text) <= MAX_DIGITS else list(text)
        yield from (Token(word) for number in numbers for word in cardinal(number).replace("-", " ").split())
    else:
        pieces = (text[first : first + MAX_LETTERS] for first in range(0, len(text), MAX_LETTERS))
        yield from (Token(_unquoted(piece)) for piece in pieces)


def _unquoted(word: str) -> str:
    """The word without single quotes around it; the apostrophes of "'em" and "goin'" are kept."""
    if "'" not in (word[0], word[-1]) or is_known(word):
        return word
    return word.lstrip("'") if word.endswith("in'") and len(word) > 4 else word.strip("'")


def _strongest(marks: str) -> Token:
    return Token(min(marks, key=_STRENGTH.index), is_mark=True)
