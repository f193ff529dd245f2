"""A step from when it is handed to the device until it is known what it gave."""

from dataclasses import dataclass

from polyvox.engine.step import Pending, Sound
from polyvox.engine.stream import LocalStream
from polyvox.engine.track import Plan


@dataclass(slots=True, eq=False)
class Flight:
    """A step under way: who is in it, and what it will give."""

    number: int  # steps land in the order in which they began
    plan: Plan
    began: float
    makes: list[LocalStream]
    flags: Pending | None
    sounds: list[LocalStream]
    sound: Sound | None

    @property
    def streams(self) -> list[LocalStream]:
        return self.makes + self.sounds


@dataclass(slots=True, eq=False)
class Landed:
    """A step whose sound was handed over: flags of those that made a frame."""

    flight: Flight
    flags: list[int]
    seconds: float
