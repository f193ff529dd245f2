# SPDX-License-Identifier: Apache-2.0
"""Output formats, and a streaming encoder for all of them."""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from polyvox.audio.g711 import alaw_bytes, ulaw_bytes
from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.audio.resample import Resampler
from polyvox.audio.samples import Samples
from polyvox.audio.seekable_file import SeekableFile
from polyvox.audio.wav import wav_header
from polyvox.errors import InvalidRequest, StreamFailed

RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
TELEPHONE_RATES = (8000,)
BIT_RATES = range(8_000, 320_001)


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    media_type: str
    extensions: tuple[str, ...]  # the first is the default
    rates: tuple[int, ...] = RATES
    lossy: bool = False  # has a bit rate

    def content_type(self, sample_rate: int) -> str:
        """The HTTP content type. Raw PCM has no header, so its rate is a parameter."""
        return f"{self.media_type};rate={sample_rate};channels=1" if self.name == "pcm" else self.media_type

    def rate_for(self, sample_rate: int) -> int:
        """The default output rate: the lowest rate of the format that is not below `sample_rate`."""
        return next((rate for rate in self.rates if rate >= sample_rate), self.rates[-1])


FORMATS = {
    entry.name: entry
    for entry in (
        Format("wav", "audio/wav", (".wav", ".wave")),
        Format("flac", "audio/flac", (".flac",)),
        Format("mp3", "audio/mpeg", (".mp3",), lossy=True),
        Format("opus", "audio/ogg", (".opus", ".ogg", ".oga"), OPUS_RATES, lossy=True),
        Format("aac", "audio/aac", (".aac",), lossy=True),
        Format("m4a", "audio/mp4", (".m4a", ".mp4"), lossy=True),
        Format("pcm", "audio/pcm", (".pcm", ".raw")),
        Format("ulaw", "audio/basic", (".ulaw", ".ul"), TELEPHONE_RATES),
        Format("alaw", "audio/x-alaw-basic", (".alaw", ".al"), TELEPHONE_RATES),
    )
}
_UNCOMPRESSED = {"wav": pcm_bytes, "pcm": pcm_bytes, "ulaw": ulaw_bytes, "alaw": alaw_bytes}


def get_format(name: str) -> Format:
    """Raises InvalidRequest for an unknown format."""
    try:
        return FORMATS[name.lower()]
    except KeyError:
        raise InvalidRequest("format", name, FORMATS) from None


def format_for_path(path: str | os.PathLike[str]) -> Format:
    """The format of a file extension; raises InvalidRequest for an unknown one."""
    extension = Path(path).suffix.lower()
    for entry in FORMATS.values():
        if extension in entry.extensions:
            return entry
    known = ", ".join(extension for entry in FORMATS.values() for extension in entry.extensions)
    raise InvalidRequest("path", str(path), f"must end in one of {known}")


class Encoder:
    """Encodes one clip. When streaming, push() returns bytes as soon as they are encoded; otherwise finish() returns a
    file whose header has the exact length. Not thread-safe.

    file: an empty seekable file that the clip is written to, instead of memory, if it is not streaming. finish()
    returns nothing then.
    """

    def __init__(
        self,
        format: str,
        sample_rate: int,
        out_rate: int | None = None,
        streaming: bool = True,
        bit_rate: int | None = None,
        file: SeekableFile | None = None,
    ) -> None:
        self.format = get_format(format)
        self.sample_rate = self.format.rate_for(sample_rate) if out_rate is None else out_rate
        if self.sample_rate not in self.format.rates:
            rates = ", ".join(map(str, self.format.rates))
            raise InvalidRequest("sample_rate", out_rate, f"must be one of {rates} for {self.format.name}")
        if bit_rate is not None and not self.format.lossy:
            lossy = ", ".join(name for name, entry in FORMATS.items() if entry.lossy)
            raise InvalidRequest("bit_rate", bit_rate, f"is not supported by {self.format.name}, only by {lossy}")
        if bit_rate is not None and bit_rate not in BIT_RATES:
            raise InvalidRequest("bit_rate", bit_rate, f"must be between {BIT_RATES[0]} and {BIT_RATES[-1]}")
        same = self.sample_rate == sample_rate
        self._resampler = None if same else Resampler(sample_rate, self.sample_rate)
        self._memory = io.BytesIO() if not streaming and file is None else None
        self._writer = _new_writer(self.format, self.sample_rate, None if streaming else file or self._memory, bit_rate)
        self._open = True

    @property
    def content_type(self) -> str:
        return self.format.content_type(self.sample_rate)

    def push(self, samples: Samples) -> bytes:
        """Encode samples and return the bytes that are ready. Samples beyond full scale are clipped."""
        if not self._open:
            raise ValueError("the encoder is closed")
        samples = np.asarray(samples, np.float32)
        if not np.isfinite(samples).all():
            raise StreamFailed("The audio has NaN or infinite samples and cannot be encoded.")
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        return self._writer.push(samples)

    def finish(self) -> bytes:
        """The remaining bytes. The file is valid even if nothing was pushed."""
        if not self._open:
            raise ValueError("the encoder is closed")
        self._open = False
        rest = b"" if self._resampler is None else self._writer.push(self._resampler.finish())
        rest += self._writer.finish()
        return rest if self._memory is None else self._memory.getvalue()

    def close(self) -> None:
        """Free the encoder without finishing the file."""
        if self._open:
            self._open = False
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def encode(
    samples: Samples,
    sample_rate: int,
    format: str,
    out_rate: int | None = None,
    bit_rate: int | None = None,
) -> bytes:
    """Encode a whole file."""
    with Encoder(format, sample_rate, out_rate, streaming=False, bit_rate=bit_rate) as encoder:
        return encoder.push(samples) + encoder.finish()


class _Writer(Protocol):
    """Writes to a file, or returns the bytes."""

    def push(self, samples: Samples) -> bytes: ...
    def finish(self) -> bytes: ...
    def close(self) -> None: ...


class _UncompressedWriter:
    """WAV, raw PCM, μ-law and A-law."""

    def __init__(self, format: Format, sample_rate: int, file: SeekableFile | None) -> None:
        self._bytes = _UNCOMPRESSED[format.name]
        self._header_rate = sample_rate if format.name == "wav" else None
        self._file, self._num_bytes = file, 0
        self._header = b"" if self._header_rate is None else wav_header(self._header_rate, None)

    def push(self, samples: Samples) -> bytes:
        data = self._bytes(to_pcm(samples))
        self._num_bytes += len(data)
        return self._put(data)

    def finish(self) -> bytes:
        rest = self._put(b"")
        if self._file is not None and self._header_rate is not None:  # the length is known now
            self._file.seek(0)
            self._file.write(wav_header(self._header_rate, self._num_bytes))
        return rest

    def close(self) -> None:
        pass

    def _put(self, data: bytes) -> bytes:
        data, self._header = self._header + data, b""
        if self._file is None:
            return data
        self._file.write(data)
        return b""


def _new_writer(format: Format, sample_rate: int, file: SeekableFile | None, bit_rate: int | None) -> _Writer:
    """file: None for a stream."""
    if format.name in _UNCOMPRESSED:
        return _UncompressedWriter(format, sample_rate, file)
    from polyvox.audio.ffmpeg_encoder import FFmpegEncoder  # imports FFmpeg only when it is needed

    return FFmpegEncoder(format.name, sample_rate, file, bit_rate)
