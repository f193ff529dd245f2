# SPDX-License-Identifier: Apache-2.0
"""How letters sound and how long they last: a small network and tables, made by training/word_times.py."""

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyvox.alignment.features import FRAME_SECONDS, Features

LETTERS = "abcdefghijklmnopqrstuvwxyz"
GAP, PAUSE, LEAD, TAIL = " ", ",", "^", "$"  # between words, at punctuation, before the first and after the last word
TRAINED = LETTERS + GAP + PAUSE + LEAD + TAIL
OTHER_LETTER, SYLLABLE, DIGIT = "?", "_", "0"
# Characters of other scripts and digits sound like any letter. Mean seconds of each.
GENERIC_SECONDS = {OTHER_LETTER: 0.07, SYLLABLE: 0.19, DIGIT: 0.35}
SYMBOLS = TRAINED + "".join(GENERIC_SECONDS)
SILENT = GAP + PAUSE + TAIL  # may last long; silence before the first word is trimmed
CONTEXT = (-4, -2, -1, 0, 1)  # frames that the network sees
_OFFSETS = np.array(CONTEXT)
MAX_FRAMES = 18  # of a symbol in the table of durations
GENERIC_SPREAD = 0.45  # standard deviation of the logarithm of the durations
MODEL_FILE = Path(__file__).parent / "sound_model.npz"

_PAUSE_MARKS = frozenset(',.;:!?…—–()"“”«»，。、；：！？｡「」『』（）¿¡')
# Letters of other alphabets and the Latin letters that sound most alike.
_SOUNDS = dict(zip("абвгдеёжзийклмнопрстуфхцчшщыэюя", "abvgdeozziyklmnoprstufhscssyeua", strict=True)) | dict(
    zip("αβγδεζηθικλμνξοπρσςτυφχψωßæøœłđþð", "avgdezitiklmnxoprsstifhposaooldtd", strict=True)
)
_MUTE = frozenset("ъь")


def symbol_of(char: str) -> str | None:
    """The symbol of a character of spoken text; None if it has no sound of its own."""
    char = char.lower()[:1]
    if char in LETTERS:
        return char
    if char.isspace() or char in "-/_":
        return GAP
    if char in _PAUSE_MARKS:
        return PAUSE
    if char in _SOUNDS:
        return _SOUNDS[char]
    if char.isdecimal():
        return DIGIT
    if not char.isalpha() or char in _MUTE:
        return None
    base = unicodedata.normalize("NFD", char)[0]
    if base in LETTERS or base in _SOUNDS:
        return _SOUNDS.get(base, base)
    is_syllable = unicodedata.east_asian_width(char) in "WF"
    return SYLLABLE if is_syllable else OTHER_LETTER


def with_context(frames: Features) -> Features:
    """Each frame with those around it; the first and the last one are repeated."""
    positions = np.arange(len(frames))[:, None] + _OFFSETS
    return frames.take(positions, 0, mode="clip").reshape(len(frames), -1)


@dataclass(frozen=True, slots=True, eq=False)
class SoundModel:
    """Log-likelihoods of symbols. durations: log-probability of each number of frames, 0 to MAX_FRAMES."""

    mean: Features
    scale: Features
    layers: tuple[tuple[Features, Features], ...]  # weight and bias
    prior: Features  # log-probability of each trained symbol
    speech_prior: float  # of all letters together
    durations: NDArray[np.float32]  # [symbols, MAX_FRAMES + 1]
    mean_frames: NDArray[np.float64]  # of each symbol

    def scores(self, frames: Features) -> Features:
        """[frames, symbols]: log of the likelihood, less that of the best symbol. frames: from `with_context`."""
        hidden = (frames - self.mean) * self.scale
        for index, (weight, bias) in enumerate(self.layers):
            hidden = (np.maximum(hidden, 0.0) if index else hidden) @ weight + bias
        hidden -= hidden.max(1, keepdims=True)
        speech = np.log(np.exp(hidden[:, : len(LETTERS)]).sum(1, keepdims=True)) - self.speech_prior
        found = np.concatenate([hidden - self.prior, *[speech] * len(GENERIC_SECONDS)], 1)
        return np.asarray(found - found.max(1, keepdims=True), np.float32)


def generic_durations() -> NDArray[np.float32]:
    """Log-normal durations of the symbols that are not trained."""
    counts = np.arange(1, MAX_FRAMES + 1) * FRAME_SECONDS
    rows = []
    for seconds in GENERIC_SECONDS.values():
        weights = np.exp(-0.5 * (np.log(counts / seconds) / GENERIC_SPREAD) ** 2) + 1e-4
        rows.append(np.concatenate([[1e-3], weights / weights.sum()]))
    return np.log(np.array(rows)).astype(np.float32)


@cache
def load_sound_model() -> SoundModel:
    with np.load(MODEL_FILE) as file:
        arrays = {name: file[name].astype(np.float32) for name in file.files}
    layers = tuple((arrays[f"weight_{index}"], arrays[f"bias_{index}"]) for index in range(2))
    durations = np.concatenate([arrays["durations"], generic_durations()])
    prior = arrays["prior"]
    speech_prior = float(np.log(np.exp(prior.ravel()[: len(LETTERS)]).sum()))
    mean_frames = np.exp(durations) @ np.arange(MAX_FRAMES + 1)
    return SoundModel(arrays["mean"], arrays["scale"], layers, prior, speech_prior, durations, mean_frames)
