# SPDX-License-Identifier: Apache-2.0
"""The time grid: the teacher's units of 25 ms, three of which become one frame of 80 ms.

The teacher's phoneme durations are integer numbers of units. Its speech is slowed down by one sixteenth, so that three
units are exactly one frame and there is no phase between the two clocks. Pitch falls by one semitone.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

UNITS_PER_FRAME = 3
TEACHER_UNIT = 600  # samples of a unit in the teacher's output
UNIT = 640  # samples after slowing down
FRAME = UNIT * UNITS_PER_FRAME
SAMPLE_RATE = 24_000
LEAD = 5  # units kept before the first phoneme: audio starts up to 5 units early, 2 on average
TAIL = 4  # units of silence kept at the end, plus padding to a full frame
QUIET = 0.03  # share of the loudest unit below which a unit is silent
# End of audio in units after the start of the last phoneme, per voice: means of 1.3 ± 1.3 and -1.5 ± 2.7.
LAST = (1, -1)
# The teacher's inverse STFT has a hop of 5 samples, which leaves tones at 4,800 and 9,600 Hz before slowing down.
TONES = (4500, 9000)
TONE_WIDTH, TONE_PADDING = 40, 4096
# Features of a unit: its phoneme, the number of units of that phoneme before it and after it.
FEATURES = 3
MAX_UNIT_COUNT = 15


@dataclass(frozen=True, slots=True)
class Span:
    """The part of an utterance that is kept, in units."""

    start: int
    units: int

    @property
    def frames(self) -> int:
        return self.units // UNITS_PER_FRAME


def first_unit(durations: np.ndarray) -> int:
    """The unit at which the span of speech starts."""
    return max(0, int(durations[0]) - LEAD)


def speech_span(durations: np.ndarray, samples: Tensor) -> Span:
    """The span of speech, by the timing of the first phoneme and the energy of the audio."""
    start = first_unit(durations)
    energy = samples[: len(samples) // TEACHER_UNIT * TEACHER_UNIT].view(-1, TEACHER_UNIT).square().mean(1).sqrt()
    loud = (energy > QUIET * energy.max()).nonzero()
    end = max(int(loud[-1]) + 1 + TAIL if len(loud) else 0, start + UNITS_PER_FRAME)
    return Span(start, -(-(end - start) // UNITS_PER_FRAME) * UNITS_PER_FRAME)


def timed_span(durations: np.ndarray, voice: int) -> Span:
    """The span of speech without audio: it ends near the start of the last phoneme."""
    start = first_unit(durations)
    end = int(durations[:-3].sum()) + LAST[voice] + TAIL
    return Span(start, -(-(end - start) // UNITS_PER_FRAME) * UNITS_PER_FRAME)


def unit_features(phonemes: np.ndarray, durations: np.ndarray, span: Span, before: int, after: int) -> np.ndarray:
    """[before + units + after, FEATURES]: phoneme (0 is silence), units before and after it, both capped."""
    tokens = np.concatenate([[0], phonemes, [0]])
    total = int(durations.sum())
    passed = np.arange(total) - np.repeat(np.cumsum(durations) - durations, durations)
    left = np.repeat(durations, durations) - 1 - passed
    rows = np.full((before + span.units + after, FEATURES), (0, MAX_UNIT_COUNT, MAX_UNIT_COUNT), np.uint8)
    first, last = span.start - before, span.start + span.units + after
    inside, known = slice(max(0, -first), min(last, total) - first), slice(max(0, first), min(last, total))
    rows[inside, 0] = np.repeat(tokens, durations)[known]
    rows[inside, 1] = np.minimum(passed, MAX_UNIT_COUNT)[known]
    rows[inside, 2] = np.minimum(left, MAX_UNIT_COUNT)[known]
    return rows


def cut(samples: Tensor, span: Span) -> Tensor:
    """The samples of a span, slowed down: [units × UNIT]."""
    first, last = span.start * TEACHER_UNIT, (span.start + span.units) * TEACHER_UNIT
    kept = samples[first:last]
    return slower(F.pad(kept, (0, last - first - len(kept))))


def without_tones(samples: Tensor) -> Tensor:
    """Remove the teacher's steady tones with a notch of TONE_WIDTH Hz on each side."""
    length = len(samples)
    spectrum = torch.fft.rfft(samples, length + TONE_PADDING)
    frequency = torch.fft.rfftfreq(length + TONE_PADDING, 1 / SAMPLE_RATE, device=samples.device)
    for tone in TONES:
        distance = ((frequency - tone).abs() / TONE_WIDTH).clamp(max=1)
        spectrum = spectrum * (0.5 - 0.5 * torch.cos(torch.pi * distance))
    return torch.fft.irfft(spectrum, length + TONE_PADDING)[:length]


def slower(samples: Tensor) -> Tensor:
    """Resample by 16/15 with a windowed sinc."""
    kernel = _kernel().to(samples)
    width = (kernel.shape[-1] - 15) // 2
    padded = F.pad(samples, (width, width + 15))
    made = F.conv1d(padded[None, None], kernel, stride=15)[0].t().reshape(-1)
    return made[: len(samples) * 16 // 15]


@cache
def _kernel(zeros: int = 12) -> Tensor:
    """One filter per output phase p: the input around 15 i + 15 p / 16."""
    width = zeros + 1
    offsets = torch.arange(-width, width + 15, dtype=torch.float64)
    centres = torch.arange(16, dtype=torch.float64)[:, None] * 15 / 16
    t = offsets[None] - centres
    window = torch.cos(torch.pi * t / (2 * (zeros + 1))).square() * (t.abs() < zeros + 1)
    return (torch.sinc(t) * window)[:, None].float()
