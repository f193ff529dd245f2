# SPDX-License-Identifier: Apache-2.0
"""Predicts how long a step takes."""

from dataclasses import dataclass

LEARNING_RATE = 0.02  # the model follows a change of the machine within about 50 steps
# Work of the host for each frame of a GPU, which the start cannot measure without requests: 15 µs with 1,536 streams
# over HTTP beside an H200. Corrected while running.
HOST_FRAME_SECONDS = 15e-6
MIN_CORRECTION, MAX_CORRECTION = 0.2, 10.0  # of what was measured at start


@dataclass(slots=True)
class CostModel:
    """Seconds of a step by what is in it: linear, measured at start, corrected while running.

    The host prepares a step while the device computes the one before it, so the longer of the two counts.

    The fixed and the growing part are corrected separately: the small steps of an idle engine say nothing about full
    ones.
    """

    step: float  # any frame call
    stream: float  # each stream of a frame call
    prefill_row: float
    codec: float  # any codec call; each chunk size is a call
    codec_frame: float
    fixed: float = 1.0  # correction of `step` and `codec`
    growing: float = 1.0  # correction of the others
    host_frame: float = 0.0  # work of the host for each frame, beside the device

    def seconds(
        self, frames: int, prefill_rows: int, codec_frames: int, codec_calls: int = 1, frame_calls: int = 1
    ) -> float:
        fixed, growing = self._parts(frames, prefill_rows, codec_frames, codec_calls, frame_calls)
        return self.fixed * fixed + self.growing * growing

    def calibrated_seconds(
        self, frames: int, prefill_rows: int, codec_frames: int, codec_calls: int = 1, frame_calls: int = 1
    ) -> float:
        """The same without the corrections."""
        return sum(self._parts(frames, prefill_rows, codec_frames, codec_calls, frame_calls))

    def observe(
        self, frames: int, prefill_rows: int, codec_frames: int, codec_calls: int, frame_calls: int, actual: float
    ) -> None:
        """Corrects both parts by normalised least mean squares; one stall changes little, a slower machine much."""
        fixed, growing = self._parts(frames, prefill_rows, codec_frames, codec_calls, frame_calls)
        predicted = self.fixed * fixed + self.growing * growing
        if predicted > 0:
            error = min(max(actual, predicted / 2), predicted * 2) - predicted
            gain = LEARNING_RATE * error / (fixed * fixed + growing * growing)
            self.fixed = min(max(self.fixed + gain * fixed, MIN_CORRECTION), MAX_CORRECTION)
            self.growing = min(max(self.growing + gain * growing, MIN_CORRECTION), MAX_CORRECTION)

    def _parts(
        self, frames: int, prefill_rows: int, codec_frames: int, codec_calls: int, frame_calls: int
    ) -> tuple[float, float]:
        fixed = (self.step * frame_calls if frames else 0.0) + (self.codec * codec_calls if codec_frames else 0.0)
        device = self.stream * frames + self.prefill_row * prefill_rows + self.codec_frame * codec_frames
        return fixed, max(device, self.host_frame * frames)
