# SPDX-License-Identifier: Apache-2.0
"""Counters of completed steps since the start, and the sizes of the last step."""

from polyvox.engine.step_histogram import StepHistogram
from polyvox.engine.stream_state import S, StepPlan


class StepCounters:
    """last: the sizes of the last step, and its duration in seconds."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(("steps", "frames", "prompt_rows"), 0.0)
        self._durations = StepHistogram()
        self.last: dict[str, float] = {}

    def observe(self, plan: StepPlan[S], seconds: float) -> None:
        frames, rows, codec_frames, _, _ = plan.sizes()
        self._totals["steps"] += 1
        self._totals["frames"] += frames
        self._totals["prompt_rows"] += rows
        self._durations.observe(seconds)
        batch = len(plan.frame)
        self.last = {"batch": batch, "prefill_rows": rows, "codec_frames": codec_frames, "seconds": seconds}

    def stats(self) -> dict[str, float]:
        last = {f"step_{name}": value for name, value in self.last.items()}
        return {**self._totals, **last, **self._durations.stats()}
