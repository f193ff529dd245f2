"""Where text may be cut: a border is where no rule reaches across, and depends on the text alone."""

import re
from collections.abc import Iterable

from polyvox.text.markup import FENCE, OPENS_TAG, SPAN
from polyvox.text.vocabulary import ABBREVIATIONS, MONEY, MONTHS, WEEKDAYS

LONGEST = 512  # characters without a border; then one is set
LONGEST_SPAN = 256  # characters within which a bracket, a tag or a piece of code must close on its line
WINDOW = LONGEST + LONGEST_SPAN + 1  # what decides about any border

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CJK_STOPS = "。！？，、；："
_ALNUM = re.compile(r"[^\W_]+")
_OPEN = re.compile(rf"[0-9{''.join(sign for sign in MONEY if len(sign) == 1)}]|^[\W_]+$")
_LAST_WORD = re.compile(r"([^\W0-9_][\w.]*)[.,]?[\"')*_]*$")
_JOINING = {*ABBREVIATIONS, *MONTHS, *(sign for sign in MONEY if len(sign) == 3)}
_JOINING |= {"x"} | {name[:size] for name in (*MONTHS, *WEEKDAYS) for size in (3, 4, 5)}


class Borders:
    """Finds borders in a window of text. A decision that needs more text is not made, so cuts never show.

    A segment ends at white space after a word that no rule joins to the next one, and at the end of a line.
    """

    def __init__(self, english: bool, phrases: Iterable[str]) -> None:
        self._english = english
        phrases = list(phrases)
        # All words but the last of each phrase in the lexicon.
        self._first_words = {word for phrase in phrases for word in _ALNUM.findall(phrase)[:-1] if " " in phrase}
        inner = f"(?<=[{_CJK_STOPS}])(?=[{_CJK}])"
        if not any(re.search(f"[{_CJK}]", phrase) for phrase in phrases):
            inner += f"|(?<=[{_CJK}])(?=[{_CJK}])"
        self._next = re.compile(rf"\s|[\[<`]|{inner}")

    def first(self, text: str, end: bool, line_start: bool) -> int | None:
        """The first border of a window that begins with a segment; None where more text decides."""
        if text[0] == "\n":
            return 1
        found = self._search(text, end, line_start)
        if found is not None and found <= LONGEST:
            return found
        if found is None and len(text) <= LONGEST + LONGEST_SPAN and not end:
            return None
        space = text.rfind(" ", 1, LONGEST)
        return space if space > 0 else LONGEST

    def _search(self, text: str, end: bool, line_start: bool) -> int | None:
        at = 0
        if line_start and (fence := FENCE.match(text)) and fence.end() < LONGEST:
            if fence.end() == len(text) and not end:
                return None
            if fence.end() == len(text) or text[fence.end()] == "\n":
                return fence.end()
        while True:
            while at < len(text) and text[at] == " ":
                at += 1
            start = at
            while True:
                found = self._next.search(text, at)
                if not found:
                    return len(text) if end else None
                place = found.start()
                if place > LONGEST:
                    return place
                if found[0] in ("[", "<", "`"):
                    after = self._span(text, place, end)
                    if after is None:
                        return None
                    at = after
                elif not found[0]:
                    if place > 0:
                        return place
                    at = 1
                else:
                    break
            if found[0] == "\n" or not self._open(text[start:place], line_start):
                return place
            at = place

    def _span(self, text: str, at: int, end: bool) -> int | None:
        """Where what opens here ends; the next character where nothing does; None where more text decides."""
        if text[at] == "<" and not OPENS_TAG.match(text, at):
            return at + 1
        newline = text.find("\n", at, at + LONGEST_SPAN)
        stop = newline if newline >= 0 else min(len(text), at + LONGEST_SPAN)
        decided = newline >= 0 or end or len(text) >= at + LONGEST_SPAN
        span = SPAN.match(text, at, stop)
        if span and (decided or (span.end() < stop and text[span.end()] not in "([`")):
            return span.end()
        return at + 1 if decided else None

    def _open(self, chunk: str, line_start: bool) -> bool:
        """Whether a rule may join the next word to this one."""
        if self._first_words and not self._first_words.isdisjoint(_ALNUM.findall(chunk.lower())):
            return True
        if not self._english:
            return not any(map(str.isalnum, chunk)) or (line_start and chunk.strip(".)").isdigit())
        word = _LAST_WORD.search(chunk)
        return bool(_OPEN.search(chunk)) or (word is not None and word[1].rstrip(".") in _JOINING)
