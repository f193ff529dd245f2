# SPDX-License-Identifier: Apache-2.0
"""Compressed formats, encoded by FFmpeg with low delay."""

import io
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

import av
import numpy as np
from av.audio.stream import AudioStream

from polyvox.audio.pcm import to_pcm
from polyvox.audio.samples import Samples
from polyvox.audio.seekable_file import SeekableFile
from polyvox.errors import NOT_SHOWN, InvalidRequest, PolyvoxError

FLAC_FRAME = Fraction(1, 100)  # seconds, when streaming: FFmpeg's FLAC demuxer reads ten frames before it returns one
OPUS_FRAME = Fraction(1, 50)  # seconds
BITS_PER_SAMPLE = 4  # 96 kbit/s at 24 kHz: transparent for speech, also without a bit reservoir
MAX_DEFAULT_BIT_RATE = 128_000
OPUS_BIT_RATE = 48_000


@dataclass(frozen=True, slots=True)
class FFmpegCodec:
    """FFmpeg's settings for a format."""

    encoder: str
    container: str
    sample_format: str
    encoder_options: dict[str, str] = field(default_factory=dict)
    stream_options: dict[str, str] = field(default_factory=dict)  # of the container
    file_options: dict[str, str] = field(default_factory=dict)  # of the container


_NO_PADDING = {"metadata_header_padding": "0"}
CODECS = {
    "flac": FFmpegCodec("flac", "flac", "s16", {}, _NO_PADDING, _NO_PADDING),
    # A stream has no header. The header of a file has the encoder delay, so that players skip it.
    # Level 7 is twice as fast as LAME's default and has the same error.
    "mp3": FFmpegCodec(
        "libmp3lame",
        "mp3",
        "fltp",
        {"reservoir": "0", "compression_level": "7"},
        {"write_xing": "0", "id3v2_version": "0"},
    ),
    "opus": FFmpegCodec(
        "libopus",
        "ogg",
        "flt",
        {"frame_duration": str(int(OPUS_FRAME * 1_000))},
        {"page_duration": str(int(OPUS_FRAME * 1_000_000))},
    ),
    # The fast coder takes a fifth of the time of FFmpeg's default and has a smaller error.
    "aac": FFmpegCodec("aac", "adts", "fltp", {"aac_coder": "fast"}),
    "m4a": FFmpegCodec(
        "aac",
        "ipod",
        "fltp",
        {"aac_coder": "fast"},
        {"movflags": "empty_moov+default_base_moof+frag_every_frame"},
        {"movflags": "faststart"},
    ),
}
MIN_SECONDS = Fraction(1, 50)  # of silence in an empty clip, for formats without empty files


class FFmpegEncoder:
    """One FFmpeg encoder and its container. file: the output; None for a stream."""

    def __init__(self, name: str, sample_rate: int, file: SeekableFile | None, bit_rate: int | None) -> None:
        self._codec = CODECS[name]
        self._rate = sample_rate
        self._num_samples = 0
        streaming = file is None
        self._sink = _StreamSink() if streaming else None
        options = dict(self._codec.encoder_options)
        if name == "flac":
            if streaming:
                options["frame_size"] = str(int(sample_rate * FLAC_FRAME))
        else:
            default = OPUS_BIT_RATE if name == "opus" else min(sample_rate * BITS_PER_SAMPLE, MAX_DEFAULT_BIT_RATE)
            options["b"] = str(bit_rate or default)
        self._container = av.open(
            cast(Any, self._sink or file),
            "w",
            format=self._codec.container,
            container_options={
                "fflags": "+bitexact",  # deterministic bytes
                "flush_packets": "1",
                **(self._codec.stream_options if streaming else self._codec.file_options),
            },
            # For faststart, which reads the file again to move its index to the front.
            io_open=None if file is None else lambda *_: _FileReader(file),
        )
        try:
            stream = self._container.add_stream(
                self._codec.encoder, rate=sample_rate, options=options, layout="mono", format=self._codec.sample_format
            )
            self._stream = cast(AudioStream, stream)
            self._stream.codec_context.thread_count = 1
            self._container.start_encoding()
        except av.FFmpegError as error:
            self._container.close()
            requirement = f"{name} cannot encode {sample_rate} Hz at {options.get('b', 'its')} bit/s: {error.strerror}"
            raise InvalidRequest("format", NOT_SHOWN, requirement) from None

    def push(self, samples: Samples) -> bytes:
        if len(samples):
            data = to_pcm(samples) if self._codec.sample_format == "s16" else np.clip(samples, -1.0, 1.0)
            frame = av.AudioFrame.from_ndarray(data[None], format=self._codec.sample_format, layout="mono")
            frame.sample_rate = self._rate
            frame.time_base = Fraction(1, self._rate)
            frame.pts = self._num_samples
            self._num_samples += len(samples)
            self._container.mux(self._stream.encode(frame))
        return self._take()

    def finish(self) -> bytes:
        if not self._num_samples and self._codec.encoder != "flac":
            self.push(np.zeros(int(self._rate * MIN_SECONDS), np.float32))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._take()

    def close(self) -> None:
        with suppress(av.FFmpegError, PolyvoxError):  # it completes the file, which is not needed and may not fit
            self._container.close()

    def _take(self) -> bytes:
        return b"" if self._sink is None else self._sink.take()


class _StreamSink:
    """An output without seeking, read while FFmpeg writes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._data)
        self._data.clear()
        return taken


class _FileReader:
    """Reads a file that FFmpeg is writing, at a position of its own."""

    def __init__(self, file: SeekableFile) -> None:
        self._file = file
        self._offset = 0

    def read(self, size: int) -> bytes:
        written = self._file.tell()  # vocabulary: allow (the file protocol)
        self._file.seek(self._offset)
        part = self._file.read(size)
        self._file.seek(written)
        self._offset += len(part)
        return part

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        written = self._file.tell()  # vocabulary: allow (the file protocol)
        end = self._file.seek(0, io.SEEK_END)
        self._file.seek(written)
        self._offset = offset + (0, self._offset, end)[whence]
        return self._offset

    def tell(self) -> int:  # vocabulary: allow (the file protocol)
        return self._offset
