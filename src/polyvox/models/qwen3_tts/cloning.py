# SPDX-License-Identifier: Apache-2.0
"""Voice cloning: validates and trims a recording, and runs the two encoders over it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.samples import Samples
from polyvox.audio.silence import SILENCE_LEVEL, trim_silence
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.content_cache import ContentCache
from polyvox.models.qwen3_tts.model import Encoders
from polyvox.models.request import ClonedVoice

MIN_SECONDS, MAX_SECONDS = 1, 30
# Silence after the recording, so that speech does not start with its last sound (faster-qwen3-tts, pull request 9).
PAUSE_SECONDS = 0.5
# Slightly above full scale is a clipped recording; far above are unscaled integers.
MAX_PEAK = 8.0
# Silence is measured relative to the peak, so a quiet recording is valid. A peak below this is silence.
MIN_PEAK = 10 ** (-66 / 20)
MAX_CACHED_RECORDINGS = 32


class Cloner:
    """Clones voices from recordings. Thread-safe; results are cached for the most recent recordings."""

    def __init__(self, encoders: Encoders, sample_rate: int) -> None:
        self.encoders, self.sample_rate = encoders, sample_rate
        self._vectors: ContentCache[NDArray[np.float32]] = ContentCache(MAX_CACHED_RECORDINGS)
        self._codes: ContentCache[NDArray[np.int64]] = ContentCache(MAX_CACHED_RECORDINGS)

    def clone(self, samples: Samples, transcript: str | None) -> ClonedVoice:
        """The voice of a recording. With its transcript, speech continues it."""
        speech = self._validated(samples)
        vector = self._vectors.get(speech, lambda: self.vector(speech))
        if transcript is None:
            return ClonedVoice(vector)
        pause = np.zeros(round(PAUSE_SECONDS * self.sample_rate), np.float32)
        codes = self._codes.get(speech, lambda: self.codes(np.concatenate([speech, pause])))
        return ClonedVoice(vector, codes, transcript)

    def vector(self, samples: Samples) -> NDArray[np.float32]:
        """The speaker vector of samples, without trimming."""
        with torch.inference_mode():
            return _frozen(self.encoders.speaker(self._row(samples))[0].float())

    def codes(self, samples: Samples) -> NDArray[np.int64]:
        """The codes of samples, without trimming."""
        with torch.inference_mode():
            return _frozen(self.encoders.codec(self._row(samples))[0])

    def _row(self, samples: Samples) -> Tensor:
        return torch.tensor(samples).to(self.encoders.speaker.fc.weight)[None]

    def _validated(self, samples: Samples) -> Samples:
        """The recording between its first and last sound; raises InvalidRequest if it cannot be used."""
        if not isinstance(samples, np.ndarray) or samples.ndim != 1 or samples.dtype.kind != "f":
            shown = (
                f"{samples.dtype} {list(samples.shape)}" if isinstance(samples, np.ndarray) else type(samples).__name__
            )
            raise InvalidRequest(
                "recording", shown, f"must be a mono array of float samples at {self.sample_rate:,} Hz"
            )
        if not np.isfinite(samples).all():
            raise InvalidRequest("recording", NOT_SHOWN, "must not have NaN or infinite samples")
        peak = float(np.abs(samples).max(initial=0.0))
        if peak > MAX_PEAK:
            raise InvalidRequest("recording", peak, "samples must be between -1 and 1")
        if peak < MIN_PEAK:
            raise InvalidRequest("recording", NOT_SHOWN, "must have speech, not only silence")
        speech = trim_silence(samples.astype(np.float32, copy=False), self.sample_rate, SILENCE_LEVEL * peak)
        seconds = len(speech) / self.sample_rate
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            requirement = f"must have between {MIN_SECONDS} and {MAX_SECONDS} s of speech"
            hint = "Use a longer recording." if seconds < MIN_SECONDS else "Cut the recording."
            raise InvalidRequest("recording", f"{seconds:.2f} s", requirement, hint)
        return speech + np.float32(0)  # a copy in which -0.0 is 0.0, so that both have the same content


def _frozen(values: Tensor) -> NDArray[Any]:
    """A read-only array, which voices share."""
    array = values.cpu().numpy()
    array.setflags(write=False)
    return array
