# SPDX-License-Identifier: Apache-2.0
"""Pack phoneme strings as tokens and speech as codes into one file, the talker's training data.

    python -m training.pool --corpus DIR --codes DIR --tokenizer DIR --out pool.npz

An entry is one tokenization of one text with its frames. Some entries join utterances of one voice, for long texts.
Entries that were timed but not synthesised have only code 0.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.corpus import Phonemes
from training.layout import NUM_CODEBOOKS
from training.speech_data import HELD_OUT
from training.tokens import load_tokenizer

UNKNOWN = 0xFFFF  # codes 1 and up of texts that were only timed
DROPOUT = 0.1  # BPE dropout, in all but the first tokenization of a text
NUM_TOKENIZATIONS = 3
JOINED = 0.35  # number of joined entries relative to synthesised ones
MAX_JOINED_FRAMES = 150  # frames
TOKENIZER_BATCH = 20_000
SPOKEN_FILE, TIMED_FILE = "codes.npz", "timed.npz"


@dataclass(frozen=True, slots=True)
class Pool:
    """Entries as spans of flat arrays; a text may have several entries."""

    tokens: np.ndarray
    codes: np.ndarray  # [frames, NUM_CODEBOOKS]
    word_counts: np.ndarray  # [frames]: training count of the word, for held-out speech; -1 elsewhere
    first_token: np.ndarray
    token_count: np.ndarray
    first_frame: np.ndarray
    frame_count: np.ndarray
    speaker: np.ndarray
    text: np.ndarray  # index of the text; -1 for joined texts
    spoken: np.ndarray  # has all codes
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
    codes: np.ndarray
    speaker: int
    index: int
    spoken: bool
    held_out: bool
    word_counts: np.ndarray | None = None


class Packing:
    """Collect utterances; codes are stored once for all tokenizations of a text."""

    def __init__(self, tokenizers: Sequence[object]) -> None:
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
                np.array([one.spoken for one in utterances]),
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
            for first in range(0, len(chosen), TOKENIZER_BATCH):
                texts = [utterances[position].text for position in chosen[first : first + TOKENIZER_BATCH]]
                found = tokenizer.encode_batch(texts, add_special_tokens=False)  # type: ignore[attr-defined]
                ids = [each.ids for each in found]
                tokens.append(np.fromiter(itertools.chain.from_iterable(ids), np.int16))
                token_counts += map(len, ids)
        columns = of_each[:, np.concatenate(entries)]
        lengths = np.array(token_counts, np.int32)
        unknown = [
            one.word_counts if one.word_counts is not None else np.full(count, -1, np.int32)
            for one, count in zip(utterances, counts, strict=True)
        ]
        return Pool(
            np.concatenate(tokens),
            np.concatenate([one.codes for one in utterances]),
            np.concatenate(unknown),
            (np.cumsum(lengths) - lengths).astype(np.int32),
            lengths,
            *columns[:4].astype(np.int32),
            *columns[4:].astype(bool),
        )


def pack(corpus: Path, codes: Path, tokenizer: Path, seed: int = 1) -> Pool:
    """The pool of a corpus folder and a folder of codes."""
    phonemes = Phonemes(corpus)
    texts = [phonemes.text(index) for index in range(len(phonemes))]
    voices = phonemes.voices
    tokenizers = [load_tokenizer(tokenizer, dropout) for dropout in (None, *[DROPOUT] * (NUM_TOKENIZATIONS - 1))]
    packing = Packing(tokenizers)
    with np.load(codes / SPOKEN_FILE) as arrays:
        spoken = _utterances(arrays["texts"], arrays["frames"], arrays["codes"])
        rarity = dict(_utterances(arrays["texts"], arrays["frames"], arrays["word_counts"]))
    with np.load(codes / TIMED_FILE) as arrays:
        timed_codes = np.full((len(arrays["codes"]), NUM_CODEBOOKS), UNKNOWN, np.uint16)
        timed_codes[:, 0] = arrays["codes"]
        timed = _utterances(arrays["texts"], arrays["frames"], timed_codes)
    for index, frames in spoken:
        held_out = index % HELD_OUT == 0
        counts = rarity[index] if held_out else None
        packing.add(Utterance(texts[index], frames, voices[index], index, True, held_out, counts))
    for index, frames in timed:
        packing.add(Utterance(texts[index], frames, voices[index], index, False, index % HELD_OUT == 0))
    pick = np.random.default_rng(seed)
    training = [entry for entry in spoken if entry[0] % HELD_OUT]
    by_voice = [[entry for entry in training if voices[entry[0]] == voice] for voice in (0, 1)]
    for _ in range(int(JOINED * len(training))):
        voice = int(pick.integers(2))
        chosen = [by_voice[voice][i] for i in pick.integers(0, len(by_voice[voice]), int(pick.integers(2, 5)))]
        while sum(len(frames) for _, frames in chosen) > MAX_JOINED_FRAMES and len(chosen) > 1:
            chosen.pop()
        text = " ".join(texts[index] for index, _ in chosen)
        packing.add(Utterance(text, np.concatenate([frames for _, frames in chosen]), voice, -1, True, False))
    return packing.pool()


def _utterances(texts: np.ndarray, frames: np.ndarray, codes: np.ndarray) -> list[tuple[int, np.ndarray]]:
    ends = np.cumsum(frames, dtype=np.int64)
    return [(int(text), codes[end - count : end]) for text, count, end in zip(texts, frames, ends, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "codes", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    pool = pack(arguments.corpus, arguments.codes, arguments.tokenizer)
    pool.save(arguments.out)
    spoken = pool.frame_count[pool.spoken]
    print(f"{len(pool.speaker)} entries, {len(spoken)} spoken, {pool.frame_count.max()} frames at most")  # noqa: T201


if __name__ == "__main__":
    main()
