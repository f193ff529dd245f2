# SPDX-License-Identifier: Apache-2.0
"""The text of a spoken answer and which part of it was played to the listener."""

import asyncio
import time
from collections.abc import Callable

from polyvox.server.synthesis.speech_recording import SpeechRecording, proportional_end
from polyvox.server.synthesis.utterance import SECONDS_PER_BYTE


class SpokenTranscript:
    """The text of an answer so far, and the duration of the audio that was sent. recording: to find words in it."""

    def __init__(self, recording: SpeechRecording | None = None) -> None:
        self._texts: list[str] = []
        self._recording = recording
        self._lock = asyncio.Lock()  # words of the recording are found by one caller at a time
        self._played_seconds: float | None = None  # where the playback was ended
        self.seconds = 0.0
        self.is_complete = False  # the audio of all text was sent

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add_text(self, text: str) -> None:
        self._texts.append(text)

    def drop_audio(self) -> None:
        """A later cut is less exact."""
        if self._recording is not None:
            self._recording.drop_audio()

    async def cut(self, seconds: float) -> str:
        """The text that was played until the playback was ended, after these seconds; also if more audio follows."""
        self._played_seconds = seconds
        return await self.text_played(seconds)

    async def text_played(self, seconds: float) -> str:
        """The text up to the last word of which at least one half was played, after these seconds of playback.

        If the playback was ended, also while this call waits, that time counts instead. Without a recording the text is
        cut in proportion to the expected duration of the whole, at the end of a word.
        """
        async with self._lock:
            return await self._find_text(seconds if self._played_seconds is None else self._played_seconds)

    async def _find_text(self, seconds: float) -> str:
        text = self.text
        if self.is_complete and seconds >= self.seconds:
            return text
        if self._recording is not None and (end := await self._recording.text_end(seconds)) is not None:
            return text[:end]
        expected = max(self.seconds, SECONDS_PER_BYTE * len(text.encode(errors="surrogatepass")))
        if seconds >= expected:
            return text
        return text[: proportional_end(text, seconds / expected)]


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
