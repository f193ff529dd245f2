# SPDX-License-Identifier: Apache-2.0
"""Pack phoneme strings as tokens and speech as codes into one file, the talker's training data.

    python -m training.pool --corpus DIR --codes DIR --tokenizer DIR --out pool.npz

An entry is one tokenization of one text with its frames. Some entries join utterances of one voice, for long texts.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from training.corpus import Phonemes
from training.source import CLASSES, LOWEST, RANGE, source_codes
from training.speech_data import HELD_OUT
from training.tokens import load_tokenizer, token_sizes

DROPOUT = 0.1  # BPE dropout, in all but the first tokenization of a text
NUM_TOKENIZATIONS = 3
JOINED = 0.15  # number of joined entries relative to training texts; a quarter of the rows
MAX_JOINED_FRAMES = 150  # frames
TOKENIZER_BATCH = 20_000
CODES_FILE = "codes.npz"


@dataclass(frozen=True, slots=True)
class Pool:
    """Entries as spans of flat arrays; a text may have several entries."""

    tokens: np.ndarray
    token_ends: np.ndarray  # [tokens]: bytes of the text, in UTF-8, up to the end of the token
    codes: np.ndarray  # [frames, NUM_CODEBOOKS]
    positions: np.ndarray  # [frames]: byte of the text, in UTF-8, that completes the frame's phoneme
    first_token: np.ndarray
    token_count: np.ndarray
    first_frame: np.ndarray
    frame_count: np.ndarray
    speaker: np.ndarray
    text: np.ndarray  # index of the text; -1 for joined texts
    held_out: np.ndarray

    def save(self, path: Path) -> None:
        np.savez(path, **{name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def load(path: Path) -> "Pool":
        with np.load(path) as arrays:
            return Pool(**{name: arrays[name] for name in Pool.__slots__})


@dataclass(frozen=True, slots=True)
class Utterance:
    text: str
    codes: np.ndarray  # [frames, NUM_CODEBOOKS]
    phonemes: np.ndarray  # [frames]: index of each frame's phoneme in the text
    speaker: int
    index: int
    held_out: bool


class Packing:
    """Collect utterances; codes are stored once for all tokenizations of a text."""

    def __init__(self, tokenizers: Sequence[Tokenizer]) -> None:
        self._tokenizers = tokenizers
        self._utterances: list[Utterance] = []

    def add(self, utterance: Utterance) -> None:
        self._utterances.append(utterance)

    def pool(self) -> Pool:
        utterances = self._utterances
        counts = np.array([len(one.codes) for one in utterances])
        of_each = np.stack(
            [
                np.cumsum(counts) - counts,
                counts,
                np.array([one.speaker for one in utterances]),
                np.array([one.index for one in utterances]),
                np.array([one.held_out for one in utterances]),
            ]
        )
        tokens: list[np.ndarray] = []
        token_counts: list[int] = []
        entries: list[np.ndarray] = []
        for number, tokenizer in enumerate(self._tokenizers):
            # Held-out texts are tokenized only as served.
            chosen = np.nonzero(of_each[-1] == 0)[0] if number else np.arange(len(utterances))
            entries.append(chosen)
            for start in range(0, len(chosen), TOKENIZER_BATCH):
                texts = [utterances[position].text for position in chosen[start : start + TOKENIZER_BATCH]]
                ids = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
                tokens.append(np.fromiter(itertools.chain.from_iterable(ids), np.int16))
                token_counts += map(len, ids)
        first, count, speaker, text, held_out = of_each[:, np.concatenate(entries)].astype(np.int32)
        lengths = np.array(token_counts, np.int32)
        packed = np.concatenate(tokens)
        return Pool(
            packed,
            _cumulated(token_sizes(self._tokenizers[0])[packed], lengths).astype(np.int16),
            np.concatenate([one.codes for one in utterances]),
            np.concatenate([completing_bytes(one.text)[one.phonemes] for one in utterances]).astype(np.int16),
            (np.cumsum(lengths) - lengths).astype(np.int32),
            lengths,
            first,
            count,
            speaker,
            text,
            held_out.astype(bool),
        )


def completing_bytes(text: str) -> np.ndarray:
    """The last byte of each character in UTF-8."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return np.cumsum(sizes) - 1


def _cumulated(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Cumulative sums within consecutive spans of these lengths."""
    total = np.cumsum(values, dtype=np.int64)
    before = np.concatenate([[0], total])[np.cumsum(lengths) - lengths]
    return total - np.repeat(before, lengths)


def pack(corpus: Path, codes: Path, tokenizer: Path, seed: int = 1) -> Pool:
    """The pool of a corpus folder and a folder of codes."""
    phonemes = Phonemes(corpus)
    voices = phonemes.voices
    tokenizers = [load_tokenizer(tokenizer, dropout) for dropout in (None, *[DROPOUT] * (NUM_TOKENIZATIONS - 1))]
    packing = Packing(tokenizers)
    training: list[list[Utterance]] = [[] for _ in LOWEST]  # by voice
    with np.load(codes / CODES_FILE) as arrays:
        texts, frames, spoken, named = (arrays[name] for name in ("texts", "frames", "codes", "phonemes"))
    ends = np.cumsum(frames, dtype=np.int64)
    for index, count, end in zip(texts.tolist(), frames, ends, strict=True):
        span, voice = slice(end - count, end), int(voices[index])
        held_out = index % HELD_OUT == 0
        one = Utterance(phonemes.text(index), spoken[span], named[span], voice, index, held_out)
        packing.add(one)
        if not held_out:
            training[voice].append(one)
    pick = np.random.default_rng(seed)
    for voice, some in enumerate(training):
        for _ in range(int(JOINED * len(some))):
            chosen = [some[i] for i in pick.integers(0, len(some), int(pick.integers(2, 5)))]
            while sum(len(one.codes) for one in chosen) > MAX_JOINED_FRAMES and len(chosen) > 1:
                chosen.pop()
            packing.add(joined(chosen, voice))
    return packing.pool()


def joined(utterances: Sequence[Utterance], voice: int) -> Utterance:
    """Utterances of one voice after each other; the phase of code 1 continues from one to the next."""
    codes = np.concatenate([one.codes for one in utterances])
    advance = torch.from_numpy(codes[:, 1].astype(np.int64)) // CLASSES % RANGE + LOWEST[voice]
    codes[:, 1] = source_codes(advance, voice).numpy()
    starts = np.cumsum([0, *(len(one.text) + 1 for one in utterances)])
    phonemes = np.concatenate([one.phonemes + start for one, start in zip(utterances, starts, strict=False)])
    return Utterance(" ".join(one.text for one in utterances), codes, phonemes, voice, -1, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "codes", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    pool = pack(arguments.corpus, arguments.codes, arguments.tokenizer)
    pool.save(arguments.out)
    print(f"{len(pool.speaker)} entries, {pool.frame_count.max()} frames at most")  # noqa: T201


if __name__ == "__main__":
    main()
