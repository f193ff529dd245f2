"""Compressed sound, by FFmpeg's encoders: bytes leave as soon as the codec lets go of them."""

import io
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.audio.stream import AudioStream

from polyvox.audio.clip import Samples
from polyvox.audio.pcm import to_pcm
from polyvox.errors import NOT_SHOWN, InvalidRequest

FLAC_BLOCK = Fraction(1, 100)  # of a streamed one: FFmpeg's reader gives nothing out until it has seen ten
OPUS_BLOCK = Fraction(1, 50)
BITS_A_SAMPLE = 4  # 96 kbit/s at 24 kHz: speech that nobody tells from the original, without a bit reservoir too
MAX_BITS = 128_000
OPUS_BITS = 48_000


@dataclass(frozen=True, slots=True)
class Codec:
    """How FFmpeg is asked for one of our formats."""

    encoder: str
    container: str
    layout: str  # of the samples the encoder takes
    options: dict[str, str] = field(default_factory=dict)  # of the encoder
    streamed: dict[str, str] = field(default_factory=dict)  # of the container, for a stream
    filed: dict[str, str] = field(default_factory=dict)  # of the container, for a file


_NO_PADDING = {"metadata_header_padding": "0"}
CODECS = {
    "flac": Codec("flac", "flac", "s16", {}, _NO_PADDING, _NO_PADDING),
    # Streamed without a header; in a file LAME's header tells the encoder's delay, so that players cut it off.
    # Level 7 is twice as fast as LAME's usual one and no further from the original.
    "mp3": Codec(
        "libmp3lame",
        "mp3",
        "fltp",
        {"reservoir": "0", "compression_level": "7"},
        {"write_xing": "0", "id3v2_version": "0"},
    ),
    "opus": Codec(
        "libopus",
        "ogg",
        "flt",
        {"frame_duration": str(int(OPUS_BLOCK * 1_000))},
        {"page_duration": str(int(OPUS_BLOCK * 1_000_000))},
    ),
    # The fast coder takes a fifth of the time of FFmpeg's usual one, and is nearer to the original.
    "aac": Codec("aac", "adts", "fltp", {"aac_coder": "fast"}),
    "m4a": Codec(
        "aac",
        "ipod",
        "fltp",
        {"aac_coder": "fast"},
        {"movflags": "empty_moov+default_base_moof+frag_every_frame"},
        {"movflags": "faststart"},
    ),
}
MIN_SECONDS = Fraction(1, 50)  # of silence, where nothing was said and the format has no empty file


class Packer:
    """One encoder and its container, for one piece of sound."""

    def __init__(self, name: str, sample_rate: int, streaming: bool, bit_rate: int | None) -> None:
        self._codec = CODECS[name]
        self._rate = sample_rate
        self._samples = 0
        self._sink: _Pipe | _File = _Pipe() if streaming else _File()
        options = dict(self._codec.options)
        if name == "flac":
            if streaming:
                options["frame_size"] = str(int(sample_rate * FLAC_BLOCK))
        else:
            usual = OPUS_BITS if name == "opus" else min(sample_rate * BITS_A_SAMPLE, MAX_BITS)
            options["b"] = str(bit_rate or usual)
        self._container = av.open(
            self._sink,
            "w",
            format=self._codec.container,
            container_options={
                "fflags": "+bitexact",  # the same samples, the same bytes
                "flush_packets": "1",
                **(self._codec.streamed if streaming else self._codec.filed),
            },
            io_open=self._sink.reopen if isinstance(self._sink, _File) else None,
        )
        try:
            stream = self._container.add_stream(
                self._codec.encoder, rate=sample_rate, options=options, layout="mono", format=self._codec.layout
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
            whole = self._codec.layout == "s16"
            data = to_pcm(samples) if whole else np.clip(samples, -1.0, 1.0)
            frame = av.AudioFrame.from_ndarray(data[None], format=self._codec.layout, layout="mono")
            frame.sample_rate = self._rate
            frame.time_base = Fraction(1, self._rate)
            frame.pts = self._samples
            self._samples += len(samples)
            self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        if not self._samples and self._codec.encoder != "flac":
            self.push(np.zeros(int(self._rate * MIN_SECONDS), np.float32))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.rest()

    def close(self) -> None:
        self._container.close()


class _Pipe:
    """What FFmpeg writes to and cannot go back in."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._data)
        self._data.clear()
        return taken

    rest = take


class _File(io.BytesIO):
    """A whole file in memory, given out at its end."""

    def take(self) -> bytes:
        return b""

    def rest(self) -> bytes:
        return self.getvalue()

    def reopen(self, *_: object) -> "_Reader":
        """FFmpeg reads the file again where it moves the index to its front."""
        return _Reader(self)


class _Reader:
    def __init__(self, file: io.BytesIO) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int) -> bytes:
        with self._file.getbuffer() as data:
            part = bytes(data[self._at : self._at + size])
        self._at += len(part)
        return part

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._file.getbuffer() as data:
            self._at = offset + (0, self._at, len(data))[whence]
        return self._at

    def tell(self) -> int:
        return self._at
