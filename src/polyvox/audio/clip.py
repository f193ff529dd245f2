"""A finished piece of speech."""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.pcm import to_pcm
from polyvox.audio.uncompressed import pcm_bytes, wav_header
from polyvox.errors import InvalidRequest

Samples = NDArray[np.float32]
FinishReason = Literal["stop", "length", "runaway", "cancelled", "error"]


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Mono samples in [-1, 1], and what is needed to make them again."""

    samples: Samples
    sample_rate: int
    seed: int
    # stop: the model ended; length: cut at the longest utterance allowed; runaway: cut where the text had no more to
    # say; cancelled: by the reader
    finish_reason: FinishReason

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def wav(self) -> bytes:
        """A whole WAV file, 16 bits a sample."""
        data = pcm_bytes(to_pcm(self.samples))
        return wav_header(self.sample_rate, len(data)) + data

    def to(self, format: str, sample_rate: int | None = None, bit_rate: int | None = None) -> bytes:
        """A whole file in one of `polyvox.audio.FORMATS`, at its own sample rate where no other is asked for."""
        from polyvox.audio.formats import encode  # it needs this module's types

        return encode(self.samples, self.sample_rate, format, sample_rate, bit_rate)

    def save(self, path: str | os.PathLike[str], sample_rate: int | None = None, bit_rate: int | None = None) -> None:
        """Writes a file of the format that its name ends in; the old one stays until the new one is whole."""
        from polyvox.audio.formats import format_of

        target = Path(path)
        write_whole(target, self.to(format_of(target).name, sample_rate, bit_rate))


def write_whole(path: Path, data: bytes) -> None:
    """The file is whole or as it was before."""
    partial = path.with_name(f".polyvox-{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
        partial.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            partial.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest("path", str(path), f"cannot be written: {reason}") from None
