# SPDX-License-Identifier: Apache-2.0
"""Polyvox: a streaming speech engine for Qwen3-TTS checkpoints."""

from importlib import import_module
from typing import TYPE_CHECKING

from polyvox.errors import CheckpointError, InvalidRequest, Overloaded, PolyvoxError, StreamFailed

if TYPE_CHECKING:
    from polyvox.audio import Audio
    from polyvox.engine.config import EngineConfig
    from polyvox.models.request import ClonedVoice, Request, Sampling
    from polyvox.tts import TTS, SpeechStream, load
    from polyvox.voices import Voice, VoiceLibrary

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
    "SpeechStream",
    "StreamFailed",
    "Voice",
    "VoiceLibrary",
    "load",
]

# These need torch, which takes a second or more to import; a server process that only talks to an engine does not.
_LATE = {"TTS": "tts", "SpeechStream": "tts", "load": "tts", "EngineConfig": "engine.config"}
_LATE |= {"Voice": "voices", "VoiceLibrary": "voices"}
# These need NumPy; until they are needed, Ctrl-C on the command line ends without a traceback.
_LATE |= {"Audio": "audio"} | dict.fromkeys(("ClonedVoice", "Request", "Sampling"), "models.request")


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module 'polyvox' has no attribute {name!r}")
    return getattr(import_module(f"polyvox.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
