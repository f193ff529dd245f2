"""The client's ear: stamps what arrives, counts samples, finds the first sound; the same for every protocol."""

import struct
from collections.abc import Callable
from typing import Literal

import numpy as np

from polyvox.bench.metrics import Trace
from polyvox.bench.onset import Onset

Format = Literal["pcm", "wav"]
Clock = Callable[[], float]  # seconds since the run began

UNKNOWN_SIZE = 0x7FFF0000  # a header that is streamed has a size this large, or larger: nobody knew it
PCM_CODE, EXTENSIBLE_CODE = 1, 0xFFFE
SAMPLE_BYTES = 2
MAGIC = b"RIFF"


class Failure(Exception):
    """A request that did not succeed: the kind that is counted, and what was told."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail


class Ear:
    """Takes the bytes of one answer and fills its trace."""

    def __init__(self, trace: Trace, clock: Clock, form: Format = "pcm") -> None:
        self.trace, self.now = trace, clock
        self._header = _Header() if form == "wav" else None
        self._half = b""  # of a sample
        self._onset = Onset(trace.sample_rate)
        self._bytes = 0  # of sound
        self._after = b""  # how what follows the sound begins

    def rate(self, sample_rate: int) -> None:
        """What was told of the samples that follow; they keep the rate that they began with."""
        if not self.trace.arrivals:
            self.trace.sample_rate, self._onset = sample_rate, Onset(sample_rate)

    def byte(self, now: float) -> None:
        """Something of the answer has come, audio or not."""
        if self.trace.first_byte is None:
            self.trace.first_byte = now

    def hear(self, data: bytes, now: float | None = None) -> None:
        """Bytes of the sound file, as they came."""
        now = self.now() if now is None else now
        if data:
            self.byte(now)
        if self._header is None and not self._bytes and data[: len(MAGIC)] == MAGIC:
            raise Failure("told", "a WAV file where raw pcm was asked for: see --format")
        if self._header is not None and not self._header.done:
            sound = self._header.push(data)
            if sound is None:
                return
            data = sound
            self.rate(self._header.sample_rate)
        if self._header is not None and self._header.size is not None:
            rest = max(0, self._header.size - self._bytes)
            self._after = (self._after + data[rest:])[: len(MAGIC)]
            data = data[:rest]  # what follows the sound is not sound
        self._bytes += len(data)
        data = self._half + data
        whole = len(data) // SAMPLE_BYTES * SAMPLE_BYTES
        self._half = data[whole:]
        if whole:
            self.samples(np.frombuffer(data[:whole], "<i2"), now)

    def samples(self, samples: "np.ndarray[tuple[int], np.dtype[np.int16]]", now: float) -> None:
        self.trace.arrivals.append((now, len(samples)))
        if self.trace.sound is not None:
            self.trace.sound += samples.astype("<i2").tobytes()
        self._onset.push(samples)

    def end(self) -> None:
        """The answer has ended as its protocol has it; raises Failure where what came is not whole."""
        self.trace.ended = self.now()
        self.trace.onset = self._onset.position
        if self._header is not None and not self._header.done:
            raise Failure("early end" if self.trace.first_byte is not None else "no audio", "no whole WAV header")
        if self._header is not None and self._header.size is not None and self._bytes < self._header.size:
            raise Failure("early end", f"{self._bytes} of {self._header.size} bytes of sound")
        if self._after == MAGIC:
            raise Failure("told", f"a second WAV file after the {self._bytes} bytes of sound of the first")
        if self._half:
            raise Failure("early end", "half a sample at the end")
        if not self.trace.arrivals:
            raise Failure("no audio", "not one sample came")


class _Header:
    """The header of a WAV file, in pieces of any size: what is before its sound."""

    def __init__(self) -> None:
        self.done = False
        self.sample_rate = 0
        self.size: int | None = None  # bytes of sound; None where the header does not know it
        self._held = b""

    def push(self, data: bytes) -> bytes | None:
        """The bytes that are already sound; None where the header is not whole yet."""
        self._held += data
        held, at = self._held, 12
        if len(held) >= 12 and (held[:4] != MAGIC or held[8:12] != b"WAVE"):
            raise Failure("told", f"not a WAV file: it begins with {held[:12]!r}")
        while at + 8 <= len(held):
            name, size = held[at : at + 4], int.from_bytes(held[at + 4 : at + 8], "little")
            at += 8
            if name == b"data":
                if not self.sample_rate:
                    raise Failure("told", "a WAV file without a format")
                self.done, self.size = True, None if size >= UNKNOWN_SIZE or size == 0 else size
                self._held = b""
                return held[at:]
            if at + size > len(held):
                break
            if name == b"fmt ":
                code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", held, at)
                if code not in (PCM_CODE, EXTENSIBLE_CODE) or channels != 1 or bits != 16:
                    raise Failure(
                        "told", f"WAV of format {code}, {channels} channels, {bits} bits; read is 16-bit mono"
                    )
                self.sample_rate = rate
            at += size + size % 2
        return None
