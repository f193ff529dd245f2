# SPDX-License-Identifier: Apache-2.0
"""The audio of an utterance while it may be interrupted, to find the last word that was played."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyvox.alignment import SpeechTimeline, WordTime
from polyvox.alignment.words import WORD_WITH_SPACES
from polyvox.audio.pcm import Audio, Pcm, as_pcm, from_pcm
from polyvox.server.synthesis.segments import Segment
from polyvox.server.synthesis.timestamps import AlignmentScheduler
from polyvox.text.segment_text import SegmentText

MAX_SECONDS = 120.0  # of audio; beyond it, that of the oldest segments is dropped


@dataclass(slots=True)
class _RecordedSegment:
    source: SegmentText
    rate: float
    start: float  # seconds; after the silence before the segment
    end: float
    complete: bool = False  # all of its audio is known
    chunks: list[Pcm] | None = field(default_factory=list)  # None: dropped
    timeline: SpeechTimeline | None = None  # of the first chunks
    num_aligned: int = 0
    words: list[WordTime] = field(default_factory=list)  # that start in them, from the start of the segment

    @property
    def text_end(self) -> int:
        return self.source.start + len(self.source.written.rstrip())


class SpeechRecording:
    """Words are aligned when their times are needed, not while the utterance is synthesised: alignment takes more CPU
    time than all other work for an utterance, and most answers are not interrupted.

    speed: of the utterance.
    """

    def __init__(self, sample_rate: int, speed: float, alignments: AlignmentScheduler) -> None:
        self._sample_rate, self._speed, self._alignments = sample_rate, speed, alignments
        self._segments: list[_RecordedSegment] = []
        self._seconds = self._kept_seconds = 0.0  # of all audio, and of the audio that is not dropped
        self._silence = 0  # samples before the segment that are still to come

    def begin(self, segment: Segment) -> None:
        """The audio that follows is of this segment. A segment without positions is not recorded."""
        self.finish()
        if segment.source is None:
            return
        self._silence = round(segment.silence * segment.rate * self._sample_rate)
        self._segments.append(_RecordedSegment(segment.source, segment.rate, self._seconds, self._seconds))

    def add(self, audio: Audio) -> None:
        if not self._segments:
            return
        segment = self._segments[-1]
        seconds = len(audio) / self._sample_rate / (self._speed * segment.rate)
        self._seconds += seconds
        if self._silence:
            self._silence = max(0, self._silence - len(audio))
            segment.start = segment.end = self._seconds
            return
        segment.end = self._seconds
        if segment.chunks is not None:
            segment.chunks.append(as_pcm(audio).copy())  # it may be part of a larger buffer
            self._kept_seconds += seconds
        self._drop_oldest()

    def finish(self) -> None:
        """The segment has no more audio. Idempotent."""
        if self._segments:
            self._segments[-1].complete = True

    def drop_audio(self) -> None:
        """Times in a segment are then in proportion to its text."""
        for segment in self._segments:
            segment.chunks = segment.timeline = None
        self._kept_seconds = 0.0

    async def text_end(self, seconds: float) -> int | None:
        """Where the text ends that was played after these seconds: with the last word of which one half was played.

        None if the positions of the text are not known.
        """
        if not self._segments:
            return None
        index = next((index for index, each in enumerate(self._segments) if seconds < each.end), -1)
        segment = self._segments[index]
        before = self._segments[:index]
        end = before[-1].text_end if before else 0
        if segment.chunks is None:
            return max(end, segment.source.start + _proportional_end(segment, seconds))
        await self._align(segment, segment.chunks, seconds - segment.start)
        return last_played(segment.words, seconds - segment.start, end)

    async def _align(self, segment: _RecordedSegment, chunks: list[Pcm], seconds: float) -> None:
        """Finds the words that start in the first seconds of a segment."""
        timeline = segment.timeline
        if timeline is None:
            timeline = segment.timeline = SpeechTimeline(self._sample_rate, speed=self._speed)
            timeline.begin(segment.source, segment.rate)
        while timeline.seconds <= seconds and segment.num_aligned < len(chunks):
            segment.num_aligned += 1
            chunk = chunks[segment.num_aligned - 1]
            final = segment.complete and segment.num_aligned == len(chunks)
            segment.words += (await self._alignments.push(timeline, from_pcm(chunk), final)).words

    def _drop_oldest(self) -> None:
        for segment in self._segments:
            if self._kept_seconds <= MAX_SECONDS:
                return
            if segment.chunks is not None:
                self._kept_seconds -= segment.end - segment.start
                segment.chunks = segment.timeline = None


def last_played(words: Sequence[WordTime], seconds: float, before: int = 0) -> int:
    """The end of the last word of which at least one half was played, or of the text before the words."""
    return max((word.text_end for word in words if (word.start + word.end) / 2 <= seconds), default=before)


def proportional_end(text: str, share: float) -> int:
    """The end of the last word in a share of the text, 0 to 1."""
    ends = (word.end(1) for word in WORD_WITH_SPACES.finditer(text))
    return max((end for end in ends if end <= share * len(text)), default=0)


def _proportional_end(segment: _RecordedSegment, seconds: float) -> int:
    duration = segment.end - segment.start
    share = (seconds - segment.start) / duration if duration else 1.0
    return proportional_end(segment.source.written, min(max(share, 0.0), 1.0))
