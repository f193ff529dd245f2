# SPDX-License-Identifier: Apache-2.0
"""A step between its launch on the device and its completion."""

from dataclasses import dataclass

from polyvox.engine.pending import Pending, PendingAudio
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_state import StepPlan


@dataclass(slots=True, eq=False)
class InFlightStep:
    """A launched step and its results on their way to the host."""

    number: int  # steps complete in the order of their launch
    plan: StepPlan[LocalStream]
    flags: Pending | None  # [calls, slots of plan.frame]
    audio: PendingAudio | None  # of plan.codec
    follows: bool = False  # it decodes the first frames of the step before it, which must complete first
