# SPDX-License-Identifier: Apache-2.0
"""The text of a segment as it is spoken and as it was written."""

import re
from dataclasses import dataclass, field

import numpy as np

from polyvox.text.normalizer import TextNormalizer

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
        self._written, self._num_assigned = "", 0  # the text that belongs to no segment yet, and the length before it
        self._words, self._words_start = "", 0  # the spoken words from the last segment on, and their position

    def append_written(self, text: str) -> None:
        self._written += text

    def append_words(self, text: str) -> None:
        self._words += text

    def begin(self) -> SegmentText:
        """The next segment, whose spoken text is not known yet."""
        num_blank = len(self._words) - len(self._words.lstrip())
        self._words, self._words_start = self._words[num_blank:], self._words_start + num_blank
        return SegmentText(self._num_assigned)

    def extend(self, segment: SegmentText, spoken: str, complete: bool) -> None:
        """Sets the spoken text of the last segment. It continues what is known."""
        segment.spoken, segment.complete = spoken, complete
        end = self._words_start + len(spoken)
        # Positions are searched in parts: text that is not normalised yet may be long.
        while self._written:
            part = self._written[: 2 * len(spoken) + 64]
            found = self._normalizer.spoken_positions(np.arange(self._num_assigned, self._num_assigned + len(part)))
            num_chars = int(np.searchsorted(found, end))
            segment.written += part[:num_chars]
            segment.positions += np.maximum(0.0, found[:num_chars] - self._words_start).tolist()
            self._written, self._num_assigned = self._written[num_chars:], self._num_assigned + num_chars
            if num_chars < len(part):
                break
        if complete:
            self._add_markup(segment, end)
            self._words, self._words_start = self._words[len(spoken) :], end

    def _add_markup(self, segment: SegmentText, end: int) -> None:
        """Adds the markup right after the last word of a segment, of which nothing is spoken."""
        found = _MARKUP.match(self._written)
        length = found.end() if found is not None else 0
        following = self._normalizer.spoken_positions(self._num_assigned + 1 + np.arange(length))
        num_chars = int(np.searchsorted(following, end, "right"))
        segment.written += self._written[:num_chars]
        segment.positions += [float(len(segment.spoken))] * num_chars
        self._written, self._num_assigned = self._written[num_chars:], self._num_assigned + num_chars

    def rest(self) -> SegmentText:
        """The written text after the last segment, of which nothing is spoken."""
        rest = SegmentText(self._num_assigned, "", self._written, [0.0] * len(self._written), complete=True)
        self._num_assigned, self._written = self._num_assigned + len(self._written), ""
        return rest
