# SPDX-License-Identifier: Apache-2.0
"""The voice library: named voices on disk, shared by all processes of this machine."""

from polyvox.voices.library import DamagedVoice, VoiceLibrary
from polyvox.voices.voice import Voice

__all__ = ["DamagedVoice", "Voice", "VoiceLibrary"]
