# SPDX-License-Identifier: Apache-2.0
"""The audio of the user that is not part of the conversation yet, and when the user speaks in it."""

import asyncio
import base64
import binascii

import numpy as np

from polyvox.audio.g711 import alaw_samples, ulaw_samples
from polyvox.audio.pcm import Pcm
from polyvox.audio.voice_activity import (
    SpeechEvent,
    SpeechStopped,
    VoiceActivityConfig,
    VoiceActivityDetector,
)
from polyvox.errors import NOT_SHOWN, invalid_value
from polyvox.server.realtime.items import InputAudio
from polyvox.server.realtime.session_config import AudioFormat, TurnDetection
from polyvox.server.responses import APIError

MAX_SECONDS = 300.0  # of audio in the buffer
MIN_SECONDS = 0.1  # of audio that can be committed, as OpenAI
KEPT_SECONDS = 1.0  # of audio before speech that are kept beside its prefix: detection takes time
MIN_PART = 4096  # samples; shorter parts are joined, because each takes memory of its own
THREAD_CHARS = 100_000  # of base64 that is decoded in a thread


async def decode_audio(data: str, format: AudioFormat, field: str) -> bytes:
    """The bytes of base64; raises APIError."""
    try:
        if len(data) > THREAD_CHARS:
            return await asyncio.to_thread(base64.b64decode, data, validate=True)
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        message = invalid_value(field, NOT_SHOWN, f"must be base64 of {format.type}")
        raise APIError(400, "invalid_audio", message, field) from None


def to_samples(data: bytes, format: AudioFormat) -> Pcm:
    """Samples of whole bytes; an odd last byte of 16-bit PCM is dropped."""
    match format.type:
        case "audio/pcmu":
            return ulaw_samples(data)
        case "audio/pcma":
            return alaw_samples(data)
    return np.frombuffer(data, "<i2", len(data) // 2).astype(np.int16)


class InputAudioBuffer:
    """Audio in the order of arrival. With turn detection, audio without speech is dropped after a while.

    All times are milliseconds since the start of the session.
    """

    def __init__(self, format: AudioFormat, detection: TurnDetection | None) -> None:
        self._format, self._detection = format, detection
        self._odd = b""  # the first byte of a sample
        self._parts: list[Pcm] = []
        self._num_samples = 0  # in the buffer
        self._first = 0  # the number of samples before the buffer
        self._origin_ms = 0  # of the first sample in this format
        self._detector: VoiceActivityDetector | None = None

    @property
    def seconds(self) -> float:
        return self._num_samples / self._format.sample_rate

    @property
    def end_ms(self) -> int:
        return self._origin_ms + round(1000 * (self._first + self._num_samples) / self._format.sample_rate)

    @property
    def has_speech(self) -> bool:
        """Whether the user is speaking."""
        return self._detector is not None and self._detector.is_speech

    def configure(self, format: AudioFormat, detection: TurnDetection | None) -> None:
        """Another format clears the buffer."""
        if format.as_dict() != self._format.as_dict():
            self.clear()
            self._origin_ms, self._first, self._format, self._detector = self.end_ms, 0, format, None
        self._detection = detection
        if detection is None:
            self._detector = None
        elif self._detector is not None:
            self._detector.config = _config(detection)

    async def append(self, data: bytes) -> list[SpeechEvent]:
        """Returns where speech starts and stops. Raises APIError if the buffer is full."""
        data = self._odd + data
        if self._format.type == "audio/pcm" and len(data) % 2:
            data, self._odd = data[:-1], data[-1:]
        else:
            self._odd = b""
        pcm = to_samples(data, self._format)
        if not len(pcm):
            return []
        if self._detection is None:
            if self.seconds + len(pcm) / self._format.sample_rate > MAX_SECONDS:
                message = f"The buffer holds at most {MAX_SECONDS:g} s of audio. Commit or clear it."
                raise APIError(413, "input_audio_buffer_full", message, "audio")
        elif self._detector is None:  # not before there is audio: it takes some memory
            config = _config(self._detection)
            self._detector = VoiceActivityDetector(self._format.sample_rate, config, self.end_ms)
        if self._parts and len(self._parts[-1]) < MIN_PART:
            self._parts[-1] = np.concatenate([self._parts[-1], pcm])
        else:
            self._parts.append(pcm)
        self._num_samples += len(pcm)
        if self._detector is None:
            return []
        events = await self._detector.detect(pcm)
        if not events and not self._detector.is_speech:
            self._drop_silence()
        elif self._detector.is_speech and self.seconds > MAX_SECONDS:
            self._detector.reset()
            events.append(SpeechStopped(self.end_ms))
        return events

    def take_until(self, end_ms: int, start_ms: int | None = None) -> InputAudio:
        """Removes the audio before a time; returns that from start_ms on."""
        return self._take(0 if start_ms is None else self._index(start_ms), self._index(end_ms))

    def _take(self, first: int, last: int) -> InputAudio:
        """Removes the samples before `last`; returns those from `first` on."""
        pcm = np.concatenate(self._parts) if self._parts else np.zeros(0, np.int16)
        self._parts, self._num_samples = [pcm[last:].copy()], len(pcm) - last
        self._first += last
        return InputAudio(pcm[first:last].copy(), self._format.sample_rate)

    def take(self) -> InputAudio:
        """All audio, for a turn that the client ends. Raises APIError if it is too short."""
        if self.seconds < MIN_SECONDS:
            found = f"The buffer has {1000 * self.seconds:.0f} ms of audio"
            message = f"{found}; at least {1000 * MIN_SECONDS:.0f} ms are needed."
            raise APIError(400, "input_audio_buffer_commit_empty", message)
        audio = self._take(0, self._num_samples)
        self.clear()
        return audio

    def clear(self) -> None:
        self._first += self._num_samples
        self._parts, self._num_samples, self._odd = [], 0, b""
        if self._detector is not None:
            self._detector.reset()

    def _index(self, ms: int) -> int:
        index = round((ms - self._origin_ms) * self._format.sample_rate / 1000) - self._first
        return min(max(index, 0), self._num_samples)

    def _drop_silence(self) -> None:
        assert self._detection is not None
        kept = KEPT_SECONDS + self._detection.prefix_padding_ms / 1000
        if self.seconds > 2 * kept:
            self.take_until(round(self.end_ms - 1000 * kept))


def _config(detection: TurnDetection) -> VoiceActivityConfig:
    return VoiceActivityConfig(detection.threshold, detection.prefix_padding_ms, detection.silence_ms)
