# SPDX-License-Identifier: Apache-2.0
"""The times of the text of an utterance in its audio, segment by segment, while it is synthesised."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyvox.alignment.aligner import SegmentAligner
from polyvox.alignment.words import WORD_WITH_SPACES, SpokenWord, WordTime, next_word
from polyvox.audio.samples import Samples
from polyvox.audio.time_stretch import MAX_SPEED, MIN_SPEED
from polyvox.text.phonemes.inline_phonemes import MARK_CLOSE, MARK_MIDDLE, MARK_OPEN
from polyvox.text.segment_text import SegmentText

# The end of a word that is still being spoken is predicted as this share of the expected remaining time: the next word
# does not start before it.
REMAINING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Times:
    """Characters with their start and end times in seconds. Each ends where the next one starts."""

    chars: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, char: str, start: float) -> None:
        self.end_at(start)
        self.chars.append(char)
        self.starts.append(start)
        self.ends.append(start)

    def end_at(self, seconds: float) -> None:
        if self.ends:
            self.ends[-1] = seconds


@dataclass(frozen=True, slots=True)
class SegmentTime:
    """A segment (a sentence) of the written text. Its times are exact."""

    id: int
    text: str
    start: float
    end: float
    text_start: int
    text_end: int


@dataclass(frozen=True, slots=True)
class TimedText:
    """The words that start in a piece of audio, and their characters with the spaces around them."""

    end: float  # of the audio so far, in seconds
    written: Times = field(default_factory=Times)
    spoken: Times = field(default_factory=Times)
    words: list[WordTime] = field(default_factory=list)
    segment: SegmentTime | None = None  # if it ends with the audio


@dataclass(slots=True)
class _Progress:
    """Of the characters of a text that were returned: their number in the segment, and the end of the last one."""

    num_chars: int = 0
    end: float = 0.0


class SpeechTimeline:
    """Times of characters and words. Text and audio come in any pieces; what was returned never changes.

    streaming: words are returned with the audio in which they start. Otherwise all of a segment at its end, when times
    are more exact. speed: of the played audio relative to the samples. sample_speed: of the samples relative to speech.
    """

    def __init__(self, sample_rate: int, streaming: bool = True, speed: float = 1.0, sample_speed: float = 1.0) -> None:
        self._sample_speed = sample_speed
        self._sample_rate, self._streaming, self._speed = sample_rate, streaming, speed
        self.seconds = 0.0  # of audio so far
        self._num_segments = 0
        self._last_word_end = 0.0
        self._written, self._spoken = _Progress(), _Progress()
        self._segment = SegmentText(0, complete=True)
        self._rate = speed

    def begin(self, segment: SegmentText, rate: float = 1.0) -> None:
        """The audio that follows is of this segment. rate: of speaking, relative to the speed."""
        self._segment = segment
        self._rate = min(max(self._speed * rate, MIN_SPEED), MAX_SPEED)
        self._aligner = SegmentAligner(self._sample_rate, self._sample_speed)
        self._start: float | None = None
        self._spoken_starts: list[float] = []  # of the characters of the spoken text that are known
        self._num_states = 0  # known
        self._next_word: SpokenWord | None = None  # if no text that follows can change it
        self._shown: list[str] = []  # what is shown for each spoken character
        self._num_read = self._word_at = 0  # of the spoken text; of the written text
        self._written.num_chars = self._spoken.num_chars = 0
        self._in_phonemes = self._text_ended = False

    def silence(self, num_samples: int) -> TimedText:
        """Silence before or after a segment."""
        self.seconds += num_samples / self._sample_rate / self._rate
        return TimedText(self.seconds)

    def push(self, samples: Samples, final: bool) -> TimedText:
        """Audio of the segment. final: its last."""
        if self._start is None:
            self._start = self.seconds
        self._read_text(final)
        self._aligner.push(samples)
        sent, self.seconds = self.seconds, self.seconds + len(samples) / self._sample_rate / self._rate
        timed = TimedText(self.seconds)
        if final:
            self._aligner.finish_audio()
            timed = TimedText(self.seconds, segment=self._segment_time())
        if final or self._streaming:
            self._add_starts(sent if self._streaming else self._start, final)
            text = self._segment
            self._add_chars(timed.written, self._written, text.written, text.written, text.positions, final)
            self._add_chars(timed.spoken, self._spoken, text.spoken, self._shown, range(self._num_read), final)
            self._add_words(timed)
        return timed

    def finish(self, rest: SegmentText) -> TimedText:
        """The text after the last segment, of which nothing is spoken. The last character ends with the audio."""
        timed = TimedText(self.seconds)
        for times, progress, text in ((timed.written, self._written, rest.written), (timed.spoken, self._spoken, "")):
            for char in text or ([""] if progress.end < self.seconds else []):
                times.add(char, progress.end)
            times.end_at(max(progress.end, self.seconds))
        return timed

    def _segment_time(self) -> SegmentTime:
        written = self._segment.written
        text = written.strip()
        start = self._segment.start + len(written) - len(written.lstrip())
        self._num_segments += 1
        assert self._start is not None
        return SegmentTime(self._num_segments - 1, text, self._start, self.seconds, start, start + len(text))

    def _read_text(self, final: bool) -> None:
        """Gives new text to the aligner."""
        spoken = self._segment.spoken
        complete = final or self._segment.complete
        if self._num_read < len(spoken) or (complete and not self._text_ended):
            self._aligner.extend(spoken[self._num_read :], complete)
            added = [self._visible(char) for char in spoken[self._num_read :]]
            if self._num_segments and added and not self._shown:
                added[0] = f" {added[0]}"  # between segments
            self._shown += added
            self._num_read, self._text_ended = len(spoken), complete

    def _visible(self, char: str) -> str:
        """A spoken character as it is shown: phonemes and their marks are not."""
        if char in (MARK_MIDDLE, MARK_CLOSE):
            self._in_phonemes = char == MARK_MIDDLE
        return "" if self._in_phonemes or char in (MARK_OPEN, MARK_CLOSE) else char

    def _add_starts(self, earliest: float, final: bool) -> None:
        """Extends the known starts of the spoken characters."""
        states = self._new_states(final)
        self._num_states += len(states)
        assert self._start is not None
        frame = self._aligner.frame_seconds / self._rate
        char_states = self._aligner.char_states
        while len(self._spoken_starts) < self._num_read:
            state = char_states[len(self._spoken_starts)] - (self._num_states - len(states))
            if state >= len(states):
                break
            seconds = self._start + float(states[max(0, state)]) * frame if len(states) else earliest
            self._spoken_starts.append(min(max(seconds, earliest), self.seconds))
            earliest = self._spoken_starts[-1]
        if final:
            tail = self._start + float(states[-1]) * frame if len(states) else self.seconds
            self._spoken_starts += [self.seconds] * (self._num_read - len(self._spoken_starts))
            self._spoken_starts.append(min(max(tail, earliest), self.seconds))

    def _new_states(self, final: bool) -> NDArray[np.int64]:
        if not final:
            return self._aligner.partial_starts(self._num_states)
        found = self._aligner.final_starts(self._num_states)
        missing = self._aligner.num_states - self._num_states
        if len(found) < missing:  # too little audio for the text
            found = np.full(missing, self._aligner.num_frames)
        return found

    def _seconds_at(self, position: float) -> float | None:
        """When a position of the spoken text starts; None if it is not known yet."""
        index = int(position)
        known = self._spoken_starts
        if position == index:
            return known[index] if index < len(known) else None
        if index + 1 >= len(known):
            return None
        return known[index] + (position - index) * (known[index + 1] - known[index])

    def _predicted_seconds_at(self, position: float) -> float:
        """When a position of the spoken text that is not known yet will start."""
        last = self._aligner.char_states[math.ceil(position) - 1] + 1
        remaining = self._aligner.expected_frames(self._num_states, last) * self._aligner.frame_seconds
        return self.seconds + REMAINING_SHARE * remaining / self._rate

    def _add_chars(
        self,
        times: Times,
        progress: _Progress,
        text: str,
        shown: Sequence[str],
        positions: Sequence[float],
        final: bool,
    ) -> None:
        """Adds the characters of the words that have started. positions: of the characters in the spoken text."""
        end = progress.end
        while (word := WORD_WITH_SPACES.match(text, progress.num_chars)) is not None:
            if not final and self._seconds_at(positions[word.start(1)]) is None:
                break
            end = max(progress.end, self._word_end(word, positions, final))
            for index in range(progress.num_chars, word.end()):
                seconds = self._seconds_at(positions[index])
                if seconds is None:
                    seconds = self.seconds if final else self._predicted_seconds_at(positions[index])
                for char in shown[index]:
                    times.add(char, min(max(progress.end, seconds), end))
            progress.num_chars = word.end()
        if final:
            for char in shown[progress.num_chars :]:  # spaces
                times.add(char, end)
            progress.num_chars = len(text)
        times.end_at(end)
        progress.end = end

    def _word_end(self, word: re.Match[str], positions: Sequence[float], final: bool) -> float:
        """When the audio or, if it is later, the sound of a word ends, which is predicted."""
        sounds = [index for index in range(*word.span(1)) if word.string[index].isalnum()]
        if final or not sounds:
            return self.seconds
        position = positions[sounds[-1] + 1] if sounds[-1] + 1 < len(positions) else self._num_read
        return self.seconds if self._seconds_at(position) is not None else self._predicted_seconds_at(position)

    def _add_words(self, timed: TimedText) -> None:
        segment = self._segment
        while (word := self._next_word or next_word(segment, self._word_at)) is not None:
            start = self._seconds_at(word.sound_start)
            if start is None:
                self._next_word = word if segment.complete else None
                return
            self._next_word = None
            start = max(start, self._last_word_end)
            end = self._seconds_at(word.sound_end)
            if end is None:
                end = self._predicted_seconds_at(word.sound_end)
            self._last_word_end = end = max(start, end)
            text = segment.written[word.start : word.end]
            timed.words.append(WordTime(text, start, end, segment.start + word.start, segment.start + word.end))
            self._word_at = word.after
