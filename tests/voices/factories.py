# SPDX-License-Identifier: Apache-2.0
"""Voices for tests. Every field of a voice encodes its version. Does not import torch."""

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
    fields = {"consent": str(version), "source": f"{version}.wav", "description": f"the {version}th"}
    return library.add(name, cloned(version), MODEL, seconds=float(version), replace=replace, **fields)


def version(voice: Voice) -> int:
    """The version of a voice; fails if its fields belong to different versions."""
    assert voice.consent is not None
    number = int(voice.consent)
    expected = cloned(number)
    assert expected.codes is not None
    assert voice.codes is not None
    assert np.array_equal(voice.vector, expected.vector)
    assert np.array_equal(voice.codes, expected.codes)
    assert voice.transcript == expected.transcript
    assert (voice.source, voice.seconds, voice.description) == (f"{number}.wav", number, f"the {number}th")
    assert voice.model == MODEL
    return number
