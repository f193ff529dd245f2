"""How often the word that a frame says occurs in the training texts, words being what the teacher pronounces."""

from collections import Counter

import numpy as np

from training.corpus import Phonemes, Timed
from training.encoder import SHIFT
from training.units import UNITS_PER_FRAME

SPACE = 16  # of the teacher's vocabulary
MARKS = range(1, SPACE)  # full stops, commas, quotes
BOUNDS = (5, 20, 100)  # of the classes that are told apart


def word_counts(phonemes: Phonemes, training: np.ndarray) -> Counter[bytes]:
    """Words of the texts trained on, by their phonemes."""
    return Counter(word for index in training for word in spoken(phonemes[index]).split(bytes([SPACE])))


def spoken(ids: np.ndarray) -> bytes:
    return ids.tobytes().translate(None, bytes(MARKS))


def frame_counts(ids: np.ndarray, timed: Timed, counts: Counter[bytes]) -> np.ndarray:
    """[frames]: how often the word in a frame's middle occurs, -1 where there is none."""
    word = np.cumsum(ids == SPACE)
    words = spoken(ids).split(bytes([SPACE]))
    known = np.array([counts[words[place]] for place in word])
    known[np.isin(ids, [SPACE, *MARKS])] = -1
    of_unit = np.repeat(np.concatenate([[-1], known, [-1]]), timed.durations)
    middle = timed.span.start + np.arange(timed.span.frames) * UNITS_PER_FRAME + UNITS_PER_FRAME // 2 + SHIFT
    return np.where(middle < len(of_unit), of_unit[middle.clip(max=len(of_unit) - 1)], -1).astype(np.int32)


def classes(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Which frames belong to words that are rare, …, frequent."""
    edges = (0, *BOUNDS, 2**31)
    names = [f"below_{BOUNDS[0]}", *[f"from_{bound}" for bound in BOUNDS]]
    return {name: (counts >= low) & (counts < high) for name, low, high in zip(names, edges, edges[1:], strict=False)}
