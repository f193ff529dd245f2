# SPDX-License-Identifier: Apache-2.0
"""Subtitle files with the times of spoken sentences."""

from collections.abc import Sequence
from typing import Literal

SubtitleFormat = Literal["srt", "vtt"]
Cue = tuple[int, int, str]  # first sample, end sample, text


def format_subtitles(cues: Sequence[Cue], sample_rate: int, format: SubtitleFormat) -> str:
    """The text of a subtitle file."""
    separator = "," if format == "srt" else "."

    def timestamp(sample: int) -> str:
        milliseconds = round(sample * 1000 / sample_rate)
        seconds, milliseconds = divmod(milliseconds, 1000)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{separator}{milliseconds:03}"

    blocks = [f"{timestamp(start)} --> {timestamp(end)}\n{text}\n" for start, end, text in cues]
    if format == "srt":
        return "\n".join(f"{number}\n{block}" for number, block in enumerate(blocks, 1))
    return "\n".join(["WEBVTT\n", *blocks])
