"""Which checkpoint this is: what a voice was made for, and what may be asked of it."""

from dataclasses import dataclass

from polyvox.models.request import Sampling


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A checkpoint as a voice knows it: a name for people, and a fingerprint of all that a voice depends on.

    The fingerprint holds the kind, the talker's width, groups and size of the codes, and a hash of the weights that
    give speaker vectors and codes their meaning. Two checkpoints with the same one take the same voices.
    """

    name: str
    fingerprint: str

    @property
    def clones(self) -> bool:
        """Whether voices are made for it; the other kinds have voices of their own, or none."""
        return self.fingerprint.startswith("base-")

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server tells of a checkpoint and checks requests by, without having it in its process."""

    identity: ModelIdentity
    kind: str  # custom_voice, voice_design or base
    voices: tuple[str, ...]  # of its own
    languages: tuple[str, ...]
    takes_instructions: bool
    hidden_size: int  # numbers of a speaker vector
    frame_seconds: float
    sampling: Sampling  # where a request says nothing else
