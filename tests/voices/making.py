"""Voices for tests, each of one version, which every part of them tells; no torch here."""

import numpy as np

from polyvox.models.info import ModelIdentity
from polyvox.models.request import ClonedVoice
from polyvox.voices import Voice, VoiceLibrary

MODEL = ModelIdentity("Small-Base", "base-48-6x64-0123456789ab", can_clone=True)
OTHER = ModelIdentity("Large-Base", "base-96-6x64-0123456789ab", can_clone=True)


def cloned(version: int, in_context: bool = True) -> ClonedVoice:
    vector = np.full(48, version, np.float32)
    if not in_context:
        return ClonedVoice(vector)
    return ClonedVoice(vector, np.full((1 + version % 40, 6), version % 64, np.int64), f"version {version}")


def add(library: VoiceLibrary, name: str, version: int, replace: bool = False) -> Voice:
    facts = {"consent": str(version), "source": f"{version}.wav", "description": f"the {version}th"}
    return library.add(name, cloned(version), MODEL, seconds=float(version), replace=replace, **facts)


def version(voice: Voice) -> int:
    """Which one it is; fails where its parts do not belong together."""
    assert voice.consent is not None
    number = int(voice.consent)
    wanted = cloned(number)
    assert wanted.codes is not None
    assert voice.codes is not None
    assert np.array_equal(voice.vector, wanted.vector)
    assert np.array_equal(voice.codes, wanted.codes)
    assert voice.transcript == wanted.transcript
    assert (voice.source, voice.seconds, voice.description) == (f"{number}.wav", number, f"the {number}th")
    assert voice.model == MODEL
    return number
