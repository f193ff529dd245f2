# SPDX-License-Identifier: Apache-2.0
"""The teacher's harmonic source, aligned with the codec's frames so that its phase can be coded.

The teacher excites its filters with harmonics of a pitch curve; their phase is the integral of the curve. Here the
pitch is constant within a frame and a multiple of a quarter cycle per frame. The phase at the start of each frame is
then one of four classes, and class and pitch together determine the excitation of the whole frame. Code 1 of a frame is
this pair, with the voice.
"""

import torch
from torch import Tensor

from training.units import UNITS_PER_FRAME

CLASSES = 4  # phases at the start of a frame: multiples of a quarter cycle, the step of all phases
POINTS = 2  # pitch values of a unit
FRAME_POINTS = POINTS * UNITS_PER_FRAME
POINT_SAMPLES = 300  # teacher samples of a pitch value
TEACHER_RATE = 24_000
STEPS_PER_HZ = CLASSES * FRAME_POINTS * POINT_SAMPLES / TEACHER_RATE  # phase steps of a frame at 1 Hz
MIN_VOICED = 10.0  # Hz, as in the teacher
HARMONICS = 9
# Smallest number of phase steps of a frame of each voice, and the number of different ones.
LOWEST, RANGE = (31, 16), 64
SOURCE_CODES = len(LOWEST) * RANGE * CLASSES
SPECTRUM_HOP = 5  # teacher samples
NOISE = 7e-4  # relative to the source
NOISE_SEED = 1
QUIETEST, LOUDNESS_STEPS, LOUDEST = -10.0, 12.0, 255  # of the energy; levels of 1 of the energy
SILENT_PITCH = (200.0, 110.0)  # Hz, for utterances without a voiced sound


def lock(pitch: Tensor, starts: Tensor, voices: Tensor) -> Tensor:
    """Phase steps of each frame, [B,frames].

    pitch [B,points] in Hz, not voiced up to MIN_VOICED; starts [B]: unit at which frame 0 begins. Frames without
    voiced sound have the pitch between their neighbours.
    """
    frame = frame_of_points(pitch.shape[1], starts)
    lowest = torch.tensor(LOWEST, device=pitch.device)[voices][:, None]
    voiced = (pitch * STEPS_PER_HZ > lowest).to(pitch.dtype)  # the curve falls to zero at the edges of voiced sounds
    empty = pitch.new_zeros(len(pitch), num_frames(pitch.shape[1]))
    count = empty.scatter_add(1, frame, voiced)
    mean = empty.scatter_add(1, frame, pitch * voiced) / count.clamp(min=1)
    silent = pitch.new_tensor(SILENT_PITCH)[voices][:, None]
    advance = (_filled(mean, count > 0, silent) * STEPS_PER_HZ).round().long()
    return advance.clamp(min=lowest, max=lowest + RANGE - 1)


def loudness(energy: Tensor) -> Tensor:
    """Loudness of each unit [B,units] as an integer from the energy [B,points]: the teacher's reaches from -9 to 9."""
    mean = energy.unflatten(1, (-1, POINTS)).mean(2)
    return ((mean - QUIETEST) * LOUDNESS_STEPS).round().clamp(0, LOUDEST).long()


def num_frames(points: int) -> int:
    return -(-points // FRAME_POINTS)


def frame_of_points(points: int, starts: Tensor) -> Tensor:
    """The frame of each pitch value, [B,points]; values before the first frame belong to it."""
    point = torch.arange(points, device=starts.device)[None] - POINTS * starts[:, None]
    return point.div(FRAME_POINTS, rounding_mode="floor").clamp(min=0)


def locked_pitch(pitch: Tensor, advance: Tensor, starts: Tensor) -> Tensor:
    """The pitch curve with the locked pitch where it is voiced; values after the last frame belong to it."""
    frame = frame_of_points(pitch.shape[1], starts).clamp(max=advance.shape[1] - 1)
    level = advance.gather(1, frame).to(pitch.dtype) / STEPS_PER_HZ
    return torch.where(pitch > MIN_VOICED, level, pitch)


def phase(advance: Tensor, starts: Tensor, points: int) -> Tensor:
    """Phase of all harmonics at each sample in radians, [B, samples, HARMONICS]; zero at the start of frame 0."""
    time = torch.arange(points * POINT_SAMPLES, device=starts.device, dtype=torch.float64)[None]
    position = (time + 0.5) / (FRAME_POINTS * POINT_SAMPLES) - starts[:, None].double() / UNITS_PER_FRAME
    frame = position.floor().long().clamp(min=0, max=advance.shape[1] - 1)
    before = advance.cumsum(1) - advance
    cycles = (before.gather(1, frame) + advance.gather(1, frame) * (position - frame)) / CLASSES
    harmonics = torch.arange(1, HARMONICS + 1, device=starts.device, dtype=torch.float64)
    return (2 * torch.pi * (cycles[..., None] * harmonics % 1)).float()


def with_noise(spectrum: Tensor, advance: Tensor, starts: Tensor) -> Tensor:
    """The source's spectrum [B,columns,bins,2] with noise, which is the same in all frames that start with one phase.

    The source is zero between voiced sounds, where the noise determines the teacher's output.
    """
    columns = FRAME_POINTS * POINT_SAMPLES // SPECTRUM_HOP  # of a frame
    generator = torch.Generator().manual_seed(NOISE_SEED)
    noise = torch.randn(CLASSES, columns, *spectrum.shape[2:], generator=generator).to(spectrum.device)
    first = starts[:, None] * (columns // UNITS_PER_FRAME)
    column = torch.arange(spectrum.shape[1], device=spectrum.device)[None] - first
    frame = column.div(columns, rounding_mode="floor").clamp(min=0, max=advance.shape[1] - 1)
    classes = ((advance.cumsum(1) - advance) % CLASSES).gather(1, frame)
    loudness = spectrum.square().mean((1, 2, 3), keepdim=True).sqrt()
    return spectrum + NOISE * loudness * noise[classes, column % columns]


def source_codes(advance: Tensor, voice: int | Tensor, first: int | Tensor = 0) -> Tensor:
    """Code 1 of each frame [frames]: voice, pitch and phase class.

    voice and first may differ from frame to frame; first is the frame at which the utterance begins.
    """
    before = advance.cumsum(0) - advance
    start = (before - before[first]) % CLASSES
    return (voice * RANGE + advance - torch.tensor(LOWEST)[voice]) * CLASSES + start


def source_table() -> Tensor:
    """Pitch and voice of each code, [SOURCE_CODES, 2]."""
    code = torch.arange(SOURCE_CODES)
    voice = code // (RANGE * CLASSES)
    advance = code // CLASSES % RANGE + torch.tensor(LOWEST)[voice]
    return torch.stack([advance / 40 - 1.5, 2.0 * voice - 1], 1)


def _filled(values: Tensor, known: Tensor, otherwise: Tensor) -> Tensor:
    """Values [B,N] with unknown ones interpolated linearly between known ones."""
    position = torch.arange(values.shape[1], device=values.device)[None].expand_as(values)
    far = 10 * values.shape[1]
    left = torch.where(known, position, -far).cummax(1).values
    right = torch.where(known, position, far).flip(1).cummin(1).values.flip(1)
    has_left, has_right = left >= 0, right < far
    low = values.gather(1, torch.where(has_left, left, right.clamp(max=values.shape[1] - 1)))
    high = values.gather(1, torch.where(has_right, right, left.clamp(min=0)))
    share = ((position - left) / (right - left).clamp(min=1)).to(values.dtype)
    filled = torch.where(has_left & has_right, low + share * (high - low), torch.where(has_left, low, high))
    return torch.where(known.any(1, keepdim=True), filled, otherwise)
