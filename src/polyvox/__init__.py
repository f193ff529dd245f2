"""Polyvox: a streaming speech engine for Qwen3-TTS checkpoints."""

from polyvox.audio import Audio
from polyvox.errors import CheckpointError, InvalidRequest, Overloaded, PolyvoxError
from polyvox.models.qwen3_tts.config import Sampling
from polyvox.models.qwen3_tts.voice import ClonedVoice
from polyvox.tts import TTS, Stream, load

__version__ = "0.1.0"

__all__ = [
    "TTS",
    "Audio",
    "CheckpointError",
    "ClonedVoice",
    "InvalidRequest",
    "Overloaded",
    "PolyvoxError",
    "Sampling",
    "Stream",
    "load",
]
