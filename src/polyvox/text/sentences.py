# SPDX-License-Identifier: Apache-2.0
"""Sentence splitting of whole and streamed text, with the same result."""

import re

from polyvox.text.languages.english.word_tables import ABBREVIATIONS

MIN_CLAUSE = 12  # characters; shorter clauses have no prosody of their own
MAX_SENTENCE = 400  # characters; about half a minute of speech
_LOOKAHEAD = 32  # characters after a full stop that may decide: quotes, white space, brackets, a letter

# A French quotation ends with a space and ».
_STOP = re.compile(r"[.!?…]+(?:[\"'”’)\]»*_]|\s»)*(?=\s)(?!\s»)|[。！？｡][。！？!?…｡]*[」』”’）)\]\"']*|\n[ \t]*\n")
_CLAUSES = (re.compile(r"[,;:—–，、；：][\"'”’)\]]*\s|[，、；：]"), re.compile(r"\s"))
_CLAUSE = re.compile(r"[,;:—–][\"'”’)\]]*(?=\s)|[，、；：]")
_NEXT = re.compile(r"(\s+)[\"'“‘(\[«*_¿¡—–-]*([^\s\"'“‘(\[«*_¿¡—–-])")
_NEXT_WORD = re.compile(r"\s+[\"'“‘(\[«*_¿¡—–-]*[^\s\"'“‘(\[«*_¿¡—–-]\w*\W")
_BEFORE = re.compile(r"([^\W0-9_](?:[^\W_]|\.(?=\w))*)\.$")
_INITIALS = re.compile(r"[A-ZА-ЯЁ](?:\.[A-ZА-ЯЁ])*")  # J. R. R., U.S.
# These abbreviations do not end a sentence before a capital letter; others may.
_NEVER_LAST = {name for name, (_, follows) in ABBREVIATIONS.items() if follows in ("name", "number", "any")}
_NEVER_LAST -= {"no", "No", "min", "max", "c", "p", "al", "ca", "est", "sec", "Sec", "ch", "Ch"}
# Those of other languages, for text that is not normalised.
_OTHER_LANGUAGES = (
    "z z.B d.h u.a i.d.R z.T v.a bzw ca Nr Hr Str Hauptstr Abs Kap evtl ggf vgl Sra Srta Sres Dña Avda pág núm sig Sig "
    "sig.ra dott Dott dott.ssa avv pag MM av bd ул г кв стр им см т т.е т.к гл рис проф"
)
_NEVER_LAST |= set(_OTHER_LANGUAGES.split())
_GERMAN_DATE = re.compile(
    r"(?<!\d)\d{1,2}\. (?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember)\b"
)
_NUMBERED = {name for name, (_, follows) in ABBREVIATIONS.items() if follows == "number"}


class SentenceSplitter:
    """Splits streamed text into sentences. Only the white space between them is dropped.

    clauses: also split after a comma, colon or dash with at least MIN_CLAUSE characters before it.
    """

    def __init__(self, limit: int = MAX_SENTENCE, clauses: bool = False) -> None:
        self._limit, self._clauses = max(1, limit), clauses
        self._pending = ""

    @property
    def num_pending(self) -> int:
        """The number of characters of the next sentence so far."""
        return len(self._pending)

    @property
    def certain(self) -> str:
        """The beginning of the next sentence that later text cannot change."""
        text = self._pending
        for stop in _STOP.finditer(text):
            if not self._certain(text, stop):
                text = text[: stop.end()]
                break
        if len(text) > self._limit // 2:  # a long sentence is split at the last clause or word
            for pattern in _CLAUSES:
                ends = [match.end() for match in pattern.finditer(text, self._limit // 2)]
                if ends:
                    return text[: ends[-1]].rstrip()
            return text[: self._limit // 2].rstrip()
        return text.rstrip()

    def append(self, piece: str) -> list[str]:
        """The sentences that are complete after this piece."""
        return self._take(piece, end=False)

    def finish(self) -> list[str]:
        return self._take("", end=True)

    def _take(self, piece: str, end: bool) -> list[str]:
        text, at, found = self._pending + piece, 0, list[str]()
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            window = text[at : at + self._limit + _LOOKAHEAD]
            boundary = self._boundary(window, end and at + len(window) == len(text))
            if boundary is None:
                break
            found.append(window[:boundary].rstrip())
            at += boundary
        self._pending = text[at:]
        return found

    def _boundary(self, text: str, end: bool) -> int | None:
        """The end of the first sentence or clause; None if it depends on more text."""
        if self._clauses and (clause := _CLAUSE.search(text, MIN_CLAUSE, self._limit)):
            boundary = self._sentence_boundary(text[: clause.end()], end=False)
            return clause.end() if boundary is None else boundary
        return self._sentence_boundary(text, end)

    def _sentence_boundary(self, text: str, end: bool) -> int | None:
        for stop in _STOP.finditer(text):
            if stop.end() > self._limit:
                break
            if stop.end() + _LOOKAHEAD > len(text) and not end and not self._certain(text, stop):
                if len(text) >= self._limit + _LOOKAHEAD:
                    break
                return None
            if _ends(text[: stop.end() + _LOOKAHEAD], stop):
                return stop.start() if stop[0][0] == "\n" else stop.end()
        if len(text) <= self._limit:
            return len(text) if end else None
        for pattern in _CLAUSES:
            ends = [match.end() for match in pattern.finditer(text, self._limit // 2, self._limit)]
            if ends:
                return ends[-1]
        return self._limit

    @staticmethod
    def _certain(text: str, stop: re.Match[str]) -> bool:
        """Whether enough text follows to decide: a letter after white space (after a number a word), or any character
        after a CJK stop."""
        if stop[0][0] == "\n":
            return True
        if stop[0][0] in "。！？｡":
            return stop.end() < len(text)
        if text[stop.start() - 1 : stop.start()].isdigit():  # a date in German
            return _NEXT_WORD.match(text, stop.end()) is not None
        return _NEXT.match(text, stop.end()) is not None


def _ends(text: str, stop: re.Match[str]) -> bool:
    mark = stop[0]
    if mark[0] in "。！？｡\n":
        return True
    following = _NEXT.match(text, stop.end())
    if not following or following[1].count("\n") > 1:
        return True
    letter = following[2]
    dots = mark.rstrip("\"'”’)]»*_")
    if dots != ".":  # "?!" and "..." end a sentence unless a lower-case letter follows
        return not letter.islower()
    if text[stop.start() - 1 : stop.start()].isdigit() and _GERMAN_DATE.match(
        text, _start_of_number(text, stop.start())
    ):
        return False
    before = _BEFORE.search(text, max(0, stop.start() - 24), stop.start() + 1)
    word = before[1] if before else ""
    if word in _NEVER_LAST or (word in _NUMBERED and letter.isdigit()):
        return False
    if _INITIALS.fullmatch(word) and word != "I":
        return False
    return not letter.islower()


def _start_of_number(text: str, end: int) -> int:
    start = end
    while start > max(0, end - 2) and text[start - 1].isdigit():
        start -= 1
    return start


def split_sentences(text: str, limit: int = MAX_SENTENCE) -> list[str]:
    """The sentences of a text. Longer ones than `limit` characters are split at clauses, then words, then anywhere."""
    splitter = SentenceSplitter(limit)
    return splitter.append(text) + splitter.finish()
