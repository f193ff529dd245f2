# SPDX-License-Identifier: Apache-2.0
"""The phase of the teacher's harmonic source at the start of each codec frame is a multiple of a quarter cycle."""

import pytest
import torch
from torch import Tensor

from training.source import (
    CLASSES,
    FRAME_POINTS,
    LOWEST,
    NOISE,
    POINT_SAMPLES,
    POINTS,
    RANGE,
    SILENT_PITCH,
    SOURCE_CODES,
    SPECTRUM_HOP,
    STEPS_PER_HZ,
    lock,
    locked_pitch,
    loudness,
    phase,
    source_codes,
    source_table,
    with_noise,
)
from training.units import UNITS_PER_FRAME

HEART = torch.tensor([0])
START = torch.tensor([2])  # units
FRAME_SAMPLES = FRAME_POINTS * POINT_SAMPLES


def rising(points: int = 60) -> Tensor:
    return torch.linspace(150, 250, points)[None]


def test_the_phase_at_the_start_of_each_frame_is_a_multiple_of_a_quarter_cycle() -> None:
    pitch = rising()
    advance = lock(pitch, START, HEART)
    angle = phase(advance, START, pitch.shape[1])[0, :, 0].double() / (2 * torch.pi)
    first = int(START) * FRAME_SAMPLES // UNITS_PER_FRAME
    starts = torch.arange(first, len(angle) - 1, FRAME_SAMPLES)
    per_sample = advance[0, : len(starts)] / CLASSES / FRAME_SAMPLES
    quarters = (angle[starts] - 0.5 * per_sample) * CLASSES  # a sample is half a step after the start
    assert (quarters - quarters.round()).abs().max() < 1e-4
    expected = (advance[0].cumsum(0) - advance[0])[: len(starts)] % CLASSES
    assert quarters.round().long().remainder(CLASSES).tolist() == expected.tolist()


def test_the_phase_continues_across_frames() -> None:
    pitch = rising()
    angle = phase(lock(pitch, START, HEART), START, pitch.shape[1])[0, :, 0]
    steps = (angle.diff() + torch.pi) % (2 * torch.pi) - torch.pi
    assert steps.min() > 2 * torch.pi * 140 / 24_000
    assert steps.max() < 2 * torch.pi * 260 / 24_000


def test_a_harmonic_has_a_multiple_of_the_fundamental_phase() -> None:
    pitch = rising()
    angle = phase(lock(pitch, START, HEART), START, pitch.shape[1])[0].double()
    assert torch.allclose((4 * angle[:, 0]).sin(), angle[:, 3].sin(), atol=1e-4)


def test_the_locked_pitch_is_within_half_a_step_of_the_mean_of_its_frame() -> None:
    pitch = torch.full((1, 6 * FRAME_POINTS), 203.0)
    made = locked_pitch(pitch, lock(pitch, torch.tensor([0]), HEART), torch.tensor([0]))
    assert (made - pitch).abs().max() <= 0.5 / STEPS_PER_HZ


def test_frames_without_voice_have_the_pitch_between_their_neighbours() -> None:
    pitch = torch.zeros(1, 5 * FRAME_POINTS)
    pitch[:, :FRAME_POINTS], pitch[:, -FRAME_POINTS:] = 160.0, 240.0
    advance = lock(pitch, torch.tensor([0]), HEART)
    assert (advance[0] / STEPS_PER_HZ).tolist() == pytest.approx([160, 180, 200, 220, 240], abs=2)
    assert torch.equal(locked_pitch(pitch, advance, torch.tensor([0])) > 0, pitch > 0)  # silence stays silent


def test_an_utterance_without_voice_has_the_usual_pitch() -> None:
    advance = lock(torch.zeros(2, 12), torch.tensor([0, 1]), torch.tensor([0, 1]))
    wanted = [[round(hertz * STEPS_PER_HZ)] * 2 for hertz in SILENT_PITCH]
    assert advance.tolist() == wanted


def test_a_low_pitch_at_the_edge_of_a_voiced_sound_is_ignored() -> None:
    pitch = torch.full((1, FRAME_POINTS), 200.0)
    pitch[0, 0] = 20.0
    assert lock(pitch, torch.tensor([0]), HEART).tolist() == [[round(200 * STEPS_PER_HZ)]]


def test_loudness_is_the_energy_of_a_unit_as_an_integer() -> None:
    energy = torch.tensor([[-20.0, -20.0, 0.0, 1.0, 3.0, 3.0, 30.0, 30.0]])
    assert loudness(energy).tolist() == [[0, 126, 156, 255]]


def test_a_code_has_voice_pitch_and_phase_class() -> None:
    advance = torch.tensor([50, 51, 47])
    codes = source_codes(advance, 1)
    assert (codes // (RANGE * CLASSES)).tolist() == [1, 1, 1]
    assert (codes // CLASSES % RANGE + LOWEST[1]).tolist() == advance.tolist()
    assert (codes % CLASSES).tolist() == [0, 50 % CLASSES, 101 % CLASSES]


def test_the_features_of_a_code_are_pitch_and_voice() -> None:
    table = source_table()
    assert len({tuple(row) for row in table.tolist()}) * CLASSES == SOURCE_CODES == len(table)


def test_the_noise_is_the_same_in_all_frames_that_start_with_one_phase() -> None:
    frames, columns = 6, FRAME_SAMPLES // SPECTRUM_HOP
    advance, starts = torch.tensor([[40, 40, 41, 43, 40, 40]]), torch.tensor([0])
    spectrum = torch.ones(1, frames * columns, 11, 2)
    made = (with_noise(spectrum, advance, starts) - spectrum).view(frames, columns, 11, 2)
    assert (source_codes(advance[0], 0) % CLASSES).tolist() == [0, 0, 0, 1, 0, 0]
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[4])
    assert not torch.allclose(made[0], made[3])
    assert float(made.std()) == pytest.approx(NOISE, rel=0.1)


def test_the_noise_moves_with_the_first_frame() -> None:
    advance = torch.tensor([[40, 41, 40]])
    spectrum = torch.ones(1, 3 * FRAME_SAMPLES // SPECTRUM_HOP, 11, 2)
    shift = int(START) * POINTS * POINT_SAMPLES // SPECTRUM_HOP
    early, late = (with_noise(spectrum, advance, start) for start in (torch.tensor([0]), START))
    assert torch.equal(late[:, shift:], early[:, :-shift])
