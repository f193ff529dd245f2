"""From samples to the bytes that were asked for."""

import numpy as np

from polyvox.audio.clip import Samples
from polyvox.audio.formats import Encoder, get_format
from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.audio.time_stretch import TimeStretcher
from polyvox.errors import StreamFailed
from polyvox.server.synthesis.options import SynthesisOptions


class OutputEncoder:
    """Samples on their way to bytes: another speed, another rate, a format. One call at a time, from any thread."""

    def __init__(self, wanted: SynthesisOptions, sample_rate: int) -> None:
        self._stretcher = TimeStretcher(wanted.speed, sample_rate)
        as_is = wanted.streaming and wanted.sample_rate in (None, sample_rate) and wanted.speed == 1.0
        self.plain = wanted.format.lower() == "pcm" and as_is  # no work for an encoder
        self._encoder = None
        self.sample_rate = sample_rate
        if self.plain:
            self.content_type = get_format(wanted.format).content_type(sample_rate)
        else:
            self._encoder = Encoder(wanted.format, sample_rate, wanted.sample_rate, wanted.streaming, wanted.bit_rate)
            self.content_type, self.sample_rate = self._encoder.content_type, self._encoder.sample_rate

    def push(self, samples: Samples) -> bytes:
        if self._encoder is None:
            if not np.isfinite(samples).all():
                raise StreamFailed("The speech holds values that are not numbers; nothing can be made of it.")
            return pcm_bytes(to_pcm(samples))
        return self._encoder.push(self._stretcher.push(samples))

    def finish(self) -> bytes:
        if self._encoder is None:
            return b""
        return self._encoder.push(self._stretcher.finish()) + self._encoder.finish()

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
