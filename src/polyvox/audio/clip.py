"""A finished piece of speech."""

import io
import os
import secrets
import wave
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.pcm import to_pcm
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
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(self.sample_rate)
            out.writeframes(to_pcm(self.samples).astype("<i2").tobytes())
        return file.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a WAV file; the old one stays until the new one is whole."""
        target = Path(path)
        if target.suffix.lower() != ".wav":
            raise InvalidRequest("path", str(path), "a name that ends in .wav")
        partial = target.with_name(f".polyvox-{secrets.token_hex(8)}.partial")
        try:
            with partial.open("xb") as file:
                file.write(self.wav())
            partial.replace(target)
        except (OSError, ValueError) as error:
            with suppress(OSError, ValueError):
                partial.unlink()
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidRequest("path", str(path), f"a place that can be written ({reason})") from None
