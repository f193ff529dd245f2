# SPDX-License-Identifier: Apache-2.0
"""A minimal teacher for tests: every phoneme is a tone, and its id determines its duration."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from training.corpus import STYLES, VOICES
from training.encoder import PHONEMES
from training.symbols import IDS, to_ids
from training.teacher import ENERGY, KNOWN, PITCH, ROWS, SPREAD, STYLE_AS_ROWS, TIMES, WAVEFORM
from training.units import TEACHER_UNIT

FULL_STOP = 4
LETTERS = 50  # the first phoneme that is a tone
ROWS_OF_STYLES = 128


def write_teacher(folder: Path) -> None:
    time = np.arange(TEACHER_UNIT) / 24_000
    tones = np.stack([0.3 * np.sin(2 * np.pi * (40 * phoneme) * time) for phoneme in range(PHONEMES)])
    tones[:LETTERS] = 0
    nodes: list[tuple[str, list[str], list[str], dict[str, Any]]] = [
        ("Gather", ["times", "input_ids"], ["time"], {}),
        ("Cast", ["time"], [TIMES], {"to": 7}),
        ("Gather", ["tones", "input_ids"], ["tone"], {}),
        ("Transpose", ["tone"], [KNOWN[0]], {"perm": [0, 2, 1]}),
        ("Gather", ["others", "input_ids"], ["other"], {}),
        ("Transpose", ["other"], [KNOWN[1]], {"perm": [0, 2, 1]}),
        ("Slice", ["style", "none", "one", "one"], ["loudness"], {}),
        ("Expand", ["loudness", "shape"], [STYLE_AS_ROWS], {}),
        ("Add", [SPREAD[0], SPREAD[1]], ["sum"], {}),
        ("Transpose", ["sum"], ["units"], {"perm": [0, 2, 1]}),
        ("Mul", ["units", STYLE_AS_ROWS], ["loud"], {}),
        ("Reshape", ["loud", ROWS], [WAVEFORM], {}),
        ("Transpose", [SPREAD[0]], ["first units"], {"perm": [0, 2, 1]}),
        ("Slice", ["first units", "none", "two", "two"], ["points"], {}),
        ("Mul", ["points", "hertz"], ["pitches"], {}),
        ("Reshape", ["pitches", ROWS], [PITCH], {}),
        ("Reshape", ["points", ROWS], [ENERGY], {}),
    ]
    folder.mkdir(parents=True)
    (folder / "graph.json").write_text(json.dumps(nodes))
    numbers = np.arange(PHONEMES)
    times = np.where(numbers == 0, 8, np.where(numbers < LETTERS, 1, 2 + numbers % 4))
    constants = {
        "none": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "hertz": np.array(1e4, np.float32),
        "shape": np.array([1, 1, 1]),
        ROWS: np.array([1, -1]),
    }
    np.savez(folder / "weights-0.npz", times=times, tones=tones.astype(np.float32), **constants)  # type: ignore[arg-type]
    np.savez(folder / "weights-1.npz", others=np.zeros((PHONEMES, TEACHER_UNIT), np.float32))
    for voice, name in enumerate(VOICES):
        np.full((ROWS_OF_STYLES, STYLES), 1.0 - 0.5 * voice, np.float32).tofile(folder / f"{name}.bin")


def write_corpus(folder: Path, count: int) -> None:
    """Texts of invented words."""
    pick = np.random.default_rng(0)
    symbols = [symbol for symbol, number in IDS.items() if number >= LETTERS][:20]
    words = ["".join(pick.choice(symbols, pick.integers(2, 6))) for _ in range(40)]
    texts = [" ".join(pick.choice(words, pick.integers(4, 9))) + "." for _ in range(count)]
    ids = [to_ids(text) for text in texts]
    folder.mkdir(parents=True)
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    np.savez(
        folder / "phonemes.npz",
        ids=np.concatenate(ids).astype(np.uint8),
        counts=np.array([len(each) for each in ids], np.int16),
        voices=pick.integers(0, 2, count).astype(np.uint8),
    )
