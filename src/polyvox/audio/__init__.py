# SPDX-License-Identifier: Apache-2.0
"""Audio: clips, formats, encoding, decoding, resampling and time stretching."""

from polyvox.audio.clip import Audio
from polyvox.audio.formats import FORMATS, Encoder, Format, encode
from polyvox.audio.read import read_audio
from polyvox.audio.resample import Resampler
from polyvox.audio.time_stretch import TimeStretcher

__all__ = ["FORMATS", "Audio", "Encoder", "Format", "Resampler", "TimeStretcher", "encode", "read_audio"]
