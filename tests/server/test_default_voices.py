# SPDX-License-Identifier: Apache-2.0
"""Voices that clients send by default map to available voices, of the same gender where it is known."""

from dataclasses import replace
from pathlib import Path

import pytest

from polyvox.errors import UnknownVoice
from polyvox.models.info import ModelInfo
from polyvox.server.default_voices import is_default_voice, substitute
from polyvox.server.voice_catalog import VoiceCatalog
from polyvox.voices import VoiceLibrary
from server.fakes import CUSTOM, DESIGN

RACHEL, ADAM, LIVEKIT_DEFAULT = "21m00Tcm4TlvDq8ikWAM", "pNInz6obpgDQGcFmaJgB", "hpp4J3VqNfWAUOO0d1Us"
GENDERED = replace(CUSTOM, voice_genders={"heart": "female", "michael": "male"})


def catalog(info: ModelInfo, folder: Path, aliases: dict[str, str] | None = None) -> VoiceCatalog:
    return VoiceCatalog(VoiceLibrary(folder), info, aliases or {})


@pytest.mark.parametrize(
    ("name", "voice"),
    [
        (RACHEL, "heart"),
        (RACHEL.lower(), "heart"),
        (LIVEKIT_DEFAULT, "heart"),
        ("Rachel", "heart"),
        (ADAM, "michael"),
        ("JBFqnCBsd6RMkjVDRZzb", "michael"),
        ("alloy", "heart"),
        ("onyx", "michael"),
        ("nova", "heart"),
        ("echo", "michael"),
        ("Michael", "Michael"),  # a voice of the model
    ],
)
def test_a_default_voice_maps_to_a_voice_of_its_gender(name: str, voice: str, tmp_path: Path) -> None:
    assert catalog(GENDERED, tmp_path).resolve(name) == voice


def test_without_genders_default_voices_take_turns(tmp_path: Path) -> None:
    voices = catalog(CUSTOM, tmp_path)
    assert [voices.resolve(name) for name in ("alloy", "ash", "ballad")] == ["heart", "michael", "heart"]
    assert [voices.resolve(name) for name in (RACHEL, ADAM)] == ["heart", "michael"]


def test_voices_of_one_gender_take_turns() -> None:
    info = replace(CUSTOM, voice_genders={"a": "female", "b": "female", "c": "male"})
    found = [substitute(name, info, ("a", "b", "c")) for name in ("alloy", "coral", "nova", "ash", "ballad")]
    assert found == ["a", "b", "a", "c", "c"]


def test_an_alias_has_precedence_and_an_unknown_voice_is_rejected(tmp_path: Path) -> None:
    assert catalog(GENDERED, tmp_path, {RACHEL: "michael"}).resolve(RACHEL) == "michael"
    with pytest.raises(UnknownVoice, match="heart, michael"):
        catalog(GENDERED, tmp_path).resolve("22m00Tcm4TlvDq8ikWAM")
    with pytest.raises(UnknownVoice) as error:
        catalog(GENDERED, tmp_path, {"alloy": "nobody"}).resolve("Alloy")
    requirement = "is an alias of 'nobody', which must be one of heart, michael"
    assert str(error.value) == f"Invalid value for 'voice': {requirement} (got 'Alloy')."
    assert not is_default_voice("22m00Tcm4TlvDq8ikWAM")


def test_a_voice_design_model_ignores_default_voices(tmp_path: Path) -> None:
    assert catalog(DESIGN, tmp_path).resolve(RACHEL) is None
