# SPDX-License-Identifier: Apache-2.0
"""The text of a segment as it is spoken and as it was written."""

import re
from dataclasses import dataclass, field

import numpy as np

from polyvox.text.normalizer import TextNormalizer

MAX_MARKUP = 1024  # characters after the last word of a segment that may be its markup
_MARKUP = re.compile(r"(?:[^\w\s<]|_|<[^<>\s]*>){1,64}")


@dataclass(slots=True, eq=False)
class SegmentText:
    """A segment of a text. Both texts grow while it is incomplete."""

    start: int  # position of its written text in the whole
    spoken: str = ""
    written: str = ""
    positions: list[float] = field(default_factory=list)  # in the spoken text, of each written character
    complete: bool = False


class SegmentLocator:
    """Finds the written text of segments. Every written character belongs to exactly one segment, in order."""

    def __init__(self, normalizer: TextNormalizer) -> None:
        self._normalizer = normalizer
        self._written = _Window()  # the text that belongs to no segment yet
        self._words = _Window()  # the spoken words from the last segment on

    def append_written(self, text: str) -> None:
        self._written.append(text)

    def append_words(self, text: str) -> None:
        self._words.append(text)

    def begin(self) -> SegmentText:
        """The next segment, whose spoken text is not known yet."""
        while self._words.first(1).isspace():
            self._words.drop(1)
        return SegmentText(self._written.start)

    def extend(self, segment: SegmentText, spoken: str, complete: bool) -> None:
        """Sets the spoken text of the last segment. It continues what is known."""
        segment.spoken, segment.complete = spoken, complete
        words_start = self._words.start
        end = words_start + len(spoken)
        # Positions are searched in parts: text that is not normalised yet may be long.
        while part := self._written.first(2 * len(spoken) + 64):
            found = self._normalizer.spoken_positions(self._written.start + np.arange(len(part)))
            num_chars = int(np.searchsorted(found, end))
            segment.written += part[:num_chars]
            segment.positions += np.maximum(0.0, found[:num_chars] - words_start).tolist()
            self._written.drop(num_chars)
            if num_chars < len(part):
                break
        if complete:
            self._add_markup(segment, end)
            self._words.drop(len(spoken))

    def _add_markup(self, segment: SegmentText, end: int) -> None:
        """Adds the markup right after the last word of a segment, of which nothing is spoken."""
        following = self._written.first(MAX_MARKUP)
        found = _MARKUP.match(following)
        length = found.end() if found is not None else 0
        positions = self._normalizer.spoken_positions(self._written.start + 1 + np.arange(length))
        num_chars = int(np.searchsorted(positions, end, "right"))
        segment.written += following[:num_chars]
        segment.positions += [float(len(segment.spoken))] * num_chars
        self._written.drop(num_chars)

    def rest(self) -> SegmentText:
        """The written text after the last segment, of which nothing is spoken."""
        start, written = self._written.start, self._written.rest()
        self._written.drop(len(written))
        return SegmentText(start, "", written, [0.0] * len(written), complete=True)


class _Window:
    """A text that grows at its end and is dropped at its start, in time proportional to its length."""

    def __init__(self) -> None:
        self._text, self._num_dropped = "", 0
        self.start = 0  # its position in all text that was appended

    def append(self, text: str) -> None:
        self._text += text

    def first(self, num_chars: int) -> str:
        return self._text[self._num_dropped : self._num_dropped + num_chars]

    def rest(self) -> str:
        return self._text[self._num_dropped :]

    def drop(self, num_chars: int) -> None:
        self._num_dropped, self.start = self._num_dropped + num_chars, self.start + num_chars
        if 2 * self._num_dropped > len(self._text):
            self._text, self._num_dropped = self._text[self._num_dropped :], 0
