# SPDX-License-Identifier: Apache-2.0
"""Train the model that pronounces words which the lexicon does not have. CPU.

    python -m training.g2p train --minutes 30
    python -m training.g2p check

Words are held out by their first letters, so that no inflection of a held-out word is trained on.
"""

import argparse
import itertools
import math
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.text.phonemes import spelling_model
from polyvox.text.phonemes.alphabet import PRIMARY, SECONDARY, without_stress
from polyvox.text.phonemes.lexicon import load_lexicon_entries
from polyvox.text.phonemes.spelling_model import LABELS, LETTERS, MODEL_FILE, NUM_LAYERS, SLOTS, SpellingModel

EMBEDDING, HIDDEN = 48, 128
BATCH = 384
LEARNING_RATE, WARM_UP = 3e-3, 300
HELD_OUT = 40  # one family of words in 40
FAMILY = 5  # letters that decide the family
CHECK_EVERY = 120.0  # seconds
CHECKED = 1000


class SpellingNetwork(nn.Module):
    """The network of spelling_model.py for batches."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), EMBEDDING)
        self.gru = nn.GRU(EMBEDDING, HIDDEN, NUM_LAYERS, batch_first=True, bidirectional=True, dropout=0.1)
        self.output = nn.Linear(2 * HIDDEN, SLOTS * len(LABELS))

    def forward(self, letters: Tensor) -> Tensor:
        """Log-probabilities [batch, letters × SLOTS, labels] of words of one length."""
        hidden = self.gru(F.dropout(self.embedding(letters), 0.05, self.training))[0]
        return self.output(hidden).unflatten(-1, (SLOTS, len(LABELS))).flatten(1, 2).log_softmax(-1)

    def arrays(self) -> dict[str, np.ndarray]:
        named = {name.removeprefix("gru."): value.detach().numpy() for name, value in self.state_dict().items()}
        named["embedding"] = named.pop("embedding.weight")
        return {name: value.astype(np.float16) for name, value in named.items()}

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        names = {name: name.removeprefix("gru.").replace("embedding.weight", "embedding") for name in self.state_dict()}
        self.load_state_dict({name: torch.from_numpy(arrays[names[name]].astype(np.float32)) for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "check"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--start", type=Path, help="continue from this model")
    parser.add_argument("--model", type=Path, default=Path(spelling_model.__file__).with_name(MODEL_FILE))
    arguments = parser.parse_args()
    training, held_out = split(words())
    if arguments.command == "train":
        train(training, held_out, arguments.minutes, arguments.model, arguments.start)
    with np.load(arguments.model) as arrays:
        report(SpellingModel(dict(arrays)), held_out)


def words() -> list[tuple[str, list[int]]]:
    """Words in small letters and their labels."""
    labels = {label: index for index, label in enumerate(LABELS)}
    found: dict[str, list[int]] = {}
    for word, entry in load_lexicon_entries().items():
        if (word.isupper() and len(word) > 1) or set(word.lower()) - set(LETTERS) or len(word) < 2:
            continue
        ids = [labels[label] for label in to_labels(entry.split(" ")[0])]
        if needed_slots(ids) <= SLOTS * len(word):
            found.setdefault(word.lower(), ids)
    return sorted(found.items())


def to_labels(phonemes: str) -> list[str]:
    """The phonemes with each stress mark joined to its vowel."""
    made: list[str] = []
    for symbol in phonemes:
        if made and made[-1] in (PRIMARY, SECONDARY):
            made[-1] += symbol
        else:
            made.append(symbol)
    return made


def needed_slots(labels: list[int]) -> int:
    """CTC needs a blank between equal labels."""
    return len(labels) + sum(a == b for a, b in itertools.pairwise(labels))


def split(pairs: list[tuple[str, list[int]]]) -> tuple[list[tuple[str, list[int]]], list[tuple[str, list[int]]]]:
    def is_held_out(word: str) -> bool:
        return zlib.crc32(word[:FAMILY].encode()) % HELD_OUT == 0

    return [p for p in pairs if not is_held_out(p[0])], [p for p in pairs if is_held_out(p[0])]


def batches(pairs: list[tuple[str, list[int]]], pick: random.Random) -> Iterator[list[tuple[str, list[int]]]]:
    """One epoch: batches of words of one length, in random order."""
    by_length: dict[int, list[tuple[str, list[int]]]] = {}
    for pair in pairs:
        by_length.setdefault(len(pair[0]), []).append(pair)
    made = []
    for group in by_length.values():
        pick.shuffle(group)
        made += [group[first : first + BATCH] for first in range(0, len(group), BATCH)]
    pick.shuffle(made)
    yield from made


def train(
    training: list[tuple[str, list[int]]],
    held_out: list[tuple[str, list[int]]],
    minutes: float,
    out: Path,
    start: Path | None = None,
) -> None:
    """Train within a time budget; the learning rate falls to zero at its end. The model is saved at every check."""
    torch.manual_seed(1)
    pick = random.Random(1)
    network = SpellingNetwork()
    if start is not None:
        with np.load(start) as arrays:
            network.load_arrays(dict(arrays))
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    began = checked = time.monotonic()
    steps = epoch = 0
    done = 0.0
    while done < 1:
        for batch in batches(training, pick):
            done = (time.monotonic() - began) / (60 * minutes)
            if done >= 1:
                break
            rate = LEARNING_RATE * min(1, (steps + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = _loss(network, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if time.monotonic() - checked > CHECK_EVERY:
                checked = time.monotonic()
                np.savez_compressed(out, **network.arrays())  # type: ignore[arg-type]
                _print(f"{done:.0%} epoch {epoch} step {steps} loss {loss.item():.3f}")
                report(SpellingModel(network.arrays()), held_out[:: max(1, len(held_out) // CHECKED)])
        epoch += 1
    np.savez_compressed(out, **network.arrays())  # type: ignore[arg-type]


def _loss(network: SpellingNetwork, batch: list[tuple[str, list[int]]]) -> Tensor:
    letters = torch.tensor([[LETTERS.index(letter) for letter in word] for word, _ in batch])
    lengths = torch.tensor([len(labels) for _, labels in batch])
    targets = torch.tensor([label for _, labels in batch for label in labels])
    network.train()
    scores = network(letters)
    input_lengths = torch.full((len(batch),), scores.shape[1])
    loss = F.ctc_loss(scores.transpose(0, 1), targets, input_lengths, lengths, reduction="sum")
    return loss / len(targets)


def report(model: SpellingModel, pairs: list[tuple[str, list[int]]]) -> None:
    """Print word and phoneme accuracy, with and without stress."""
    words_right = plain_right = errors = phonemes = 0
    began = time.perf_counter()
    for word, labels in pairs:
        right, got = "".join(LABELS[label] for label in labels), model.pronounce(word)
        words_right += got == right
        plain_right += without_stress(got) == without_stress(right)
        errors += Levenshtein.distance(without_stress(got), without_stress(right))
        phonemes += len(without_stress(right))
    milliseconds = 1000 * (time.perf_counter() - began) / len(pairs)
    _print(
        f"{len(pairs)} held-out words: right {words_right / len(pairs):.1%}, "
        f"without stress {plain_right / len(pairs):.1%}, "
        f"phoneme errors {errors / phonemes:.1%}, {milliseconds:.2f} ms a word"
    )


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
