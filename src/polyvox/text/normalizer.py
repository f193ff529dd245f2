# SPDX-License-Identifier: Apache-2.0
"""Text normalisation of whole and streamed text, with the same result."""

import re
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyvox.text.inline_normalizer import CONTEXT, InlineNormalizer
from polyvox.text.language_selector import LanguageSelector
from polyvox.text.languages.language_rules import LanguageRules
from polyvox.text.markup import FENCE, PREFIX, RULE_LINE, HiddenSpanFilter
from polyvox.text.part_writer import PartWriter
from polyvox.text.parts import Note, Part, Words, merge_parts
from polyvox.text.position_map import PositionMap
from polyvox.text.rules import LETTER
from polyvox.text.split_points import MAX_SEGMENT, WINDOW, SplitPointFinder
from polyvox.text.ssml import SsmlReader
from polyvox.text.text_rules import TextRules
from polyvox.text.unicode_cleaner import UnicodeCleaner

_NEXT_WORD = re.compile(rf" +{LETTER}")


class TextNormalizer:
    """Normalises streamed text and returns its parts as early as possible.

    It buffers the last word, which may still grow, and what a rule may match together with it: a number before a word,
    an open bracket or tag. At most MAX_SEGMENT + MAX_SPAN characters and one grapheme cluster are pending. What depends
    on the language of a sentence, such as a number, waits until the language is decided (`LanguageSelector`).
    track_positions: record for `spoken_positions` where the characters of the text went.
    """

    def __init__(self, rules: TextRules | None = None, track_positions: bool = False) -> None:
        self._rules = rules or TextRules()
        # Of each stage, in order.
        self._positions = [PositionMap() if track_positions else None for _ in range(4)]
        self._ssml, self._writer = SsmlReader(self._positions[0], self._rules.ssml), PartWriter(self._positions[3])
        self._new_filters()
        self._selector = LanguageSelector(self._rules)
        self._inline = InlineNormalizer(self._rules, self._writer, self._language)
        self._split_points = {self._language.name: SplitPointFinder(self._language, self._rules.lexicon)}
        self._text, self._at = "", 0
        self._text_start = 0  # position of _text in the output of the filters
        self._line_start = True
        self._fence, self._code, self._code_lines = "", list[str](), 0
        if self._rules.enabled and not self._rules.is_auto and not self._language.rules:
            self._inline.note("language", self._rules.language)
        self._notes: list[Note] = []  # of text before a flush

    @property
    def _language(self) -> LanguageRules:
        return self._selector.language

    @property
    def languages(self) -> dict[str, int]:
        """The number of sentences by language, in the order of the text."""
        return dict(self._selector.num_sentences) if self._rules.enabled else {}

    @property
    def notes(self) -> list[Note]:
        """What was changed or left out so far."""
        return [*self._notes, *self._cleaner.notes, *self._hidden.notes, *self._inline.notes]

    def spoken_positions(self, positions: ArrayLike) -> NDArray[np.float64]:
        """Positions in the words of all parts so far, for positions in the text, which ascend."""
        found = np.asarray(positions, np.float64)
        for stage in self._positions if self._rules.enabled else ():
            assert stage is not None, "positions are not tracked"
            found = stage(found)
        return found

    def append(self, piece: str) -> list[Part]:
        """The parts that are complete after this piece; raises InvalidRequest for malformed SSML."""
        if not self._rules.enabled:
            return [Words(piece)] if piece else []
        return self._read(self._hidden.append(self._cleaner.append(self._ssml.append(piece))), end=False)

    def flush(self) -> list[Part]:
        """The remaining parts of the text so far; text that follows is not joined to it. An SSML document goes on."""
        if not self._rules.enabled:
            return []
        parts = self._end_text(self._ssml.flush())
        self._notes += [*self._cleaner.notes, *self._hidden.notes]
        self._new_filters()
        self._text_start += len(self._text)
        self._text, self._at, self._line_start = "", 0, True
        self._selector.start_sentence(0)
        self._writer.restart()
        return parts

    def finish(self) -> list[Part]:
        """The remaining parts; raises InvalidRequest if an SSML document is not complete."""
        return self._end_text(self._ssml.finish()) if self._rules.enabled else []

    def _new_filters(self) -> None:
        self._cleaner, self._hidden = UnicodeCleaner(self._positions[1]), HiddenSpanFilter(self._positions[2])

    def _end_text(self, text: str) -> list[Part]:
        return self._read(self._hidden.append(self._cleaner.append(text, end=True), end=True), end=True)

    @property
    def num_pending(self) -> int:
        """The number of buffered characters."""
        stages = (self._ssml, self._cleaner, self._hidden)
        return len(self._text) - self._at + sum(stage.num_pending for stage in stages)

    @property
    def is_word_complete(self) -> bool:
        """Whether the parts so far end with a word after which a space is certain: another word follows it."""
        return self._writer.is_in_word and _NEXT_WORD.match(self._text, self._at) is not None

    def _read(self, text: str, end: bool) -> list[Part]:
        self._text += text
        while self._at < len(self._text):
            if self._fence:
                if not self._read_code(end):
                    break
                continue
            window = self._text[self._at : self._at + WINDOW]
            ends = end and self._at + len(window) == len(self._text)
            end_of_segment = self._selector.plain_word_end(self._text, self._at)
            is_decided = self._selector.select(self._text, self._at, end)
            if end_of_segment is None:
                if not is_decided:
                    break
                end_of_segment = self._finder().first(window, ends, self._line_start)
            if end_of_segment is None:
                break
            self._render(window[:end_of_segment])
            self._selector.advance(window[:end_of_segment], self._at)
            self._at += end_of_segment
        if end:
            self._close_code()
            self._writer.end_line()
        start = max(0, min(self._at - CONTEXT, self._selector.first_needed(self._at)))
        self._text, self._at, self._text_start = self._text[start:], self._at - start, self._text_start + start
        self._selector.shift(start)
        return self._writer.take()

    def _finder(self) -> SplitPointFinder:
        language = self._language
        if language.name not in self._split_points:
            self._split_points[language.name] = SplitPointFinder(language, self._rules.lexicon)
        self._inline.set_language(language)
        return self._split_points[language.name]

    def _render(self, segment: str) -> None:
        if segment == "\n":
            self._line_start = True
            self._writer.line()
            return
        context = self._text[max(0, self._at - CONTEXT) : self._at]
        text, at = context + segment, len(context)
        origin = self._text_start + self._at - len(context)
        if self._line_start and segment.strip():
            self._line_start = False
            if fence := FENCE.fullmatch(segment):
                self._fence, self._code, self._code_lines = fence["fence"], [segment], 0
                return
            if (
                RULE_LINE.fullmatch(segment)
                and (len(segment.strip()) > 1 or "|" in segment)
                and segment.strip() != "--"
            ):
                self._writer.paragraph()
                return
            at = self._prefixes(text, at, origin)
        self._inline.read(text, at, origin)

    def _prefixes(self, text: str, at: int, origin: int) -> int:
        while (prefix := PREFIX.match(text, at)) and prefix.end() > at:
            self._writer.structured |= not prefix["quote"]
            if prefix["number"]:
                cardinal = self._language.cardinal
                self._writer.say(f"{cardinal(prefix['number'])}," if cardinal else prefix[0], sentence=True)
            if prefix["task"] and (announcements := self._language.announcements):
                self._writer.say(announcements.task if prefix["task"] == " " else announcements.completed_task)
            self._writer.mark(origin + at, prefix[0])
            at = prefix.end()
            if prefix["row"] or prefix["heading"] or prefix["number"]:
                break
        return at

    def _read_code(self, end: bool) -> bool:
        newline = self._text.find("\n", self._at, self._at + MAX_SEGMENT)
        whole = newline >= 0
        stop = newline + 1 if whole else min(len(self._text), self._at + MAX_SEGMENT)
        if not whole and stop - self._at < MAX_SEGMENT and not end:
            return False
        line, self._at = self._text[self._at : stop], stop
        first = self._code[-1].endswith("\n")
        self._code.append(line)
        bare = line.strip()
        if first and len(bare) >= len(self._fence) and set(bare) == {self._fence[0]}:
            self._close_code()
            if whole:
                self._writer.line()
        elif whole or end:
            self._code_lines += len(self._code) > 2 or bool(bare)
        return True

    def _close_code(self) -> None:
        if not self._fence:
            return
        self._inline.note("code", "".join(self._code))
        num_lines = self._code_lines
        self._fence, self._code, self._line_start = "", [], True
        if announcements := self._language.announcements:
            self._writer.say(announcements.code_block(num_lines))
            self._writer.mark(self._text_start + self._at, "")
        self._selector.start_sentence(self._at)


def normalize_text(text: str, rules: TextRules | None = None) -> list[Part]:
    """Normalise a whole text."""
    normalizer = TextNormalizer(rules)
    return merge_parts(chain(normalizer.append(text), normalizer.finish()))
