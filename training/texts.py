# SPDX-License-Identifier: Apache-2.0
"""Training texts: WordNet's examples and definitions, word lists, and everyday English from templates."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from polyvox.text import split_sentences
from training.carriers import carriers, frequent_words
from training.everyday import Everyday
from training.sentences import DEVELOPMENT, PROSE, TEST

PARTS = ("noun", "verb", "adj", "adv")
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ,;:'!?.-]*")
MAX_CHARACTERS = 130  # about 9 s
# Percentage of each kind, without carriers of frequent words.
MIX = {
    "example": 32, "two examples": 9, "clauses": 8, "definition": 11, "words": 8, "everyday": 22, "paragraph": 7,
    "phrase": 3,
}  # fmt: skip
CARRIED = 0.3  # carriers of frequent words, relative to the other sentences
JOINTS = (": ", ": ", "; ", " — ", "… ", ", and ", ", but ")  # between two clauses


def sentences(wordnet: Path, count: int, seed: int = 1) -> list[str]:
    """`count` training sentences plus carriers of frequent words, in random order.

    Sentences are unique except short phrases; none is in an evaluation list.
    """
    pick = random.Random(seed)
    examples, definitions = _quotes(wordnet)
    words = frequent_words(wordnet)
    everyday = Everyday(seed)
    pick.shuffle(examples)
    pick.shuffle(definitions)
    example, definition = _forever(examples), _forever(definitions)
    made: list[str] = []
    seen = {key(text) for text in (*TEST, *DEVELOPMENT, *(one for text in PROSE for one in split_sentences(text)))}
    while len(made) < count:
        kind = pick.choices(list(MIX), list(MIX.values()))[0]
        if kind == "example":
            text = next(example)
        elif kind == "two examples":
            text = f"{next(example)} {next(example)}"
        elif kind == "clauses":
            one, other = next(example), next(example)
            text = one.rstrip(".!?") + pick.choice(JOINTS) + other[0].lower() + other[1:]
        elif kind == "definition":
            text = next(definition)
        elif kind == "words":
            listed = pick.sample(list(words), pick.choice((1, 2, 3, 4)))
            text = sentence(", ".join(listed))
        elif kind == "phrase":
            made.append(everyday.phrase())
            continue
        else:
            text = everyday.paragraph() if kind == "paragraph" else everyday.sentence()
        if len(text) <= MAX_CHARACTERS and key(text) not in seen:
            seen.add(key(text))
            made.append(text)
    carried = [text for text in carriers(made, words, wordnet, seed) if key(text) not in seen]
    made += pick.sample(carried, min(len(carried), int(CARRIED * len(made))))
    pick.shuffle(made)
    return made


def key(text: str) -> str:
    """Letters and digits of a sentence, for comparison."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def sentence(text: str) -> str:
    """The text with a capital letter and final punctuation."""
    text = text[0].upper() + text[1:].replace(";", ",").rstrip(" ,:-")
    return text if text[-1] in ".!?" else text + "."


def _quotes(wordnet: Path) -> tuple[list[str], list[str]]:
    """WordNet's usage examples and short definitions."""
    examples, definitions = [], []
    for part in PARTS:
        for line in (wordnet / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if " | " not in line or line.startswith("  "):
                continue
            gloss = line.split(" | ", 1)[1]
            for quote in re.findall(r'"([^"]+)"', gloss):
                text = re.sub(r"\s*[-–]+\s*[A-Z][\w. ]*$", "", quote.strip())
                if PLAIN.fullmatch(text) and 3 <= len(text.split()) <= 18:
                    examples.append(sentence(text))
            text = re.sub(r"\([^)]*\)", "", gloss.split('"')[0]).split(";")[0]
            text = " ".join(text.split())
            if PLAIN.fullmatch(text) and 3 <= len(text.split()) <= 12:
                definitions.append(sentence(text))
    return examples, definitions


def _forever(items: list[str]) -> Iterator[str]:
    while True:
        yield from items
