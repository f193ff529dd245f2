"""The time grid: the teacher's units of 25 ms, three of which become one frame of 80 ms.

The teacher times phonemes in whole units. Its speech is read one sixteenth slower than it was made, so that three units
are exactly one frame: a frame then is three symbols, and text can tell what it holds. (Pitch falls by one semitone.)
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

UNITS_PER_FRAME = 3
TEACHER_UNIT = 600  # samples as the teacher makes them
UNIT = 640  # samples after slowing down
FRAME = UNIT * UNITS_PER_FRAME
SAMPLE_RATE = 24_000
LEAD = 5  # units kept before the first phoneme: sound starts up to 5 units early, 2 on average
TAIL = 4  # units of silence kept at the end, and what fills the last frame
QUIET = 0.03  # of the loudest unit; below it is silence
# Units after the begin of the last phoneme at which sound ends, of each voice: means of 1.3 ± 1.3 and -1.5 ± 2.7.
LAST = (1, -1)
# What a unit is: its phoneme, how many units of it have passed and how many are left.
FEATURES = 3
LONGEST_COUNT = 15


@dataclass(frozen=True, slots=True)
class Span:
    """The part of an utterance that is kept, in the teacher's units."""

    start: int
    units: int

    @property
    def frames(self) -> int:
        return self.units // UNITS_PER_FRAME


def spoken_span(durations: np.ndarray, samples: Tensor) -> Span:
    """Where speech is, by the timing of its first phoneme and the energy of its end."""
    start = max(0, int(durations[0]) - LEAD)
    energy = samples[: len(samples) // TEACHER_UNIT * TEACHER_UNIT].view(-1, TEACHER_UNIT).square().mean(1).sqrt()
    loud = (energy > QUIET * energy.max()).nonzero()
    end = max(int(loud[-1]) + 1 + TAIL if len(loud) else 0, start + UNITS_PER_FRAME)
    return Span(start, -(-(end - start) // UNITS_PER_FRAME) * UNITS_PER_FRAME)


def timed_span(durations: np.ndarray, voice: int) -> Span:
    """The same where there is no sound: it ends about where the last phoneme is due, sooner in one voice."""
    start = max(0, int(durations[0]) - LEAD)
    end = int(durations[:-3].sum()) + LAST[voice] + TAIL
    return Span(start, -(-(end - start) // UNITS_PER_FRAME) * UNITS_PER_FRAME)


def unit_features(phonemes: np.ndarray, durations: np.ndarray, span: Span, before: int, after: int) -> np.ndarray:
    """[before + units + after, FEATURES]: phoneme (0 is silence), units of it passed and left, both capped."""
    tokens = np.concatenate([[0], phonemes, [0]])
    total = int(durations.sum())
    passed = np.arange(total) - np.repeat(np.cumsum(durations) - durations, durations)
    left = np.repeat(durations, durations) - 1 - passed
    rows = np.full((before + span.units + after, FEATURES), (0, LONGEST_COUNT, LONGEST_COUNT), np.uint8)
    first, last = span.start - before, span.start + span.units + after
    inside, known = slice(max(0, -first), min(last, total) - first), slice(max(0, first), min(last, total))
    rows[inside, 0] = np.repeat(tokens, durations)[known]
    rows[inside, 1] = np.minimum(passed, LONGEST_COUNT)[known]
    rows[inside, 2] = np.minimum(left, LONGEST_COUNT)[known]
    return rows


def cut(samples: Tensor, span: Span) -> Tensor:
    """The kept samples, slowed down: [units × UNIT]."""
    first, last = span.start * TEACHER_UNIT, (span.start + span.units) * TEACHER_UNIT
    kept = samples[first:last]
    return slower(F.pad(kept, (0, last - first - len(kept))))


def slower(samples: Tensor) -> Tensor:
    """16 samples for every 15, by a windowed sinc."""
    kernel = _kernel().to(samples)
    width = (kernel.shape[-1] - 15) // 2
    padded = F.pad(samples, (width, width + 15))
    made = F.conv1d(padded[None, None], kernel, stride=15)[0].t().reshape(-1)
    return made[: len(samples) * 16 // 15]


@cache
def _kernel(zeros: int = 12) -> Tensor:
    """One filter for each of 16 phases: the input around 15 i + 15 p / 16, in input samples."""
    width = zeros + 1
    offsets = torch.arange(-width, width + 15, dtype=torch.float64)
    centres = torch.arange(16, dtype=torch.float64)[:, None] * 15 / 16
    t = offsets[None] - centres
    window = torch.cos(torch.pi * t / (2 * (zeros + 1))).square() * (t.abs() < zeros + 1)
    return (torch.sinc(t) * window)[:, None].float()
