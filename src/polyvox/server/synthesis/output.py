# SPDX-License-Identifier: Apache-2.0
"""From samples to bytes of the requested format."""

import numpy as np

from polyvox.audio.formats import Encoder, get_format
from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.audio.samples import Samples
from polyvox.audio.time_stretch import MAX_SPEED, MIN_SPEED, TimeStretcher
from polyvox.errors import StreamFailed
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.spool import Spool, SpooledFile


class OutputEncoder:
    """Applies speed, sample rate and format to the samples of a stream. One call at a time, from any thread.

    Without `options.streaming` the output is a file, which `take_file` returns after `finish`.
    """

    def __init__(self, options: SynthesisOptions, sample_rate: int, spool: Spool) -> None:
        self._speed, self._rate, self._input_rate = options.speed, 1.0, sample_rate
        self._stretcher = TimeStretcher(options.speed, sample_rate)
        unchanged = options.streaming and options.sample_rate in (None, sample_rate) and options.speed == 1.0
        # Raw PCM costs so little that it needs no encoder thread.
        self.is_plain_pcm = options.format.lower() == "pcm" and unchanged
        self._encoder: Encoder | None = None
        self._file = None if options.streaming else SpooledFile(spool)
        self.sample_rate = sample_rate
        if self.is_plain_pcm:
            self.content_type = get_format(options.format).content_type(sample_rate)
        else:
            try:
                self._encoder = Encoder(
                    options.format, sample_rate, options.sample_rate, options.streaming, options.bit_rate, self._file
                )
            except BaseException:
                self.close()
                raise
            self.content_type, self.sample_rate = self._encoder.content_type, self._encoder.sample_rate

    def push(self, samples: Samples, rate: float = 1.0) -> bytes:
        """rate: of speaking, relative to the speed."""
        remaining = self._set_rate(rate)
        samples = self._stretcher.push(samples)
        samples = np.concatenate([remaining, samples]) if len(remaining) else samples
        if self._encoder is None:
            if not np.isfinite(samples).all():
                raise StreamFailed("The model returned samples that are not finite numbers.")
            return pcm_bytes(to_pcm(samples))
        return self._encoder.push(samples)

    def _set_rate(self, rate: float) -> Samples:
        """The remaining samples of the previous rate."""
        if rate == self._rate:
            return np.zeros(0, np.float32)
        remaining = self._stretcher.finish()
        speed = min(max(self._speed * rate, MIN_SPEED), MAX_SPEED)
        self._rate, self._stretcher = rate, TimeStretcher(speed, self._input_rate)
        return remaining

    def finish(self) -> bytes:
        samples = self._stretcher.finish()
        if self._encoder is None:
            return pcm_bytes(to_pcm(samples))
        return self._encoder.push(samples) + self._encoder.finish()

    def take_file(self) -> SpooledFile | None:
        """The finished file, from its start. The caller closes it."""
        file, self._file = self._file, None
        if file is not None:
            file.seek(0)
        return file

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
        if self._file is not None:
            self._file.close()
