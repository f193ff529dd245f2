# SPDX-License-Identifier: Apache-2.0
"""Collects normalised text into parts: spacing, punctuation at line ends, pauses."""

import re

from polyvox.text.parts import Part, Pause, Rate, Words
from polyvox.text.position_map import PositionMap

_CLOSING = ")]}%!?.,;:…"
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")  # scripts that join replaced words without spaces
_STOPS = ".!?…"
_ENDS = ".!?,;:…—–-。！？，；："
_WORD = re.compile(r"\S+")


class PartWriter:
    """Collects parts. The result does not depend on when `take` is called.

    positions: records the positions of what was written, by `mark`.
    """

    def __init__(self, positions: PositionMap | None) -> None:
        self._positions = positions
        self._num_chars = 0  # of all words
        self._unmarked: list[str] = []  # written since the last mark
        self.structured = False  # the line is a heading, a list item or a table row
        self._parts: list[Part] = []
        self._text: list[str] = []
        self._last = ""  # the last character since the last pause; empty at the start
        self._gap = ""
        self._comma = False
        self._after_words = False
        self._after_pause = False
        self.silence = 0.0  # seconds of pauses since the last letter or digit

    def raw(self, text: str) -> None:
        """Text that was not changed. Runs of spaces become one."""
        if text.isspace():
            self._gap = self._gap or " "
        elif text:
            self._put(text, self._after_words and (text[0].isalnum() or text[0] in "([{"))
            self._after_words = False

    def say(self, words: str, sentence: bool = False) -> None:
        """Words that replace something in the text; they are separated from their neighbours by spaces, in
        Chinese, Japanese and Korean only where they end with a space.

        sentence: capitalise them at the start of a sentence, so that the sentence splitter still finds it.
        """
        if not words.strip():
            self._gap = self._gap or " "
            return
        starts_sentence = (
            "\n" in self._gap
            or (self._last and self._last in _STOPS and self._gap)
            or not (self._last or self._after_pause)
        )
        if sentence and starts_sentence:
            words = words.lstrip()[:1].upper() + words.lstrip()[1:]
        self._put(words.strip(), self._last.isalnum() or self._last in _CLOSING)
        self._gap = " " if words[-1] == " " else ""
        self._after_words = True

    def line(self) -> None:
        self.end_line()
        self._gap = "\n\n" if "\n" in self._gap else "\n"

    def sentence(self) -> None:
        """End a sentence, with a full stop if it has no punctuation."""
        self.end_line()
        self._gap = self._gap if "\n" in self._gap else "\n"

    def paragraph(self) -> None:
        self.end_line()
        self._gap = "\n\n"

    def cell(self) -> None:
        """Add a comma if more text follows on the line."""
        self._comma = bool(self._last) and "\n" not in self._gap

    def end_line(self) -> None:
        """Add a full stop after a structured line without punctuation."""
        structured, self.structured, self._comma = self.structured, False, False
        if structured and self._last and "\n" not in self._gap and self._last not in _ENDS:
            self._gap = ""
            self._put(".", False)
            self._after_words = False
            self._unmarked.clear()

    def pause(self, seconds: float) -> None:
        self.silence += seconds
        self._split(Pause(seconds))

    def rate(self, value: float) -> None:
        """Change the speaking rate of the text that follows."""
        self._split(Rate(value))

    def mark(self, position: int, source: str) -> None:
        """Records that the text since the last mark was written for a piece of the source."""
        if self._positions is None or not self._unmarked:
            return
        text = "".join(self._unmarked)
        start = self._num_chars - len(text)
        self._positions.add(position, start)
        if len(text) != len(source):
            words, spoken = list(_WORD.finditer(source)), list(_WORD.finditer(text))
            if len(words) == len(spoken):  # word by word
                for word, said in zip(words, spoken, strict=True):
                    self._positions.add(position + word.start(), start + said.start())
                    self._positions.add(position + word.end(), start + said.end())
        self._positions.add(position + len(source), self._num_chars)
        self._unmarked.clear()

    @property
    def is_in_word(self) -> bool:
        """Whether nothing follows the last letter or digit so far: a word that follows is separated by a space."""
        return self._last.isalnum() and not (self._gap or self._comma)

    def take(self) -> list[Part]:
        """The parts since the last call."""
        self._flush()
        parts, self._parts = self._parts, []
        return parts

    def restart(self) -> None:
        """The text that follows is not joined to the text so far."""
        self._flush()
        self.structured = self._comma = self._after_words = self._after_pause = False
        self._last = self._gap = ""

    def _split(self, part: Part) -> None:
        self._flush()
        self._parts.append(part)
        self._last, self._gap, self._comma, self._after_words, self._after_pause = "", "", False, False, True

    def _put(self, text: str, apart: bool) -> None:
        if self._after_pause:  # punctuation alone cannot be spoken
            text = text.lstrip(" .,;:!?…")
            if not text:
                return
            self._after_pause = False
        if self.silence and any(map(str.isalnum, text)):
            self.silence = 0.0
        apart = apart and not (_UNSPACED.match(self._last) and _UNSPACED.match(text))
        gap = self._gap or (" " if apart else "")
        if self._comma and self._last not in _ENDS:
            gap = ", "
        gap = gap if self._last else ""
        self._text.append(gap + text)
        if self._positions is not None:
            self._num_chars += len(gap) + len(text)
            self._unmarked.append(gap + text if self._unmarked else text)
        self._last, self._gap, self._comma = text[-1], "", False

    def _flush(self) -> None:
        if self._text:
            self._parts.append(Words("".join(self._text)))
            self._text = []
