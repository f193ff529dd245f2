# SPDX-License-Identifier: Apache-2.0
"""Words of a written text and the part of the spoken text that belongs to each."""

import re
from dataclasses import dataclass

from polyvox.text.segment_text import SegmentText

# Scripts without spaces: each character is a word, with the punctuation after it.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}][^\w\s]*|[^\s{_UNSPACED}]+")
WORD_WITH_SPACES = re.compile(rf"\s*({_WORD.pattern})\s*")


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word as it was written, its times in seconds, and its position in the whole text."""

    word: str
    start: float
    end: float
    text_start: int
    text_end: int


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of a segment: its range in the written text, and the range of its sounds in the spoken text."""

    start: int
    end: int
    sound_start: int
    sound_end: int
    after: int  # where the next word is searched


def next_word(segment: SegmentText, at: int) -> SpokenWord | None:
    """The first word from a position in the written text on of which something is spoken."""
    for match in _WORD.finditer(segment.written, at):
        start, end = match.span()
        while start < end and not _spoken(segment, start).strip():
            start += 1
        while end > start and not _spoken(segment, end - 1).strip():
            end -= 1
        # Markup within a word, and punctuation after it: "yes</b>,".
        gap = next((index for index in range(start, end) if not _spoken(segment, index)), end)
        if not any(map(str.isalnum, segment.spoken[round(_position(segment, gap)) : round(_position(segment, end))])):
            end = gap
        first, last = round(_position(segment, start)), round(_position(segment, end))
        while first < last and not segment.spoken[first].isalnum():
            first += 1
        while last > first and not segment.spoken[last - 1].isalnum():
            last -= 1
        if first < last:
            return SpokenWord(start, end, first, last, match.end())
    return None


def _position(segment: SegmentText, index: int) -> float:
    return segment.positions[index] if index < len(segment.positions) else len(segment.spoken)


def _spoken(segment: SegmentText, index: int) -> str:
    """What is spoken for a written character, with the characters of which it is a part."""
    start, end = _position(segment, index), _position(segment, index + 1)
    return segment.spoken[int(start) : -int(-end // 1)] if end > start else ""
