"""Which checkpoint a voice was made for."""

from dataclasses import dataclass


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
