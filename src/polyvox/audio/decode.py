# SPDX-License-Identifier: Apache-2.0
"""Decoding of untrusted audio files by FFmpeg.

As a program it reads a file from stdin and writes a JSON line and float32 samples to stdout, with limits on memory and
CPU time: a file of a kilobyte can make FFmpeg allocate gigabytes. It cannot open files or sockets (see `sandbox`).
"""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress

import av
import av.subtitles.stream  # av.open imports it, but the sandbox opens no files
import numpy as np
from numpy.typing import NDArray

from polyvox.audio.resample import MAX_RATE, MIN_RATE
from polyvox.audio.samples import Samples
from polyvox.audio.sandbox import isolate

MAX_MEMORY_BYTES = 1 << 30
MAX_CPU_SECONDS = 20
MAX_CHANNELS = 16
MAX_DAMAGED_PACKETS = 100
MIN_DAMAGED_SECONDS = 0.5  # a damaged file is accepted if at least this much of it decodes
SUPPORTED = "supported formats are wav, flac, mp3, ogg (opus, vorbis), aac, m4a, mp4, webm, mkv, aiff, caf, au or amr"
# None of these opens a second file. Playlists, image sequences and devices are excluded.
DEMUXERS = "wav,w64,flac,mp3,ogg,aac,mov,matroska,aiff,caf,au,amr"


class UnreadableAudio(Exception):
    """The file cannot be decoded; the message says why."""


def decode(data: bytes, max_seconds: float) -> tuple[Samples, int]:
    """The first audio track mixed to mono, and its sample rate. FFmpeg reads nothing but these bytes."""
    if not data:
        raise UnreadableAudio(f"the file is empty; {SUPPORTED}")
    try:
        container = av.open(
            io.BytesIO(data),
            "r",
            options={"format_whitelist": DEMUXERS, "protocol_whitelist": "none", "enable_drefs": "0"},
            metadata_errors="replace",
            io_open=_reject_open,
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        message = f"the file begins with {data[:12]!r} and is not supported ({error}); {SUPPORTED}"
        raise UnreadableAudio(message) from None
    with container:
        if not container.streams.audio:
            raise UnreadableAudio(f"the file has no audio track; {SUPPORTED}")
        if container.streams.audio[0].codec_context is None:  # PyAV's type says it cannot be
            raise UnreadableAudio(f"the codec of the audio track is not supported; {SUPPORTED}")
        parts, rate, damaged = _decode_parts(container, max_seconds)
    samples = np.concatenate([np.zeros(0, np.float32), *parts])
    if damaged and len(samples) < MIN_DAMAGED_SECONDS * (rate or 1):
        raise UnreadableAudio("the file is damaged or truncated")
    if not len(samples) or rate is None:
        raise UnreadableAudio(f"the file has no samples; {SUPPORTED}")
    if not np.isfinite(samples).all():
        raise UnreadableAudio("the file has NaN or infinite samples")
    return samples, rate


def _decode_parts(container: av.container.InputContainer, max_seconds: float) -> tuple[list[Samples], int | None, bool]:
    """The frames as mono samples, their rate, and whether any packet was damaged."""
    parts: list[Samples] = []
    rate, length, num_damaged = None, 0, 0
    for frame in _frames(container):
        if frame is None:
            num_damaged += 1
            if num_damaged > MAX_DAMAGED_PACKETS:
                break
            continue
        rate = rate or frame.sample_rate
        if not MIN_RATE <= frame.sample_rate <= MAX_RATE or frame.sample_rate != rate:
            limits = f"between {MIN_RATE} and {MAX_RATE} Hz"
            raise UnreadableAudio(f"the sample rate must be constant and {limits} (got {frame.sample_rate})")
        if frame.layout.nb_channels > MAX_CHANNELS:
            channels = f"at most {MAX_CHANNELS} channels (got {frame.layout.nb_channels})"
            raise UnreadableAudio(f"the file must have {channels}")
        part = _mix_to_mono(frame)
        length += len(part)
        if length > max_seconds * rate:
            raise UnreadableAudio(f"the recording must be at most {max_seconds:g} s long")
        parts.append(part)
    return parts, rate, num_damaged > 0


def _frames(container: av.container.InputContainer) -> Iterator[av.AudioFrame | None]:
    """Decoded frames; None for each packet that cannot be decoded."""
    stream = container.streams.audio[0]
    stream.codec_context.thread_count = 1
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except av.FFmpegError:
            yield None
            return
        try:
            yield from packet.decode()
        except av.FFmpegError:
            yield None


def _mix_to_mono(frame: av.AudioFrame) -> Samples:
    samples: NDArray[np.generic] = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    with np.errstate(all="ignore"):  # decode() checks for NaN
        mixed = samples.mean(axis=0, dtype=np.float64)
        if samples.dtype.kind == "u":
            mixed -= 128
        scale = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
        return (mixed / scale).astype(np.float32)


def _reject_open(*_: object) -> None:
    raise PermissionError("an audio file must not refer to other files")


def _set_limits() -> None:
    with suppress(ImportError, ValueError, OSError):  # a system without resource limits, or with lower ones
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def main() -> None:
    _set_limits()
    header: dict[str, object] = {"isolation": isolate()}
    samples: Samples = np.zeros(0, np.float32)
    try:
        samples, header["rate"] = decode(sys.stdin.buffer.read(), float(sys.argv[1]))
    except UnreadableAudio as error:
        header["error"] = str(error)
    except MemoryError:
        header["error"] = "decoding needs too much memory"
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + samples.tobytes())


if __name__ == "__main__":
    main()
