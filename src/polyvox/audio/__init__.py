"""Sound as people use it."""

from polyvox.audio.clip import Audio
from polyvox.audio.formats import FORMATS, Encoder, Format, encode
from polyvox.audio.read import read_audio
from polyvox.audio.resample import Resampler
from polyvox.audio.stretch import Stretcher

__all__ = ["FORMATS", "Audio", "Encoder", "Format", "Resampler", "Stretcher", "encode", "read_audio"]
