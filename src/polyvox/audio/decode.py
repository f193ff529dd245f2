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
# Files of supported formats start with these bytes.
SIGNATURES = {
    b"RIFF": "wav",
    b"RF64": "wav",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mp3",
    b"\xff\xfb": "mp3",
    b"\xff\xf1": "aac",
    b"\x1aE\xdf\xa3": "webm or mkv",
    b"FORM": "aiff",
    b"caff": "caf",
    b".snd": "au",
    b"#!AMR": "amr",
}
MIN_MIX_ENERGY = 0.1  # of the first channel's; below it the channels cancel each other
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
        raise UnreadableAudio(_unreadable_reason(data, error)) from None
    with container:
        if not container.streams.audio:
            raise UnreadableAudio(f"the file has no audio track; {SUPPORTED}")
        if container.streams.audio[0].codec_context is None:  # PyAV's type says it cannot be
            raise UnreadableAudio(f"the codec of the audio track is not supported; {SUPPORTED}")
        samples, rate, damaged = _decode_samples(container, max_seconds)
    if damaged and len(samples) < MIN_DAMAGED_SECONDS * (rate or 1):
        raise UnreadableAudio("the file is damaged or truncated")
    if not len(samples) or rate is None:
        raise UnreadableAudio("the file has no samples")
    if not np.isfinite(samples).all():
        raise UnreadableAudio("the file has NaN or infinite samples")
    return samples, rate


def _unreadable_reason(data: bytes, error: Exception) -> str:
    format = next((name for start, name in SIGNATURES.items() if data.startswith(start)), None)
    if format is None and data[4:8] == b"ftyp":
        format = "mp4 or m4a"
    if format is not None:
        return f"the file is damaged: it begins like {format} and cannot be read ({error})"
    return f"the file begins with {data[:12]!r} and is not supported ({error}); {SUPPORTED}"


def _decode_samples(container: av.container.InputContainer, max_seconds: float) -> tuple[Samples, int | None, bool]:
    """The first `max_seconds` as mono samples, their rate, and whether any packet was damaged.

    The channels are averaged. If they cancel each other, as those of a stereo recording with one inverted channel do,
    the first one is used.
    """
    mixed: list[Samples] = []
    first: list[Samples] = []  # the first channel, if there are several
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
            num_channels = frame.layout.nb_channels
            raise UnreadableAudio(f"the file must have at most {MAX_CHANNELS} channels (got {num_channels})")
        channels = _channels(frame)
        mixed.append(channels.mean(axis=0, dtype=np.float64).astype(np.float32))
        if len(channels) > 1:
            first.append(channels[0].astype(np.float32))
        length += len(mixed[-1])
        if length >= max_seconds * rate:
            break
    samples, alternative = (np.concatenate([np.zeros(0, np.float32), *parts]) for parts in (mixed, first))
    if len(alternative) == len(samples) and _energy(samples) < MIN_MIX_ENERGY * _energy(alternative):
        samples = alternative
    return samples[: int(max_seconds * (rate or 1))], rate, num_damaged > 0


def _energy(samples: Samples) -> float:
    return float(np.dot(samples, samples))


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


def _channels(frame: av.AudioFrame) -> NDArray[np.float64]:
    """The samples of a frame, from -1 to 1, one row for each channel."""
    samples: NDArray[np.generic] = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    with np.errstate(all="ignore"):  # decode() checks for NaN
        scaled = samples.astype(np.float64)
        if samples.dtype.kind == "u":
            scaled -= 128
        return scaled / (1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1))


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
