# SPDX-License-Identifier: Apache-2.0
"""A step between its launch on the device and its completion."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


@dataclass(slots=True, eq=False)
class CompletedStep:
    """A step whose audio was delivered and whose flags are known."""

    plan: StepPlan[LocalStream]
    flags: NDArray[np.int64]  # [calls, slots of plan.frame]; those of a slot after its last call are undefined
    seconds: float
