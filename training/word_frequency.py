# SPDX-License-Identifier: Apache-2.0
"""Training counts of the word of each frame; words are identified by their phonemes."""

from collections import Counter

import numpy as np

from training.corpus import Phonemes, TimedUtterance
from training.encoder import SHIFT
from training.units import UNITS_PER_FRAME

SPACE = 16  # of the teacher's vocabulary
MARKS = range(1, SPACE)  # full stops, commas, quotes
BOUNDS = (5, 20, 100)  # lower bounds of the frequency classes


def word_counts(phonemes: Phonemes, training: np.ndarray) -> Counter[bytes]:
    """Counts of the words of the training texts, by phonemes."""
    return Counter(word for index in training for word in spoken(phonemes[index]).split(bytes([SPACE])))


def spoken(ids: np.ndarray) -> bytes:
    return ids.tobytes().translate(None, bytes(MARKS))


def frame_counts(ids: np.ndarray, timed: TimedUtterance, counts: Counter[bytes]) -> np.ndarray:
    """[frames]: count of the word in the middle of each frame, -1 where there is none."""
    word = np.cumsum(ids == SPACE)
    words = spoken(ids).split(bytes([SPACE]))
    known = np.array([counts[words[position]] for position in word])
    known[np.isin(ids, [SPACE, *MARKS])] = -1
    of_unit = np.repeat(np.concatenate([[-1], known, [-1]]), timed.durations)
    middle = timed.span.start + np.arange(timed.span.frames) * UNITS_PER_FRAME + UNITS_PER_FRAME // 2 + SHIFT
    return np.where(middle < len(of_unit), of_unit[middle.clip(max=len(of_unit) - 1)], -1).astype(np.int32)


def classes(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of frames by frequency class, from rare to frequent."""
    edges = (0, *BOUNDS, 2**31)
    names = [f"below_{BOUNDS[0]}", *[f"from_{bound}" for bound in BOUNDS]]
    return {name: (counts >= low) & (counts < high) for name, low, high in zip(names, edges, edges[1:], strict=False)}
