# SPDX-License-Identifier: Apache-2.0
"""Frames on one device: what the codes of a frame are computed from, and the audio of synthesised texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.corpus import Phonemes, Timings, read_audio, read_timings, spans
from training.encoder import AFTER, BEFORE, FRAMES_AFTER, FRAMES_BEFORE, MAX_UNIT_COUNT, SHIFT, WINDOW
from training.source import source_codes
from training.units import FRAME, UNITS_PER_FRAME, first_unit

HELD_OUT = 64  # one utterance in HELD_OUT is used for validation only
MARGIN = 1  # frames of audio on each side of a segment, for its spectrum
SILENCE = (0, MAX_UNIT_COUNT, MAX_UNIT_COUNT, 0)


@dataclass(frozen=True, slots=True)
class Frames:
    """The input of the encoder for the frames of utterances, one after another."""

    units: Tensor  # [rows, 4], uint8: phoneme, units of it before and after, loudness
    first: Tensor  # [frames]: row of the first unit of each window
    source: Tensor  # [frames, SOURCES]: code 1 of the neighbouring frames
    phonemes: np.ndarray  # [frames]: position of the frame's phoneme in its text

    def windows(self, frames: Tensor) -> Tensor:
        """Windows of units of these frames: [*, WINDOW, 4]."""
        return self.units[self.first[frames][..., None] + torch.arange(WINDOW, device=self.first.device)]


def make_frames(ids: np.ndarray, voices: np.ndarray, timings: Timings, device: torch.device) -> Frames:
    """The frames of utterances. ids: phonemes of all of them, one after another; voices: one of each."""
    counts, frames, durations = timings.counts, timings.frames, timings.durations
    tokens = np.zeros(len(durations), np.uint8)  # 0 is silence
    first_token = np.cumsum(counts) - counts
    tokens[spans(first_token + 1, counts - 2)] = ids

    begin = np.cumsum(durations) - durations  # unit at which each phoneme begins, over all utterances
    token = np.repeat(np.arange(len(durations)), durations)  # of each unit
    passed = np.arange(len(token)) - begin[token]
    features = np.stack(
        [tokens[token], *(np.minimum(x, MAX_UNIT_COUNT) for x in (passed, durations[token] - 1 - passed))], 1
    )

    # Rows of an utterance: BEFORE units, those of its frames, AFTER units; there is silence outside of the utterance.
    sizes = BEFORE + frames * UNITS_PER_FRAME + AFTER
    low = begin[first_token]
    high = np.append(low[1:], len(token))
    starts = low + first_unit(durations[first_token])
    unit = spans(starts - BEFORE, sizes)
    inside = (unit >= np.repeat(low, sizes)) & (unit < np.repeat(high, sizes))
    rows = np.full((len(unit), len(SILENCE)), SILENCE, np.uint8)
    rows[inside, :-1] = features[unit[inside]]
    rows[spans(np.cumsum(sizes) - sizes + BEFORE, frames * UNITS_PER_FRAME), -1] = timings.loudness

    step = spans(np.zeros_like(frames), frames)  # of each frame in its utterance
    first_row = np.repeat(np.cumsum(sizes) - sizes, frames) + step * UNITS_PER_FRAME
    middle = np.repeat(starts, frames) + step * UNITS_PER_FRAME + UNITS_PER_FRAME // 2 + SHIFT
    position = token[middle.clip(max=np.repeat(high, frames) - 1)] - np.repeat(first_token, frames) - 1

    first_frame = np.repeat(np.cumsum(frames) - frames, frames)
    last_frame = first_frame + np.repeat(frames, frames) - 1
    around = np.arange(len(step))[:, None] + np.arange(-FRAMES_BEFORE, FRAMES_AFTER + 1)
    voice = torch.from_numpy(np.repeat(voices, frames).astype(np.int64))
    codes = source_codes(torch.from_numpy(timings.advance.astype(np.int64)), voice, torch.from_numpy(first_frame))
    return Frames(
        torch.from_numpy(rows).to(device),
        torch.from_numpy(first_row).to(device),
        codes[torch.from_numpy(around.clip(first_frame[:, None], last_frame[:, None]))].to(device),
        position.clip(0, np.repeat(counts, frames) - 3).astype(np.int16),
    )


def corpus_frames(phonemes: Phonemes, timings: Timings, device: torch.device) -> Frames:
    """The frames of utterances of the corpus."""
    return make_frames(phonemes.of(timings.texts), phonemes.voices[timings.texts], timings, device)


@dataclass(frozen=True, slots=True)
class Sound:
    """The synthesised texts."""

    samples: Tensor  # [frames × FRAME], int16
    inputs: Frames
    frames: np.ndarray  # of each utterance
    index: np.ndarray  # of each utterance's text
    training: Tensor  # frames at which a training segment may start
    utterances: Tensor  # those of them at which an utterance starts
    validation: Tensor


def load_sound(work: Path, segment: int, device: torch.device) -> Sound:
    """Load the output of `corpus speech`; `segment` is the segment length in frames."""
    timings, samples = read_timings(work, "speech"), read_audio(work)
    frames = timings.frames
    assert len(samples) == frames.sum() * FRAME, (len(samples), frames.sum() * FRAME)
    held_out = np.repeat(timings.texts % HELD_OUT == 0, frames)
    reach = segment + 2 * MARGIN
    total = np.concatenate([[0], np.cumsum(held_out)])
    starts = np.arange(MARGIN, len(held_out) - reach)
    touched = total[starts + reach - MARGIN] - total[starts - MARGIN]
    validation = starts[touched == reach][:: max(1, int((touched == reach).sum()) // 64)][:64]
    if not len(validation):
        validation = starts[touched > 0][:64]
    training = starts[touched == 0]
    return Sound(
        torch.from_numpy(samples).to(device),
        corpus_frames(Phonemes(work), timings, device),
        frames,
        timings.texts,
        torch.from_numpy(training).to(device),
        torch.from_numpy(np.intersect1d(training, np.cumsum(frames))).to(device),
        torch.from_numpy(validation).to(device),
    )


class Segments:
    """Random segments of a fixed length, gathered on the device."""

    def __init__(self, sound: Sound, frames: int) -> None:
        device = sound.samples.device
        self.sound, self.frames = sound, frames
        self._frames = torch.arange(frames, device=device)
        self._samples = torch.arange((frames + 2 * MARGIN) * FRAME, device=device)

    def draw(self, count: int, at_start: int = 0) -> Tensor:
        """Frames at which segments start; the first `at_start` of them are the first frames of utterances."""
        kinds = ((self.sound.utterances, at_start), (self.sound.training, count - at_start))
        return torch.cat([x[torch.randint(len(x), (n,), device=x.device)] for x, n in kinds if n])

    def inputs(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's input: windows of units, and code 1 of neighbouring frames."""
        frames = starts[:, None] + self._frames
        return self.sound.inputs.windows(frames), self.sound.inputs.source[frames]

    def source(self, starts: Tensor) -> Tensor:
        """Code 1 of each frame."""
        return self.sound.inputs.source[starts[:, None] + self._frames, FRAMES_BEFORE]

    def samples(self, starts: Tensor) -> Tensor:
        """Samples with a margin on both sides."""
        return self.sound.samples[((starts - MARGIN) * FRAME)[:, None] + self._samples].float() / 32767


def without_margin(samples: Tensor) -> Tensor:
    return samples[:, MARGIN * FRAME : -MARGIN * FRAME]
