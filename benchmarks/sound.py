"""What each format costs and holds back: python benchmarks/sound.py

A client that decodes while it reads (FFmpeg, told not to probe) hears a stream that is pushed 80 ms at a time.
Processor time, one core; on a shared machine compare figures of one run only. Prints the tables of docs/sound.md.
"""

import io
import sys
import time
from collections.abc import Iterator

import av
import numpy as np

from polyvox.audio.clip import Samples
from polyvox.audio.formats import FORMATS, Encoder
from polyvox.audio.time_stretch import TimeStretcher

RATE = 24_000
CHUNK = round(0.08 * RATE)
RAW = {"pcm": "s16le", "ulaw": "mulaw", "alaw": "alaw"}
LEAD = {"mp3": 1105, "aac": 1024, "m4a": 1024}  # samples of the encoder's delay at the start of a stream


def speech(seconds: float) -> Samples:
    """Harmonics of a gliding pitch, in syllables, with a little noise."""
    at = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 2 * at)) / RATE
    sound = sum(np.sin(number * phase) / number for number in range(1, 30)) * (0.55 - 0.45 * np.cos(8 * np.pi * at))
    return (0.25 * sound + np.random.default_rng(0).normal(0, 0.002, len(at))).astype(np.float32)


def heard(data: bytes, encoder: Encoder) -> float:
    """Milliseconds of speech that a fresh decoder finds in the bytes so far, without the silence of the codec."""
    name = encoder.format.name
    raw = RAW.get(name)
    options = {"sample_rate": str(encoder.sample_rate)} if raw else {}
    try:
        with av.open(io.BytesIO(data), "r", format=raw or ("aac" if name == "aac" else None), options=options) as file:
            sound = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    except av.FFmpegError:
        return 0.0
    return max(0.0, 1000 * (sound - LEAD.get(name, 0) / encoder.sample_rate))


def first_sound(name: str, out_rate: int | None) -> tuple[int, int, float]:
    """Milliseconds pushed, in steps of 10, and bytes when speech can first be decoded; speech after 320 ms."""
    encoder = Encoder(name, RATE, out_rate)
    data, first = b"", (0, 0)
    for step in range(1, 33):
        data += encoder.push(SOUND[(step - 1) * RATE // 100 : step * RATE // 100])
        if not first[0] and heard(data, encoder) > 0:
            first = (10 * step, len(data))
    return *first, heard(data, encoder)


class Connection:
    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.parts, self.waiting = encoder, chunks(SOUND), b""
        self.pushed = self.heard = 0.0
        self.behind: list[float] = []

    def read(self, size: int) -> bytes:
        while not self.waiting:
            if self.heard:
                self.behind.append(self.pushed - self.heard)
            part = next(self.parts, None)
            if part is None:
                return b""
            self.waiting = self.encoder.push(part)
            self.pushed += len(part) / RATE
        given, self.waiting = self.waiting[:size], self.waiting[size:]
        return given


def behind(name: str) -> float:
    """Milliseconds that a client lags behind what was pushed, at worst, once it runs."""
    connection = Connection(Encoder(name, RATE))
    with av.open(connection, "r", options={"probesize": "32", "analyzeduration": "0"}) as file:
        for frame in file.decode(audio=0):
            connection.heard += frame.samples / frame.sample_rate
    return 1000 * max(connection.behind[10:])


def times_real(name: str, out_rate: int | None) -> tuple[float, float]:
    """How many streams a core encodes, and kbit/s."""
    encoder = Encoder(name, RATE, out_rate)
    began = time.process_time()
    size = sum(len(encoder.push(part)) for part in chunks(SOUND)) + len(encoder.finish())
    seconds = len(SOUND) / RATE
    return seconds / (time.process_time() - began), 8 * size / seconds / 1000


def chunks(sound: Samples) -> Iterator[Samples]:
    return (sound[at : at + CHUNK] for at in range(0, len(sound), CHUNK))


def stretching(speed: float) -> float:
    stretcher = TimeStretcher(speed, RATE)
    began = time.process_time()
    length = sum(len(stretcher.push(part)) for part in chunks(SOUND)) + len(stretcher.finish())
    return length / RATE / (time.process_time() - began)


SOUND = speech(20.0)


def main() -> None:
    out = sys.stdout.write
    out("| format | first speech after | in bytes | of 320 ms heard | a reader lags | kbit/s | × real time |\n")
    out("|---|---|---|---|---|---|---|\n")
    for name in FORMATS:
        for rate in (None, 8000, 16_000, 48_000):
            if (rate and rate not in FORMATS[name].rates) or (rate and FORMATS[name].rates == (8000,)):
                continue
            pushed, size, of_320 = first_sound(name, rate)
            lag = f"{behind(name):.0f} ms" if rate is None and name in ("flac", "mp3", "opus", "aac", "m4a") else ""
            speed, bits = times_real(name, rate)
            label = name if rate is None else f"{name} {rate / 1000:g} kHz"
            begins = f"{pushed} ms | {size}" if pushed else "more than 320 ms | "
            out(f"| {label} | {begins} | {of_320:.0f} ms | {lag} | {bits:.0f} | {speed:.0f} |\n")
    out("\n| speed | × real time |\n|---|---|\n")
    for speed in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0):
        out(f"| {speed} | {stretching(speed):.0f} |\n")


if __name__ == "__main__":
    main()
