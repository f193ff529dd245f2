# SPDX-License-Identifier: Apache-2.0
"""An audio clip: mono samples with their sample rate."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.audio.samples import Samples
from polyvox.audio.wav import wav_header
from polyvox.files import write_atomically

FinishReason = Literal["stop", "length", "runaway", "cancelled", "error"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Audio:
    """Generated speech, and the seed that reproduces it."""

    samples: Samples
    sample_rate: int
    seed: int
    # stop: the model ended the utterance. length: it reached max_frames. runaway: it was cut because the audio was much
    # longer than the text needs. cancelled: the caller cancelled it.
    finish_reason: FinishReason

    def __repr__(self) -> str:
        return f"Audio({self.seconds:.2f} s, {self.sample_rate} Hz, seed {self.seed})"

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def wav(self) -> bytes:
        """The clip as a 16-bit WAV file."""
        data = pcm_bytes(to_pcm(self.samples))
        return wav_header(self.sample_rate, len(data)) + data

    def to(self, format: str, sample_rate: int | None = None, bit_rate: int | None = None) -> bytes:
        """The clip as a file in one of `polyvox.audio.FORMATS`, by default at the clip's sample rate."""
        from polyvox.audio.formats import encode  # imports this module

        return encode(self.samples, self.sample_rate, format, sample_rate, bit_rate)

    def save(self, path: str | os.PathLike[str], sample_rate: int | None = None, bit_rate: int | None = None) -> None:
        """Write the clip to a file in the format of its extension. An existing file is replaced atomically."""
        from polyvox.audio.formats import format_for_path

        target = Path(path)
        write_atomically(target, self.to(format_for_path(target).name, sample_rate, bit_rate))
