# SPDX-License-Identifier: Apache-2.0
"""CPU cost and latency of each audio format: python benchmarks/sound.py

A client decodes while it reads (FFmpeg without probing) a stream that is encoded 80 ms at a time. Times are CPU time of
one core; on a shared machine compare values of one run only. Prints the tables of docs/sound.md.
"""

import io
import sys
import time
from collections.abc import Iterator

import av
import numpy as np

from polyvox.audio.formats import FORMATS, Encoder
from polyvox.audio.samples import Samples
from polyvox.audio.time_stretch import TimeStretcher

RATE = 24_000
CHUNK = round(0.08 * RATE)
RAW = {"pcm": "s16le", "ulaw": "mulaw", "alaw": "alaw"}
LEAD = {"mp3": 1105, "aac": 1024, "m4a": 1024}  # encoder delay at the start of a stream, in samples


def speech(seconds: float) -> Samples:
    """A synthetic voice: harmonics of a varying pitch, modulated like syllables, with noise."""
    at = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 2 * at)) / RATE
    sound = sum(np.sin(number * phase) / number for number in range(1, 30)) * (0.55 - 0.45 * np.cos(8 * np.pi * at))
    return (0.25 * sound + np.random.default_rng(0).normal(0, 0.002, len(at))).astype(np.float32)


def decoded_ms(data: bytes, encoder: Encoder) -> float:
    """Milliseconds of speech that a new decoder gets from the bytes so far, without the encoder delay."""
    name = encoder.format.name
    raw = RAW.get(name)
    options = {"sample_rate": str(encoder.sample_rate)} if raw else {}
    try:
        with av.open(io.BytesIO(data), "r", format=raw or ("aac" if name == "aac" else None), options=options) as file:
            seconds = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    except av.FFmpegError:
        return 0.0
    return max(0.0, 1000 * (seconds - LEAD.get(name, 0) / encoder.sample_rate))


def first_speech(name: str, out_rate: int | None) -> tuple[int, int, float]:
    """Milliseconds encoded, in steps of 10, and bytes when speech can first be decoded; decoded ms after 320 ms."""
    encoder = Encoder(name, RATE, out_rate)
    data, first = b"", (0, 0)
    for step in range(1, 33):
        data += encoder.push(SOUND[(step - 1) * RATE // 100 : step * RATE // 100])
        if not first[0] and decoded_ms(data, encoder) > 0:
            first = (10 * step, len(data))
    return *first, decoded_ms(data, encoder)


class StreamingReader:
    """A file object that encodes the next part when the decoder has read all bytes."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.parts, self.buffer = encoder, chunks(SOUND), b""
        self.encoded = self.decoded = 0.0
        self.lags: list[float] = []

    def read(self, size: int) -> bytes:
        while not self.buffer:
            if self.decoded:
                self.lags.append(self.encoded - self.decoded)
            part = next(self.parts, None)
            if part is None:
                return b""
            self.buffer = self.encoder.push(part)
            self.encoded += len(part) / RATE
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data


def max_lag_ms(name: str) -> float:
    """Maximum lag of a decoding client behind the encoder in milliseconds, after the start."""
    reader = StreamingReader(Encoder(name, RATE))
    with av.open(reader, "r", options={"probesize": "32", "analyzeduration": "0"}) as file:
        for frame in file.decode(audio=0):
            reader.decoded += frame.samples / frame.sample_rate
    return 1000 * max(reader.lags[10:])


def encoding_speed(name: str, out_rate: int | None) -> tuple[float, float]:
    """Multiple of real time on one core, and kbit/s."""
    encoder = Encoder(name, RATE, out_rate)
    began = time.process_time()
    size = sum(len(encoder.push(part)) for part in chunks(SOUND)) + len(encoder.finish())
    seconds = len(SOUND) / RATE
    return seconds / (time.process_time() - began), 8 * size / seconds / 1000


def chunks(sound: Samples) -> Iterator[Samples]:
    return (sound[at : at + CHUNK] for at in range(0, len(sound), CHUNK))


def stretching_speed(speed: float) -> float:
    stretcher = TimeStretcher(speed, RATE)
    began = time.process_time()
    length = sum(len(stretcher.push(part)) for part in chunks(SOUND)) + len(stretcher.finish())
    return length / RATE / (time.process_time() - began)


SOUND = speech(20.0)


def main() -> None:
    out = sys.stdout.write
    out("| format | first speech after | in bytes | decoded after 320 ms | client lag | kbit/s | × real time |\n")
    out("|---|---|---|---|---|---|---|\n")
    for name in FORMATS:
        for rate in (None, 8000, 16_000, 48_000):
            if (rate and rate not in FORMATS[name].rates) or (rate and FORMATS[name].rates == (8000,)):
                continue
            pushed, size, of_320 = first_speech(name, rate)
            lag = f"{max_lag_ms(name):.0f} ms" if rate is None and name in ("flac", "mp3", "opus", "aac", "m4a") else ""
            speed, bits = encoding_speed(name, rate)
            label = name if rate is None else f"{name} {rate / 1000:g} kHz"
            begins = f"{pushed} ms | {size}" if pushed else "more than 320 ms | "
            out(f"| {label} | {begins} | {of_320:.0f} ms | {lag} | {bits:.0f} | {speed:.0f} |\n")
    out("\n| speed | × real time |\n|---|---|\n")
    for speed in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0):
        out(f"| {speed} | {stretching_speed(speed):.0f} |\n")


if __name__ == "__main__":
    main()
