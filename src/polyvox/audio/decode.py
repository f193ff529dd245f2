"""Other people's sound files, decoded by FFmpeg. Run as a program, it reads a file from stdin and writes samples to
stdout under limits of memory and time: a file of a kilobyte can make FFmpeg ask for gigabytes."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress

import av
import numpy as np
from numpy.typing import NDArray

from polyvox.audio.clip import Samples
from polyvox.audio.resample import HIGHEST_RATE, LOWEST_RATE

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 20
MAX_CHANNELS = 16
MAX_DAMAGED = 100  # packets in a file, before it is given up
SALVAGED_SECONDS = 0.5  # of a damaged file, what can be decoded is taken from this length on
SUPPORTED = "supported formats are wav, flac, mp3, ogg (opus, vorbis), aac, m4a, mp4, webm, mkv, aiff, caf, au or amr"
# None of these opens a second file; playlists, image sequences and devices are not among them.
DEMUXERS = "wav,w64,flac,mp3,ogg,aac,mov,matroska,aiff,caf,au,amr"


class Unreadable(Exception):
    """The file cannot be decoded; the message says why."""


def decode(data: bytes, max_seconds: float) -> tuple[Samples, int]:
    """The first audio track as one channel, and its rate. Nothing but these bytes is read."""
    if not data:
        raise Unreadable(f"the file is empty; {SUPPORTED}")
    try:
        container = av.open(
            io.BytesIO(data),
            "r",
            options={"format_whitelist": DEMUXERS, "protocol_whitelist": "none", "enable_drefs": "0"},
            metadata_errors="replace",
            io_open=_refuse,
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        raise Unreadable(f"the file begins with {data[:12]!r} and is not supported ({error}); {SUPPORTED}") from None
    with container:
        if not container.streams.audio:
            raise Unreadable(f"the file has no audio track; {SUPPORTED}")
        if container.streams.audio[0].codec_context is None:  # whatever its type says
            raise Unreadable(f"the codec of the audio track is not supported; {SUPPORTED}")
        parts, rate, damaged = _parts(container, max_seconds)
    samples = np.concatenate([np.zeros(0, np.float32), *parts])
    if damaged and len(samples) < SALVAGED_SECONDS * (rate or 1):
        raise Unreadable("the file is damaged or truncated")
    if not len(samples) or rate is None:
        raise Unreadable(f"the file has no samples; {SUPPORTED}")
    if not np.isfinite(samples).all():
        raise Unreadable("the file has samples that are NaN or infinite")
    return samples, rate


def _parts(container: av.container.InputContainer, max_seconds: float) -> tuple[list[Samples], int | None, bool]:
    parts: list[Samples] = []
    rate, length, damaged = None, 0, 0
    for frame in _frames(container):
        if frame is None:
            damaged += 1
            if damaged > MAX_DAMAGED:
                break
            continue
        rate = rate or frame.sample_rate
        if not LOWEST_RATE <= frame.sample_rate <= HIGHEST_RATE or frame.sample_rate != rate:
            raise Unreadable(
                f"the sample rate must be constant and between {LOWEST_RATE} and {HIGHEST_RATE} Hz "
                f"(got {frame.sample_rate})"
            )
        if frame.layout.nb_channels > MAX_CHANNELS:
            raise Unreadable(f"the file must have at most {MAX_CHANNELS} channels (got {frame.layout.nb_channels})")
        part = _mono(frame)
        length += len(part)
        if length > max_seconds * rate:
            raise Unreadable(f"the recording must be at most {max_seconds:g} s long")
        parts.append(part)
    return parts, rate, damaged > 0


def _frames(container: av.container.InputContainer) -> Iterator[av.AudioFrame | None]:
    """None for every packet that cannot be decoded."""
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


def _mono(frame: av.AudioFrame) -> Samples:
    samples: NDArray[np.generic] = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    with np.errstate(all="ignore"):  # what is not a number is found at the end
        mixed = samples.mean(axis=0, dtype=np.float64)
        if samples.dtype.kind == "u":
            mixed -= 128
        scale = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
        return (mixed / scale).astype(np.float32)


def _refuse(*_: object) -> None:
    raise PermissionError("a sound file may not name other files")


def _limit() -> None:
    with suppress(ImportError, ValueError, OSError):  # a system without them, or with tighter ones
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def main() -> None:
    _limit()
    answer: dict[str, object]
    samples: Samples = np.zeros(0, np.float32)
    try:
        samples, rate = decode(sys.stdin.buffer.read(), float(sys.argv[1]))
        answer = {"rate": rate}
    except Unreadable as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": "decoding needs too much memory"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + samples.tobytes())


if __name__ == "__main__":
    main()
