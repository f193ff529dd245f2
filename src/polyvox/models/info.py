# SPDX-License-Identifier: Apache-2.0
"""What a loaded model is and what it can do: plain values that cross process boundaries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from polyvox.errors import InvalidRequest
from polyvox.models.request import AUTO, Sampling

# Names of ModelInfo's attributes that say whether a request is supported.
Capability = Literal[
    "voices", "can_clone", "designs_voices", "takes_instructions", "takes_phonemes", "takes_conversations"
]
Modality = Literal["audio", "text"]
Gender = Literal["female", "male"]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The name of a checkpoint and the fingerprint of everything that a cloned voice depends on.

    The fingerprint covers the model variant, the talker's width, the shape of the codes, and a hash of the weights that
    define speaker vectors and codes. Checkpoints with equal fingerprints accept the same voices.
    """

    name: str
    fingerprint: str
    can_clone: bool = False  # accepts cloned voices

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Identity, capabilities and defaults of a model, for processes that have not loaded it."""

    identity: ModelIdentity
    voices: tuple[str, ...]  # built-in
    languages: tuple[str, ...]
    takes_instructions: bool
    designs_voices: bool  # instructions describe the voice; there is no other way to choose one
    hidden_size: int  # length of a speaker vector
    frame_seconds: float
    sampling: Sampling  # defaults
    max_reference_seconds: float | None = None  # longest recording to clone
    modalities: tuple[Modality, ...] = ("audio",)  # of the output
    takes_conversations: bool = False  # speaks a thinker's answer by token ids: request.ThinkerPrompt
    # A thinker's prompt for a trial utterance, which its last token may answer; empty if the model takes text.
    trial_prompt: tuple[int, ...] = ()
    voice_genders: Mapping[str, Gender] = field(default_factory=dict)  # of built-in voices, as far as they are known
    takes_phonemes: bool = False  # text may have words with phonemes: text/phonemes/inline_phonemes.py
    # A published model of the same family for each capability, for error messages.
    alternatives: Mapping[Capability, str] = field(default_factory=dict)

    @property
    def can_clone(self) -> bool:
        return self.identity.can_clone

    @property
    def default_language(self) -> str:
        """The language of a text that shows none: English if the model speaks it, otherwise its first language."""
        names = [name for name in self.languages if name != AUTO]
        return "english" if "english" in names or not names else names[0]

    def supports(self, capability: Capability) -> bool:
        return bool(getattr(self, capability))

    def unsupported(self, field: str, value: object, capability: Capability) -> InvalidRequest:
        """An error for a request that needs a missing capability; its hint names a model that has it."""
        hint = self.alternatives.get(capability)
        requirement = f"is not supported by {self.identity.name}"
        return InvalidRequest(field, value, requirement, f"Use {hint}." if hint else "")
