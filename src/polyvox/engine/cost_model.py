"""What a step will take, by what is in it."""

from dataclasses import dataclass

# How fast the cost model follows the machine (in about 50 steps), and how far it may leave what was measured.
FOLLOW, FACTORS = 0.02, (0.2, 10.0)


@dataclass(slots=True)
class CostModel:
    """Seconds of a step by what is in it; measured at start, corrected while running.

    What any call costs and what grows with its size are corrected apart: the small steps of a quiet hour must not
    promise anything about full ones.
    """

    step: float  # any frame step at all
    stream: float  # each stream of a frame step
    prefill_row: float
    codec: float  # any codec call at all; every size of chunk is a call
    codec_frame: float
    fixed: float = 1.0  # correction of `step` and `codec`
    growing: float = 1.0  # correction of the others

    def seconds(self, streams: int, prefill_rows: int, codec_frames: int, codec_calls: int = 1) -> float:
        fixed, growing = self._parts(streams, prefill_rows, codec_frames, codec_calls)
        return self.fixed * fixed + self.growing * growing

    def observe(self, streams: int, prefill_rows: int, codec_frames: int, codec_calls: int, actual: float) -> None:
        """Follows the machine slowly: one stall must not close the door, a slower machine must."""
        fixed, growing = self._parts(streams, prefill_rows, codec_frames, codec_calls)
        predicted = self.fixed * fixed + self.growing * growing
        if predicted > 0:
            error = min(max(actual, predicted / 2), predicted * 2) - predicted
            # Each part takes as much of the error as it has of the step: normalised least mean squares.
            gain = FOLLOW * error / (fixed * fixed + growing * growing)
            self.fixed = min(max(self.fixed + gain * fixed, FACTORS[0]), FACTORS[1])
            self.growing = min(max(self.growing + gain * growing, FACTORS[0]), FACTORS[1])

    def _parts(self, streams: int, prefill_rows: int, codec_frames: int, codec_calls: int) -> tuple[float, float]:
        fixed = (self.step if streams else 0.0) + (self.codec * codec_calls if codec_frames else 0.0)
        return fixed, self.stream * streams + self.prefill_row * prefill_rows + self.codec_frame * codec_frames
