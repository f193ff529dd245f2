"""Who can be asked for: the model's own voices, those of the library, and other names for both."""

from collections.abc import Mapping
from typing import Any

from polyvox.errors import InvalidRequest, UnknownVoice
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice
from polyvox.voices import Voice, VoiceLibrary

# OpenAI's, in its own order; some clients take no other name. Each stands for a voice that is there.
OPENAI_NAMES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "onyx",
    "nova",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)
NO_VOICES = "no voice was added yet; send a ref_audio or a speaker_embedding, or add a voice"
NOBODY = ("", "auto", "default", "none")  # no voice in particular


class VoiceCatalog:
    """The names that `voice` may have."""

    def __init__(self, library: VoiceLibrary, facts: ModelInfo, aliases: Mapping[str, str]) -> None:
        self.library, self._facts = library, facts
        self._aliases = {name.lower(): voice for name, voice in aliases.items()}

    def kept(self) -> list[Voice]:
        """Voices of the library that this model speaks with."""
        model = self._facts.identity
        return [voice for voice in self.library.list() if voice.fits(model)] if model.can_clone else []

    def resolve(self, voice: str | ClonedVoice | None) -> str | ClonedVoice | None:
        """What the engine takes; raises UnknownVoice with the list, InvalidRequest where the model has no such voice.

        Nobody in particular is the model's first voice or, of a model that clones, the library's.
        """
        own, model = self._facts.voices, self._facts.identity
        if isinstance(voice, ClonedVoice):
            return voice
        if voice is None or voice.strip().lower() in NOBODY:
            first = self.kept()[:1]
            if model.can_clone and not first:
                raise InvalidRequest("voice", voice, NO_VOICES)
            return first[0].cloned_for(model) if first else self.library.resolve(None, model, own)
        if self._facts.designs_voices and voice.lower() in OPENAI_NAMES:
            return None  # clients cannot leave it out
        if voice.lower() in self._aliases:
            return self.library.resolve(self._aliases[voice.lower()], model, own)
        try:
            return self.library.resolve(voice, model, own)
        except UnknownVoice:
            stand_in = self.stand_in(voice)
            if stand_in is None and model.can_clone and not self.kept():
                raise UnknownVoice("voice", voice, NO_VOICES) from None
            if stand_in is None:
                raise
            return self.library.resolve(stand_in, model, own)

    def stand_in(self, name: str) -> str | None:
        """Who speaks under one of OpenAI's names: they go round the voices that are there."""
        names = [*self._facts.voices, *(voice.name for voice in self.kept())]
        if name.lower() not in OPENAI_NAMES or not names:
            return None
        return names[OPENAI_NAMES.index(name.lower()) % len(names)]

    def list(self) -> list[dict[str, Any]]:
        """All of them as clients read it, the model's own first."""
        return [own(name) for name in self._facts.voices] + [told(voice) for voice in self.kept()]


def own(name: str) -> dict[str, Any]:
    """A voice of the model as an object."""
    return {"id": name, "name": name, "object": "audio.voice", "type": "own"}


def told(voice: Voice) -> dict[str, Any]:
    """A kept voice as an object; its id is its name, as that is what a request asks for."""
    return {
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
