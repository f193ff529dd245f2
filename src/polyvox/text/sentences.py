"""Sentences of a text, whole or growing: the same ones, however it was cut."""

import re

from polyvox.text.vocabulary import ABBREVIATIONS

SHORTEST_CLAUSE = 12  # characters: less than that has no melody of its own
LONGEST_SENTENCE = 400  # characters; about half a minute of speech
_LOOKAHEAD = 32  # characters after a full stop that may decide: closing marks, white space, opening marks, a letter

_STOP = re.compile(r"[.!?…]+[\"'”’)\]»*_]*(?=\s)|[。！？｡][。！？!?…｡]*[」』”’）)\]\"']*|\n[ \t]*\n")
_CLAUSES = (re.compile(r"[,;:—–，、；：][\"'”’)\]]*\s|[，、；：]"), re.compile(r"\s"))
_CLAUSE = re.compile(r"[,;:—–][\"'”’)\]]*(?=\s)|[，、；：]")
_NEXT = re.compile(r"(\s+)[\"'“‘(\[«*_¿¡—–-]*([^\s\"'“‘(\[«*_¿¡—–-])")
_BEFORE = re.compile(r"([^\W0-9_](?:[^\W_]|\.(?=\w))*)\.$")
_INITIALS = re.compile(r"[A-Z](?:\.[A-Z])*")  # J. R. R., U.S.
# An abbreviation before one of these, or before a small letter or digit, is not an end; before a capital some are.
_NEVER_LAST = {name for name, (_, follows) in ABBREVIATIONS.items() if follows in ("name", "number", "any")}
_NEVER_LAST -= {"no", "No", "min", "max", "c", "p", "al", "ca", "est", "sec", "Sec", "ch", "Ch"}
_NUMBERED = {name for name, (_, follows) in ABBREVIATIONS.items() if follows == "number"}


class SentenceStream:
    """Takes text in pieces of any sizes and gives its sentences. Only white space between them is lost.

    clauses: a comma, colon or dash ends one too, where SHORTEST_CLAUSE characters stand before it.
    """

    def __init__(self, limit: int = LONGEST_SENTENCE, clauses: bool = False) -> None:
        self._limit, self._clauses = max(1, limit), clauses
        self._held = ""

    @property
    def certain(self) -> str:
        """What the next sentence begins with, whatever follows."""
        text = self._held
        for stop in _STOP.finditer(text):
            if not self._certain(text, stop):
                text = text[: stop.end()]
                break
        if len(text) > self._limit // 4:  # one that grows too long is cut at the last of these places
            for pattern in _CLAUSES:
                places = [place.end() for place in pattern.finditer(text, self._limit // 4)]
                if places:
                    return text[: places[-1]].rstrip()
            return text[: self._limit // 4].rstrip()
        return text.rstrip()

    def append(self, piece: str) -> list[str]:
        """The sentences that this piece makes certain."""
        return self._take(piece, end=False)

    def finish(self) -> list[str]:
        return self._take("", end=True)

    def _take(self, piece: str, end: bool) -> list[str]:
        text, at, found = self._held + piece, 0, list[str]()
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            window = text[at : at + self._limit + _LOOKAHEAD]
            border = self._border(window, end and at + len(window) == len(text))
            if border is None:
                break
            found.append(window[:border].rstrip())
            at += border
        self._held = text[at:]
        return found

    def _border(self, text: str, end: bool) -> int | None:
        """Where the first sentence or clause ends; a decision that needs more text is not made."""
        if self._clauses and (clause := _CLAUSE.search(text, SHORTEST_CLAUSE, self._limit)):
            border = self._sentence_border(text[: clause.end()], end=False)
            return clause.end() if border is None else border
        return self._sentence_border(text, end)

    def _sentence_border(self, text: str, end: bool) -> int | None:
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
            places = [place.end() for place in pattern.finditer(text, self._limit // 4, self._limit)]
            if places:
                return places[-1]
        return self._limit

    @staticmethod
    def _certain(text: str, stop: re.Match[str]) -> bool:
        """Whether what follows is there: a letter after white space, or a character that is no closing mark."""
        if stop[0][0] == "\n":
            return True
        if stop[0][0] in "。！？｡":
            return stop.end() < len(text)
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
    if dots != ".":  # "?!", "...": only a small letter goes on
        return not letter.islower()
    before = _BEFORE.search(text, max(0, stop.start() - 24), stop.start() + 1)
    word = before[1] if before else ""
    if word in _NEVER_LAST or (word in _NUMBERED and letter.isdigit()):
        return False
    if _INITIALS.fullmatch(word) and word != "I":
        return False
    return not letter.islower()


def sentences(text: str, limit: int = LONGEST_SENTENCE) -> list[str]:
    """The sentences of a text; one longer than `limit` characters is cut at clauses, then at words, then anywhere."""
    stream = SentenceStream(limit)
    return stream.append(text) + stream.finish()
