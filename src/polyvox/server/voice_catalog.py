# SPDX-License-Identifier: Apache-2.0
"""The voices that a request can choose: built into the model, in the voice library, and aliases of both."""

import builtins
from collections.abc import Mapping
from typing import Any

from polyvox.errors import InvalidRequest, UnknownVoice, shorten
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice
from polyvox.server.default_voices import is_default_voice, substitute
from polyvox.voices import Voice, VoiceLibrary

NO_VOICES = "the voice library is empty; add a voice, or send ref_audio or speaker_embedding"
DEFAULT_NAMES = ("", "auto", "default", "none")
PUBLIC_FIELDS = ("id", "name", "object", "type")  # of a voice, for callers without a key where keys are configured


class VoiceCatalog:
    """Resolves the `voice` field of requests."""

    def __init__(self, library: VoiceLibrary, info: ModelInfo, aliases: Mapping[str, str]) -> None:
        self.library, self._info = library, info
        self._aliases = {name.lower(): voice for name, voice in aliases.items()}

    def library_voices(self) -> list[Voice]:
        """Voices of the library that were made for this model."""
        model = self._info.identity
        return [voice for voice in self.library.list() if voice.fits(model)] if model.can_clone else []

    def resolve(self, voice: str | ClonedVoice | None) -> str | ClonedVoice | None:
        """The voice as the engine takes it; by default the model's first, or the library's for a model that clones.

        Raises UnknownVoice with the available names, InvalidRequest if the model cannot use the voice.
        """
        built_in, model = self._info.voices, self._info.identity
        if isinstance(voice, ClonedVoice):
            return voice
        if voice is None or voice.strip().lower() in DEFAULT_NAMES:
            first = self.library_voices()[:1]
            if model.can_clone and not first:
                raise InvalidRequest("voice", voice, NO_VOICES)
            return first[0].cloned_for(model) if first else self.library.resolve(None, model, built_in)
        if self._info.designs_voices and is_default_voice(voice):
            return None  # clients cannot omit the voice
        if voice.lower() in self._aliases:
            return self._resolve_alias(voice)
        try:
            return self.library.resolve(voice, model, built_in)
        except UnknownVoice:
            names = [*built_in, *(found.name for found in self.library_voices())]
            available = substitute(voice, self._info, names)
            if available is None and model.can_clone and not names:
                raise UnknownVoice("voice", voice, NO_VOICES) from None
            if available is None:
                raise
            return self.library.resolve(available, model, built_in)

    def _resolve_alias(self, alias: str) -> str | ClonedVoice | None:
        voice = self._aliases[alias.lower()]
        try:
            return self.library.resolve(voice, self._info.identity, self._info.voices)
        except UnknownVoice:  # clients do not know the name that the alias stands for
            names = ", ".join([*self._info.voices, *(found.name for found in self.library_voices())])
            requirement = f"is an alias of {shorten(voice)}, which must be one of {names}" if names else NO_VOICES
            raise UnknownVoice("voice", alias, requirement) from None

    def unknown_aliases(self) -> builtins.list[str]:
        """The aliases of voices that neither the model nor the library has, as `alias=voice`."""
        known = {name.lower() for name in (*self._info.voices, *(voice.name for voice in self.library.list()))}
        return [f"{alias}={voice}" for alias, voice in self._aliases.items() if voice.lower() not in known]

    def list(self, public: bool = False) -> list[dict[str, Any]]:
        """All voices as API objects, built-in ones first. public: with their public fields only."""
        built_in = [built_in_voice(name) for name in self._info.voices]
        return built_in + [library_voice(voice, public) for voice in self.library_voices()]


def built_in_voice(name: str) -> dict[str, Any]:
    """The API object of a built-in voice."""
    return {"id": name, "name": name, "object": "audio.voice", "type": "own"}


def library_voice(voice: Voice, public: bool = False) -> dict[str, Any]:
    """The API object of a library voice. Its id is its name, because requests use the name.

    public: without consent, transcript and the other fields that concern the speaker.
    """
    found = {
        "id": voice.name,
        "name": voice.name,
        "object": "audio.voice",
        "type": "audio_sample" if voice.source or voice.codes is not None else "embedding",
        "created_at": int(voice.created.timestamp()),
        "content_id": voice.id,
        "model": voice.model.name,
        "mode": "vector" if voice.codes is None else "in context",
        "seconds": voice.seconds,
        "ref_text": voice.transcript,
        "consent": voice.consent,
        "speaker_description": voice.description,
    }
    return {name: found[name] for name in PUBLIC_FIELDS} if public else found
