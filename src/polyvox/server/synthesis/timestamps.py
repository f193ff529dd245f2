# SPDX-License-Identifier: Apache-2.0
"""Times of words, segments and characters in the formats of the APIs."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from polyvox.alignment import SegmentTime, SpeechTimeline, TimedText, Times, WordTime
from polyvox.audio.samples import Samples

TimestampGranularity = Literal["word", "segment", "character"]  # characters: in ElevenLabs' APIs


class AlignmentScheduler:
    """Aligns the audio of all utterances on the event loop, one chunk per iteration of the loop.

    The engine returns chunks of all streams at once. Other tasks wait for one alignment, not for all.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def push(self, timeline: SpeechTimeline, samples: Samples, final: bool) -> TimedText:
        """As `SpeechTimeline.push`."""
        async with self._turn:
            timed = timeline.push(samples, final)
            await asyncio.sleep(0)
        return timed


def word_objects(timed: Iterable[TimedText], file_start: float) -> list[dict[str, Any]]:
    """file_start: the moment from which times count, in seconds."""
    return [{"word": word.word, **_range_fields(word, file_start)} for text in timed for word in text.words]


def segment_objects(timed: Iterable[TimedText], file_start: float) -> list[dict[str, Any]]:
    """file_start: the moment from which times count, in seconds."""
    return [
        {"id": segment.id, "text": segment.text, **_range_fields(segment, file_start)}
        for text in timed
        if (segment := text.segment) is not None
    ]


def _range_fields(timed: WordTime | SegmentTime, file_start: float) -> dict[str, float]:
    """Where a word or a segment is in the audio and in the text."""
    return {
        "start": round(timed.start - file_start, 3),
        "end": round(timed.end - file_start, 3),
        "text_start": timed.text_start,
        "text_end": timed.text_end,
    }


def timestamp_messages(
    timed: Sequence[TimedText], granularities: Sequence[str], prefix: str, file_start: float = 0.0
) -> list[dict[str, Any]]:
    """The messages of Polyvox's own APIs. prefix: of their types."""
    messages: list[dict[str, Any]] = []
    if "word" in granularities and (words := word_objects(timed, file_start)):
        messages.append({"type": f"{prefix}.words", "words": words, "estimated": True})
    if "segment" in granularities:
        for segment in segment_objects(timed, file_start):
            messages.append({"type": f"{prefix}.segment", "segment": segment, "estimated": False})
    return messages


def http_alignments(timed: Sequence[TimedText]) -> dict[str, Any]:
    """ElevenLabs' fields of HTTP responses. Times are seconds from the start of the audio."""

    def alignment(parts: list[Times]) -> dict[str, Any] | None:
        chars = [char for part in parts for char in part.chars]
        if not chars:
            return None
        return {
            "characters": chars,
            "character_start_times_seconds": [round(start, 3) for part in parts for start in part.starts],
            "character_end_times_seconds": [round(end, 3) for part in parts for end in part.ends],
        }

    return {
        "alignment": alignment([text.written for text in timed]),
        "normalized_alignment": alignment([text.spoken for text in timed]),
        "estimated": True,
    }


class WebSocketAlignment:
    """ElevenLabs' fields of WebSocket messages, in milliseconds.

    Times count from the end of the last alignment that was not null: clients add up the alignments. from_start: times
    count from the start of the utterance, as with ElevenLabs' sync_alignment.
    """

    def __init__(self, from_start: bool) -> None:
        self._from_start = from_start
        self._written_end = self._spoken_end = 0  # of the last alignments

    def message_fields(self, timed: Sequence[TimedText]) -> dict[str, Any]:
        if not timed:
            return {"alignment": None, "normalizedAlignment": None}
        written, self._written_end = self._alignment([text.written for text in timed], self._written_end)
        spoken, self._spoken_end = self._alignment([text.spoken for text in timed], self._spoken_end)
        return {"alignment": written, "normalizedAlignment": spoken, "estimated": True}

    def _alignment(self, parts: list[Times], origin: int) -> tuple[dict[str, Any] | None, int]:
        """The alignment and its end. origin: the end of the last one."""
        parts = [part for part in parts if part.chars]
        if not parts:
            return None, origin
        starts = [round(start * 1000) for part in parts for start in part.starts]
        end = round(parts[-1].ends[-1] * 1000)
        zero = 0 if self._from_start else origin
        alignment = {
            "chars": [char for part in parts for char in part.chars],
            "charStartTimesMs": [start - zero for start in starts],
            "charDurationsMs": [stop - start for start, stop in zip(starts, [*starts[1:], end], strict=True)],
        }
        return alignment, end
