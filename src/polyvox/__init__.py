"""Polyvox: a streaming speech engine for Qwen3-TTS checkpoints."""

from polyvox.audio import Audio
from polyvox.engine.config import EngineConfig
from polyvox.errors import CheckpointError, InvalidRequest, Overloaded, PolyvoxError, StreamFailed
from polyvox.models.request import ClonedVoice, Request, Sampling
from polyvox.tts import TTS, Stream, load

__version__ = "0.1.0"

__all__ = [
    "TTS",
    "Audio",
    "CheckpointError",
    "ClonedVoice",
    "EngineConfig",
    "InvalidRequest",
    "Overloaded",
    "PolyvoxError",
    "Request",
    "Sampling",
    "Stream",
    "StreamFailed",
    "load",
]
