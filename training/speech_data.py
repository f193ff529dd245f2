# SPDX-License-Identifier: Apache-2.0
"""The synthesised corpus on one device: all samples in one tensor, and the unit window of every frame."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.corpus import Phonemes, TimedUtterance, read_timed
from training.encoder import AFTER, BEFORE, MARGIN, WINDOW
from training.source import source_codes
from training.units import FRAME, UNITS_PER_FRAME, unit_features

HELD_OUT = 64  # one utterance in HELD_OUT is used for validation only


@dataclass(frozen=True, slots=True)
class Sound:
    samples: Tensor  # [frames × FRAME], int16
    windows: Tensor  # [frames, WINDOW, FEATURES], uint8
    source: Tensor  # [frames]: code 1
    frames: np.ndarray  # of each utterance
    index: np.ndarray  # of each utterance's text
    training: Tensor  # frames at which a training segment may start
    validation: Tensor


def windows(phonemes: np.ndarray, timed: TimedUtterance) -> np.ndarray:
    """The input of code 0: [frames, WINDOW, FEATURES]."""
    rows = unit_features(phonemes, timed.durations, timed.span, BEFORE, AFTER)
    views = np.lib.stride_tricks.sliding_window_view(rows, WINDOW, axis=0)[::UNITS_PER_FRAME]
    return views.transpose(0, 2, 1).copy()


def utterance_source(timed: TimedUtterance, voice: int) -> Tensor:
    """Code 1 of each frame."""
    assert timed.advance is not None
    return source_codes(torch.from_numpy(timed.advance), voice)


def load_sound(work: Path, segment: int, device: torch.device) -> Sound:
    """Load the output of `corpus speech`; `segment` is the segment length in frames."""
    phonemes = Phonemes(work)
    found = list(read_timed(work, "speech"))
    frames = np.array([timed.span.frames for timed, _ in found])
    paths = dict.fromkeys(path for _, path in found)
    samples = np.concatenate([np.fromfile(path, np.int16) for path in paths])
    assert len(samples) == frames.sum() * FRAME, (len(samples), frames.sum() * FRAME)
    rows = np.concatenate([windows(phonemes[timed.index], timed) for timed, _ in found])
    source = torch.cat([utterance_source(timed, int(phonemes.voices[timed.index])) for timed, _ in found])
    index = np.array([timed.index for timed, _ in found])

    held_out = np.repeat(index % HELD_OUT == 0, frames)
    reach = segment + 2 * MARGIN
    total = np.concatenate([[0], np.cumsum(held_out)])
    starts = np.arange(MARGIN, len(held_out) - reach)
    touched = total[starts + reach - MARGIN] - total[starts - MARGIN]
    validation = starts[touched == reach][:: max(1, int((touched == reach).sum()) // 64)][:64]
    if not len(validation):
        validation = starts[touched > 0][:64]
    return Sound(
        torch.from_numpy(samples).to(device),
        torch.from_numpy(rows).to(device),
        source.to(device),
        frames,
        index,
        torch.from_numpy(starts[touched == 0]).to(device),
        torch.from_numpy(validation).to(device),
    )


class Segments:
    """Random segments of a fixed length, gathered on the device."""

    def __init__(self, sound: Sound, frames: int) -> None:
        device = sound.samples.device
        self.sound, self.frames = sound, frames
        self._frames = torch.arange(frames, device=device)
        self._samples = torch.arange((frames + 2 * MARGIN) * FRAME, device=device)

    def draw(self, count: int) -> Tensor:
        choice = torch.randint(len(self.sound.training), (count,), device=self._frames.device)
        return self.sound.training[choice]

    def windows(self, starts: Tensor) -> Tensor:
        return self.sound.windows[starts[:, None] + self._frames]

    def source(self, starts: Tensor) -> Tensor:
        return self.sound.source[starts[:, None] + self._frames]

    def samples(self, starts: Tensor) -> Tensor:
        """Samples with the encoder's margin on both sides."""
        return self.sound.samples[((starts - MARGIN) * FRAME)[:, None] + self._samples].float() / 32767


def without_margin(samples: Tensor) -> Tensor:
    return samples[:, MARGIN * FRAME : -MARGIN * FRAME]
