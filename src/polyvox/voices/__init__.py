"""Voices that are kept under a name, on disk, for every process of this machine."""

from polyvox.voices.library import Damaged, VoiceLibrary
from polyvox.voices.voice import Voice

__all__ = ["Damaged", "Voice", "VoiceLibrary"]
