"""What the talker learns from: texts as tokens beside speech as codes, packed into one file.

    python -m training.pool --corpus DIR --codes codes.npz --tokenizer DIR --out pool.npz

An entry is one cut of one text into tokens, with the frames that say it. Some entries join utterances of one voice, so
that long texts are heard too. Entries that were timed but not spoken have code 0 alone.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.corpus import Phonemes
from training.layout import BOOKS
from training.sound import HELD_OUT
from training.tokens import load_tokenizer

UNKNOWN = 0xFFFF  # codes 1 and up of what was not spoken
DROPOUT = 0.1  # of merges, in all but an entry's first cut
CUTS = 3
JOINED = 0.35  # as many joined entries as this part of the spoken ones
LONGEST_JOINED = 150  # frames


@dataclass(frozen=True, slots=True)
class Pool:
    """Entries as spans of two flat arrays."""

    tokens: np.ndarray
    codes: np.ndarray  # [frames, BOOKS]
    first_token: np.ndarray
    token_count: np.ndarray
    first_frame: np.ndarray
    frame_count: np.ndarray
    speaker: np.ndarray
    spoken: np.ndarray  # has all codes
    held_out: np.ndarray

    def save(self, path: Path) -> None:
        np.savez_compressed(path, **{name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def load(path: Path) -> "Pool":
        with np.load(path) as arrays:
            return Pool(**{name: arrays[name] for name in Pool.__slots__})


class Packing:
    """Collects entries; codes of an utterance are stored once, whatever the number of its cuts."""

    def __init__(self, cutters: Sequence[object]) -> None:
        self._cutters = cutters
        self._tokens: list[int] = []
        self._codes: list[np.ndarray] = []
        self._frames = 0
        self._entries: list[tuple[int, int, int, int, int, bool, bool]] = []

    def add(self, text: str, codes: np.ndarray, speaker: int, spoken: bool, held_out: bool) -> None:
        for cutter in self._cutters[:1] if held_out else self._cutters:
            ids = cutter.encode(text, add_special_tokens=False).ids  # type: ignore[attr-defined]
            entry = (len(self._tokens), len(ids), self._frames, len(codes), speaker, spoken, held_out)
            self._entries.append(entry)
            self._tokens += ids
        self._codes.append(codes)
        self._frames += len(codes)

    def pool(self) -> Pool:
        columns = list(zip(*self._entries, strict=True))
        numbers = [np.array(column, np.int32) for column in columns[:5]]
        flags = [np.array(column, bool) for column in columns[5:]]
        return Pool(np.array(self._tokens, np.int16), np.concatenate(self._codes), *numbers, *flags)


def pack(corpus: Path, codes_file: Path, tokenizer: Path, seed: int = 1) -> Pool:
    texts = (corpus / "texts.txt").read_text().splitlines()
    voices = Phonemes(corpus).voices
    cutters = [load_tokenizer(tokenizer, dropout) for dropout in (None, *[DROPOUT] * (CUTS - 1))]
    packing = Packing(cutters)
    with np.load(codes_file) as arrays:
        spoken = _utterances(arrays["texts"], arrays["frames"], arrays["codes"])
        firsts = arrays["timed_codes"]
        timed_codes = np.full((len(firsts), BOOKS), UNKNOWN, np.uint16)
        timed_codes[:, 0] = firsts
        timed = _utterances(arrays["timed_texts"], arrays["timed_frames"], timed_codes)
    for index, codes in spoken:
        packing.add(texts[index], codes, voices[index], True, index % HELD_OUT == 0)
    for index, codes in timed:
        packing.add(texts[index], codes, voices[index], False, index % HELD_OUT == 0)
    pick = np.random.default_rng(seed)
    training = [entry for entry in spoken if entry[0] % HELD_OUT]
    by_voice = [[entry for entry in training if voices[entry[0]] == voice] for voice in (0, 1)]
    for _ in range(int(JOINED * len(training))):
        voice = int(pick.integers(2))
        chosen = [by_voice[voice][i] for i in pick.integers(0, len(by_voice[voice]), int(pick.integers(2, 5)))]
        while sum(len(codes) for _, codes in chosen) > LONGEST_JOINED and len(chosen) > 1:
            chosen.pop()
        text = " ".join(texts[index] for index, _ in chosen)
        packing.add(text, np.concatenate([codes for _, codes in chosen]), voice, True, False)
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
