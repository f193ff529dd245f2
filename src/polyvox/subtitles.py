# SPDX-License-Identifier: Apache-2.0
"""Subtitle files with the times of spoken sentences or words."""

from collections.abc import Sequence
from typing import Literal

from polyvox.alignment import WordTime

SubtitleFormat = Literal["srt", "vtt"]
Cue = tuple[int, int, str]  # first sample, end sample, text


def word_cues(cue: Cue, words: Sequence[WordTime], sample_rate: int, format: SubtitleFormat) -> list[Cue]:
    """The cues of a sentence with the times of its words: in srt one cue per word, in vtt times within the text."""
    if not words:
        return [cue]
    if format == "srt":
        return [(round(word.start * sample_rate), round(word.end * sample_rate), word.word) for word in words]
    timed = " ".join(f"<{_timestamp(word.start, format)}>{_escaped(word.word)}" for word in words)
    return [(cue[0], cue[1], timed)]


def format_subtitles(cues: Sequence[Cue], sample_rate: int, format: SubtitleFormat) -> str:
    """The text of a subtitle file."""

    def timestamp(sample: int) -> str:
        return _timestamp(sample / sample_rate, format)

    blocks = [f"{timestamp(start)} --> {timestamp(end)}\n{text}\n" for start, end, text in cues]
    if format == "srt":
        return "\n".join(f"{number}\n{block}" for number, block in enumerate(blocks, 1))
    return "\n".join(["WEBVTT\n", *blocks])


def _timestamp(seconds: float, format: SubtitleFormat) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    separator = "," if format == "srt" else "."
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{separator}{milliseconds:03}"


def _escaped(text: str) -> str:
    """A text without the characters that start a tag in vtt."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
