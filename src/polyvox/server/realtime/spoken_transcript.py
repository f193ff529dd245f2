# SPDX-License-Identifier: Apache-2.0
"""The text of a spoken answer and which part of it was played to the listener."""

import time
from collections.abc import Callable

from polyvox.alignment import WordTime
from polyvox.alignment.words import WORD_WITH_SPACES
from polyvox.server.synthesis.utterance import SECONDS_PER_BYTE


class SpokenTranscript:
    """The text of an answer so far, the times of its words, and the duration of the audio that was sent."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._words: list[WordTime] = []
        self.seconds = 0.0
        self.is_complete = False  # the audio of all text was sent
        self.played_seconds: float | None = None  # where the playback was ended

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add_text(self, text: str) -> None:
        self._texts.append(text)

    def add_words(self, words: list[WordTime]) -> None:
        self._words += words

    def cut(self, seconds: float) -> str:
        """The text that was played until the playback was ended, after these seconds; also if more audio follows."""
        self.played_seconds = seconds
        return self.text_played(seconds)

    def text_played(self, seconds: float) -> str:
        """The text up to the last word of which at least one half was played, after these seconds of playback.

        Without word times the text is cut in proportion to the expected duration of the whole, at the end of a word.
        """
        text = self.text
        if self.is_complete and seconds >= self.seconds:
            return text
        if self._words:
            played = [word.text_end for word in self._words if (word.start + word.end) / 2 <= seconds]
            return text[: played[-1] if played else 0]
        expected = max(self.seconds, SECONDS_PER_BYTE * len(text.encode(errors="surrogatepass")))
        if seconds >= expected:
            return text
        length = len(text) * seconds / expected
        ends = [word.end(1) for word in WORD_WITH_SPACES.finditer(text)]
        return text[: max((end for end in ends if end <= length), default=0)]


class PlaybackClock:
    """What a client can have played that plays audio in real time as it arrives. clock: seconds, increasing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock()  # of all audio so far

    def add(self, seconds: float) -> None:
        """Audio that was sent now."""
        self._end = max(self._end, self._clock()) + seconds

    @property
    def remaining(self) -> float:
        """Seconds of audio that cannot have been played yet."""
        return max(0.0, self._end - self._clock())

    def stop(self) -> None:
        """The client has stopped its playback."""
        self._end = self._clock()
