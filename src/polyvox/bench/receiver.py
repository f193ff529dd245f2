# SPDX-License-Identifier: Apache-2.0
"""Receives the audio of one response, for every protocol: timestamps packets, counts samples, detects the onset."""

import struct
from collections.abc import Callable
from typing import Literal

import numpy as np

from polyvox.bench.metrics import RequestTrace
from polyvox.bench.onset import OnsetDetector

AudioFormat = Literal["pcm", "wav"]
Clock = Callable[[], float]  # seconds since the start of the run

UNKNOWN_SIZE = 0x7FFF0000  # a streamed WAV header has a placeholder of this size or larger
PCM_CODE, EXTENSIBLE_CODE = 1, 0xFFFE
SAMPLE_BYTES = 2
MAGIC = b"RIFF"

# Kinds of failure, beside "http <status>", "connect" and "timeout"
TRUNCATED, NO_AUDIO, INVALID_RESPONSE, SERVER_ERROR = "truncated", "no audio", "invalid response", "server error"


class RequestFailed(Exception):
    """A request that did not succeed: the kind under which it is counted, and the error message."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail


class AudioReceiver:
    """Takes the bytes of one response and fills its trace."""

    def __init__(self, trace: RequestTrace, clock: Clock, audio_format: AudioFormat = "pcm") -> None:
        self.trace, self.now = trace, clock
        self._header = _WavHeader() if audio_format == "wav" else None
        self._partial = b""  # an incomplete sample
        self._onset = OnsetDetector(trace.sample_rate)
        self._audio_bytes = 0
        self._trailer = b""  # first bytes after the audio

    def set_sample_rate(self, sample_rate: int) -> None:
        """Sets the rate declared by the response. Ignored once audio has arrived."""
        if not self.trace.arrivals:
            self.trace.sample_rate, self._onset = sample_rate, OnsetDetector(sample_rate)

    def on_byte(self, now: float) -> None:
        """A part of the response has arrived, audio or not."""
        if self.trace.first_byte is None:
            self.trace.first_byte = now

    def push(self, data: bytes, now: float | None = None) -> None:
        """Bytes of the audio, as they arrived."""
        now = self.now() if now is None else now
        if data:
            self.on_byte(now)
        if self._header is None and not self._audio_bytes and data[: len(MAGIC)] == MAGIC:
            raise RequestFailed(INVALID_RESPONSE, "WAV file instead of raw PCM: see --format")
        if self._header is not None and not self._header.complete:
            audio = self._header.push(data)
            if audio is None:
                return
            data = audio
            self.set_sample_rate(self._header.sample_rate)
        if self._header is not None and self._header.size is not None:
            rest = max(0, self._header.size - self._audio_bytes)
            self._trailer = (self._trailer + data[rest:])[: len(MAGIC)]
            data = data[:rest]
        self._audio_bytes += len(data)
        data = self._partial + data
        end = len(data) // SAMPLE_BYTES * SAMPLE_BYTES
        self._partial = data[end:]
        if end:
            self.push_samples(np.frombuffer(data[:end], "<i2"), now)

    def push_samples(self, samples: "np.ndarray[tuple[int], np.dtype[np.int16]]", now: float) -> None:
        self.trace.arrivals.append((now, len(samples)))
        if self.trace.pcm is not None:
            self.trace.pcm += samples.astype("<i2").tobytes()
        self._onset.push(samples)

    def finish(self) -> None:
        """The response has ended as its protocol defines; raises RequestFailed if the audio is incomplete."""
        self.trace.ended = self.now()
        self.trace.onset = self._onset.position
        if self._header is not None and not self._header.complete:
            kind = TRUNCATED if self.trace.first_byte is not None else NO_AUDIO
            raise RequestFailed(kind, "incomplete WAV header")
        if self._header is not None and self._header.size is not None and self._audio_bytes < self._header.size:
            raise RequestFailed(TRUNCATED, f"{self._audio_bytes} of {self._header.size} bytes of audio")
        if self._trailer == MAGIC:
            raise RequestFailed(INVALID_RESPONSE, f"second WAV file after {self._audio_bytes} bytes of audio")
        if self._partial:
            raise RequestFailed(TRUNCATED, "incomplete sample at the end")
        if not self.trace.arrivals:
            raise RequestFailed(NO_AUDIO, "no samples received")


class _WavHeader:
    """Parses a WAV header that arrives in pieces of any size."""

    def __init__(self) -> None:
        self.complete = False
        self.sample_rate = 0
        self.size: int | None = None  # bytes of audio; None if the header does not declare it
        self._buffer = b""

    def push(self, data: bytes) -> bytes | None:
        """The bytes after the header; None while the header is incomplete."""
        self._buffer += data
        buffer, at = self._buffer, 12
        if len(buffer) >= 12 and (buffer[:4] != MAGIC or buffer[8:12] != b"WAVE"):
            raise RequestFailed(INVALID_RESPONSE, f"not a WAV file: starts with {buffer[:12]!r}")
        while at + 8 <= len(buffer):
            name, size = buffer[at : at + 4], int.from_bytes(buffer[at + 4 : at + 8], "little")
            at += 8
            if name == b"data":
                if not self.sample_rate:
                    raise RequestFailed(INVALID_RESPONSE, "WAV file without a format chunk")
                self.complete, self.size = True, None if size >= UNKNOWN_SIZE or size == 0 else size
                self._buffer = b""
                return buffer[at:]
            if at + size > len(buffer):
                break
            if name == b"fmt ":
                code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", buffer, at)
                if code not in (PCM_CODE, EXTENSIBLE_CODE) or channels != 1 or bits != 16:
                    found = f"format {code}, {channels} channels, {bits} bits"
                    raise RequestFailed(INVALID_RESPONSE, f"unsupported WAV ({found}): must be 16-bit mono PCM")
                self.sample_rate = rate
            at += size + size % 2
        return None
