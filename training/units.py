# SPDX-License-Identifier: Apache-2.0
"""The time grid: the teacher's units of 25 ms, three of which become one frame of 80 ms.

The teacher's phoneme durations are integer numbers of units. Its speech is slowed down by one sixteenth, so that three
units are exactly one frame and there is no phase between the two clocks. Pitch falls by one semitone.
"""

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
TAIL = 6  # units kept after the start of the last sound, plus padding to a full frame: audio ends up to 5 units later
# The teacher's inverse STFT has a hop of 5 samples, which leaves tones at 4,800 and 9,600 Hz before slowing down.
TONES = (4500, 9000)
TONE_WIDTH, TONE_PADDING = 40, 4096
SINC_ZEROS = 12  # zero crossings on each side, in the filter that slows down


def first_unit(silence: np.ndarray) -> np.ndarray:
    """The unit at which the frames of an utterance begin, from the duration of the silence before the first phoneme."""
    return np.maximum(0, silence - LEAD)


def num_frames(durations: np.ndarray) -> int:
    """Frames of an utterance, whose durations are those of start, phonemes and end; the last phoneme is a full stop."""
    return int(-(-(durations[:-3].sum() + TAIL - first_unit(durations[0])) // UNITS_PER_FRAME))


def cut(samples: Tensor, start: int, frames: int) -> Tensor:
    """The samples of these frames, slowed down: [frames × FRAME]."""
    first, last = start * TEACHER_UNIT, (start + frames * UNITS_PER_FRAME) * TEACHER_UNIT
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
def _kernel() -> Tensor:
    """One filter per output phase p: the input around 15 i + 15 p / 16."""
    width = SINC_ZEROS + 1
    offsets = torch.arange(-width, width + 15, dtype=torch.float64)
    centres = torch.arange(16, dtype=torch.float64)[:, None] * 15 / 16
    t = offsets[None] - centres
    window = torch.cos(torch.pi * t / (2 * width)).square() * (t.abs() < width)
    return (torch.sinc(t) * window)[:, None].float()
