# SPDX-License-Identifier: Apache-2.0
"""Split points of streamed text: positions that no rule matches across. They depend on the text alone."""

import re

from polyvox.text.languages.language_rules import LanguageRules
from polyvox.text.lexicon import CJK, Lexicon
from polyvox.text.markup import FENCE, FORMULA, OPENS_TAG, SPAN

MAX_SEGMENT = 512  # characters without a split point; then one is forced
MAX_SPAN = 256  # characters in which a bracket, tag or code span must close, on one line
WINDOW = MAX_SEGMENT + MAX_SPAN + 1  # characters that decide about a split point

_CJK_STOPS = "。！？，、；："
_SPACE_OR_SPAN = re.compile(r"[ \[<`]")
_ALNUM = re.compile(r"[^\W_]+")
_OPENS_FORMULA = r"\$(?=[^\s$])|\\[(\[]|\\[dt]?frac|\\sqrt"
_MAX_DOLLARS = 68  # characters in which $…$ must close


class SplitPointFinder:
    """Finds split points in a window of text. A decision that needs more text is deferred, so chunking has no effect.

    A segment ends at white space after a word that no rule joins to the next word, and at the end of a line.
    """

    def __init__(self, language: LanguageRules, lexicon: Lexicon) -> None:
        self._language = language
        self._joining_words = lexicon.joining_words
        inner = f"(?<=[{_CJK_STOPS}])(?=[{CJK}])"
        if not lexicon.has_cjk:
            inner += f"|(?<=[{CJK}])(?=[{CJK}])"
        formulas = f"{_OPENS_FORMULA}|" if language.formulas else ""
        self._next = re.compile(rf"\s|{formulas}[\[<`]|{inner}")

    def first(self, text: str, end: bool, line_start: bool) -> int | None:
        """The first split point of a window; None if it depends on more text."""
        if text[0] == "\n":
            return 1
        found = self._search(text, end, line_start)
        if found is not None and found <= MAX_SEGMENT:
            return found
        if len(text) < WINDOW and not end:
            return None
        return self._forced(text, end)

    def _forced(self, text: str, end: bool) -> int:
        """The last position up to MAX_SEGMENT that is a space or an end of a span, and not within a span."""
        at = found = 0
        while opening := _SPACE_OR_SPAN.search(text, at, MAX_SEGMENT):
            position = opening.start()
            if opening[0] == " ":
                at, found = position + 1, position
                continue
            after = self._span(text, position, end)
            assert after is not None, "the window decides about each span that opens in the segment"
            at = after
            if at > position + 1:
                found = at if at <= MAX_SEGMENT else position
        return found or MAX_SEGMENT

    def _search(self, text: str, end: bool, line_start: bool) -> int | None:
        at = 0
        if line_start and (fence := FENCE.match(text)) and fence.end() < MAX_SEGMENT:
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
                position = found.start()
                if position > MAX_SEGMENT:
                    return position
                if found[0] in ("[", "<", "`"):
                    after = self._span(text, position, end)
                    if after is None:
                        return None
                    at = after
                elif found[0][:1] in ("$", "\\"):
                    after = self._formula(text, position, end)
                    if after is None:
                        return None
                    at = after
                elif not found[0]:
                    if position > 0:
                        return position
                    at = 1
                else:
                    break
            if found[0] == "\n" or not self._may_join_next(text, start, position, line_start):
                return position
            at = position

    def _span(self, text: str, at: int, end: bool) -> int | None:
        """The end of the span that opens here; the next character if none does; None if it depends on more text."""
        if text[at] == "<" and not OPENS_TAG.match(text, at):
            return at + 1
        newline = text.find("\n", at, at + MAX_SPAN)
        stop = newline if newline >= 0 else min(len(text), at + MAX_SPAN)
        decided = newline >= 0 or end or len(text) >= at + MAX_SPAN
        span = SPAN.match(text, at, stop)
        if span and (decided or (span.end() < stop and text[span.end()] not in "([`")):
            return span.end()
        return at + 1 if decided else None

    def _formula(self, text: str, at: int, end: bool) -> int | None:
        """Like `_span`, for a formula."""
        limit = at + (_MAX_DOLLARS if text[at] == "$" else MAX_SPAN)
        newline = text.find("\n", at, limit)
        stop = newline if newline >= 0 else min(len(text), limit)
        decided = newline >= 0 or end or len(text) >= limit
        span = FORMULA.match(text, at, stop)
        if span and (decided or span.end() < stop):
            return span.end()
        return at + 1 if decided else None

    def _may_join_next(self, text: str, start: int, end: int, line_start: bool) -> bool:
        """Whether a rule may match the word from `start` to `end` together with the next."""
        chunk = text[start:end]
        if self._joining_words and not self._joining_words.isdisjoint(_ALNUM.findall(chunk.lower())):
            return True
        if not any(map(str.isalnum, chunk)) or (line_start and chunk.strip(".)").isdigit()):
            return True
        return self._language.joins_next(text, start, end)
