"""A step from when it is handed to the device until it is known what it gave."""

from dataclasses import dataclass

from polyvox.engine.model_runner import Pending, PendingAudio
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_state import StepPlan


@dataclass(slots=True, eq=False)
class InFlightStep:
    """A step under way: who is in it, and what it will give."""

    number: int  # steps land in the order in which they began
    plan: StepPlan
    began: float
    makes: list[LocalStream]
    flags: Pending | None
    sounds: list[LocalStream]
    sound: PendingAudio | None

    @property
    def streams(self) -> list[LocalStream]:
        return self.makes + self.sounds


@dataclass(slots=True, eq=False)
class CompletedStep:
    """A step whose sound was handed over: flags of those that made a frame."""

    flight: InFlightStep
    flags: list[int]
    seconds: float
