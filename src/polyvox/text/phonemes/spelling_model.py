# SPDX-License-Identifier: Apache-2.0
"""Pronunciation of words that the lexicon does not have, from their spelling, by a small trained network.

Two bidirectional GRU layers read the letters; each letter has SLOTS outputs, which are phonemes or blanks (CTC).
Training: training/g2p.py.
"""

from functools import cache
from pathlib import Path

import numpy as np

from polyvox.text.phonemes.alphabet import CONSONANTS, PRIMARY, SECONDARY, VOWELS

MODEL_FILE = "spelling_model.npz"
LETTERS = "abcdefghijklmnopqrstuvwxyz'"
SLOTS = 2
NUM_LAYERS = 2
MAX_LETTERS = 40
# A vowel and its stress are one label. Label 0 is the blank.
LABELS = ("", *sorted(CONSONANTS), *(mark + vowel for mark in ("", PRIMARY, SECONDARY) for vowel in sorted(VOWELS)))

Array = np.ndarray


class SpellingModel:
    """Letters to phonemes. The result depends on the letters only."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = {name: value.astype(np.float32) for name, value in weights.items()}

    def pronounce(self, word: str) -> str:
        """The phonemes of a word; letters outside a to z and the apostrophe are ignored."""
        ids = [LETTERS.index(letter) for letter in word.lower() if letter in LETTERS][:MAX_LETTERS]
        if not ids:
            return ""
        hidden = self._weights["embedding"][ids]
        for layer in range(NUM_LAYERS):
            hidden = np.concatenate(
                [self._gru(hidden, f"l{layer}"), self._gru(hidden[::-1], f"l{layer}_reverse")[::-1]], axis=1
            )
        scores = hidden @ self._weights["output.weight"].T + self._weights["output.bias"]
        return join_labels(scores.reshape(len(ids) * SLOTS, len(LABELS)).argmax(1).tolist())

    def _gru(self, inputs: Array, name: str) -> Array:
        """One direction of a GRU layer with torch's gate order: reset, update, new."""
        weights = self._weights
        recurrent, bias = weights[f"weight_hh_{name}"].T, weights[f"bias_hh_{name}"]
        gates = inputs @ weights[f"weight_ih_{name}"].T + weights[f"bias_ih_{name}"]
        size = len(recurrent)
        state = np.zeros(size, np.float32)
        states = np.empty((len(inputs), size), np.float32)
        for index, gate in enumerate(gates):
            own = state @ recurrent + bias
            opened = 1 / (1 + np.exp(-(gate[: 2 * size] + own[: 2 * size])))
            new = np.tanh(gate[2 * size :] + opened[:size] * own[2 * size :])
            state = new + opened[size:] * (state - new)
            states[index] = state
        return states


def join_labels(labels: list[int]) -> str:
    """Phonemes of a CTC output: repeated labels count once, blanks are dropped. The word has one main stress."""
    spoken = "".join(
        LABELS[label] for index, label in enumerate(labels) if label and (not index or labels[index - 1] != label)
    )
    head, mark, tail = spoken.partition(PRIMARY)
    if mark:
        return head + mark + tail.replace(PRIMARY, SECONDARY)
    if SECONDARY in spoken:
        return spoken.replace(SECONDARY, PRIMARY, 1)
    first = next((index for index, symbol in enumerate(spoken) if symbol in VOWELS), None)
    return spoken if first is None else spoken[:first] + PRIMARY + spoken[first:]


@cache
def load_spelling_model() -> SpellingModel:
    with np.load(Path(__file__).with_name(MODEL_FILE)) as arrays:
        return SpellingModel(dict(arrays))
