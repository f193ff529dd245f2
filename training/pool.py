"""What the talker learns from: texts as tokens beside speech as codes, packed into one file.

    python -m training.pool --corpus DIR --codes DIR --tokenizer DIR --out pool.npz

An entry is one cut of one text into tokens, with the frames that say it. Some entries join utterances of one voice, so
that long texts are heard too. Entries that were timed but not spoken have code 0 alone.
"""

import argparse
import itertools
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
CUT_TOGETHER = 20_000
SPOKEN_FILE, TIMED_FILE = "codes.npz", "timed.npz"


@dataclass(frozen=True, slots=True)
class Pool:
    """Entries as spans of flat arrays."""

    tokens: np.ndarray
    codes: np.ndarray  # [frames, BOOKS]
    word_counts: np.ndarray  # [frames]: of held-out speech, how often its word is trained on; -1 elsewhere
    first_token: np.ndarray
    token_count: np.ndarray
    first_frame: np.ndarray
    frame_count: np.ndarray
    speaker: np.ndarray
    text: np.ndarray  # of which the entry is a cut; -1 where texts were joined
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
    """Collects entries; codes of an utterance are stored once, whatever the number of its cuts."""

    def __init__(self, cutters: Sequence[object]) -> None:
        self._cutters = cutters
        self._utterances: list[Utterance] = []

    def add(self, utterance: Utterance) -> None:
        self._utterances.append(utterance)

    def pool(self) -> Pool:
        said = self._utterances
        counts = np.array([len(one.codes) for one in said])
        of_each = np.stack(
            [
                np.cumsum(counts) - counts,
                counts,
                np.array([one.speaker for one in said]),
                np.array([one.index for one in said]),
                np.array([one.spoken for one in said]),
                np.array([one.held_out for one in said]),
            ]
        )
        tokens: list[np.ndarray] = []
        token_counts: list[int] = []
        entries: list[np.ndarray] = []
        for number, cutter in enumerate(self._cutters):
            cut = np.nonzero(of_each[-1] == 0)[0] if number else np.arange(len(said))  # held out: as it is served
            entries.append(cut)
            for first in range(0, len(cut), CUT_TOGETHER):
                texts = [said[place].text for place in cut[first : first + CUT_TOGETHER]]
                found = cutter.encode_batch(texts, add_special_tokens=False)  # type: ignore[attr-defined]
                ids = [each.ids for each in found]
                tokens.append(np.fromiter(itertools.chain.from_iterable(ids), np.int16))
                token_counts += map(len, ids)
        columns = of_each[:, np.concatenate(entries)]
        lengths = np.array(token_counts, np.int32)
        unknown = [
            one.word_counts if one.word_counts is not None else np.full(count, -1, np.int32)
            for one, count in zip(said, counts, strict=True)
        ]
        return Pool(
            np.concatenate(tokens),
            np.concatenate([one.codes for one in said]),
            np.concatenate(unknown),
            (np.cumsum(lengths) - lengths).astype(np.int32),
            lengths,
            *columns[:4].astype(np.int32),
            *columns[4:].astype(bool),
        )


def pack(corpus: Path, codes: Path, tokenizer: Path, seed: int = 1) -> Pool:
    """The corpus in texts and phonemes, and in the codes that the codec left in a folder."""
    texts = (corpus / "texts.txt").read_text().splitlines()
    phonemes = Phonemes(corpus)
    voices = phonemes.voices
    cutters = [load_tokenizer(tokenizer, dropout) for dropout in (None, *[DROPOUT] * (CUTS - 1))]
    packing = Packing(cutters)
    with np.load(codes / SPOKEN_FILE) as arrays:
        spoken = _utterances(arrays["texts"], arrays["frames"], arrays["codes"])
        rarity = dict(_utterances(arrays["texts"], arrays["frames"], arrays["word_counts"]))
    with np.load(codes / TIMED_FILE) as arrays:
        timed_codes = np.full((len(arrays["codes"]), BOOKS), UNKNOWN, np.uint16)
        timed_codes[:, 0] = arrays["codes"]
        timed = _utterances(arrays["texts"], arrays["frames"], timed_codes)
    for index, said in spoken:
        held_out = index % HELD_OUT == 0
        counts = rarity[index] if held_out else None
        packing.add(Utterance(texts[index], said, voices[index], index, True, held_out, counts))
    for index, said in timed:
        packing.add(Utterance(texts[index], said, voices[index], index, False, index % HELD_OUT == 0))
    pick = np.random.default_rng(seed)
    training = [entry for entry in spoken if entry[0] % HELD_OUT]
    by_voice = [[entry for entry in training if voices[entry[0]] == voice] for voice in (0, 1)]
    for _ in range(int(JOINED * len(training))):
        voice = int(pick.integers(2))
        chosen = [by_voice[voice][i] for i in pick.integers(0, len(by_voice[voice]), int(pick.integers(2, 5)))]
        while sum(len(said) for _, said in chosen) > LONGEST_JOINED and len(chosen) > 1:
            chosen.pop()
        text = " ".join(texts[index] for index, _ in chosen)
        packing.add(Utterance(text, np.concatenate([said for _, said in chosen]), voice, -1, True, False))
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
