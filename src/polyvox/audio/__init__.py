"""Sound as people use it."""

from polyvox.audio.clip import Audio

__all__ = ["Audio"]
