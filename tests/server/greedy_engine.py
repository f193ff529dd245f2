# SPDX-License-Identifier: Apache-2.0
"""An engine that speaks answers as the reference implementation was run, and the conversations of these runs."""

from dataclasses import replace

from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import OnReady
from polyvox.engine.stream import LocalStream
from polyvox.models.request import Request, Sampling
from reference.omni_cases import CONVERSATIONS

# In text. Without the longest one, which the engine's tests have.
CASES = [case for case in CONVERSATIONS if case.shape == "plain" and not case.media and case.name != "early-end"]


class GreedyEngine(LocalEngine):
    """Speaks the answers as the reference implementation was run for a case."""

    case = CASES[0]

    def submit(self, request: Request, on_ready: OnReady | None = None) -> LocalStream:
        if request.thinker_prompt is not None:
            greedy = Sampling(temperature=0.0, predictor_temperature=0.0, min_frames=self.case.min_frames)
            frames = self.case.frames - 1
            request = replace(request, sampling=greedy, max_frames=frames, guard=False, trim_silence=False)
        return super().submit(request, on_ready)
