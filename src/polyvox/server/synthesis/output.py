# SPDX-License-Identifier: Apache-2.0
"""From samples to bytes of the requested format."""

import numpy as np

from polyvox.audio.formats import Encoder, get_format
from polyvox.audio.pcm import Audio, as_pcm, as_samples, pcm_bytes
from polyvox.audio.samples import Samples
from polyvox.audio.time_stretch import MAX_SPEED, MIN_SPEED, TimeStretcher
from polyvox.audio.wav import wav_header
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
        unchanged = unchanged and options.bit_rate is None  # which the encoder rejects for PCM and WAV
        # The engine's PCM, after a header if it is WAV, costs so little that it needs no encoder thread.
        format_name = options.format.lower()
        plain_wav = format_name == "wav" and sample_rate in get_format("wav").rates
        self.is_plain = unchanged and (format_name == "pcm" or plain_wav)
        self._header = wav_header(sample_rate, None) if self.is_plain and plain_wav else b""  # not returned yet
        self._encoder: Encoder | None = None
        self._file = None if options.streaming else SpooledFile(spool)
        self.sample_rate = sample_rate
        if self.is_plain:
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

    def push(self, audio: Audio, rate: float = 1.0) -> bytes:
        """rate: of speaking, relative to the speed."""
        if self._encoder is None and rate == self._rate == 1.0:
            return self._plain(audio)
        remaining = self._set_rate(rate)
        samples = self._stretcher.push(as_samples(audio))
        samples = np.concatenate([remaining, samples]) if len(remaining) else samples
        return self._plain(samples) if self._encoder is None else self._encoder.push(samples)

    def _plain(self, audio: Audio) -> bytes:
        """The audio as PCM. The engine has checked its own PCM."""
        if audio.dtype != np.int16 and not np.isfinite(audio).all():
            raise StreamFailed("The model returned samples that are not finite numbers.")
        data = pcm_bytes(as_pcm(audio))
        if self._header:
            data, self._header = self._header + data, b""
        return data

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
            return self._plain(samples)
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
