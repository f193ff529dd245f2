"""Training text: what WordNet quotes and defines, lists of its frequent words, and everyday English by rule."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from training.carriers import carriers, frequent_words
from training.everyday import Everyday
from training.sentences import DEVELOPMENT, TEST

PARTS = ("noun", "verb", "adj", "adv")
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ,;:'!?.-]*")
LONGEST = 130  # characters; about 9 s
# How many of each kind in a hundred, beside the carriers of frequent words.
MIX = {"example": 38, "two examples": 10, "definition": 15, "words": 10, "everyday": 24, "phrase": 3}


def sentences(wordnet: Path, count: int, seed: int = 1) -> list[str]:
    """So many training sentences and those that frequent words still lack, in random order.

    No two are alike except short phrases; none of them is in an evaluation list.
    """
    pick = random.Random(seed)
    examples, definitions = _quotes(wordnet)
    words = frequent_words(wordnet)
    everyday = Everyday(seed)
    pick.shuffle(examples)
    pick.shuffle(definitions)
    example, definition = _forever(examples), _forever(definitions)
    made: list[str] = []
    seen = {key(text) for text in (*TEST, *DEVELOPMENT)}
    while len(made) < count:
        kind = pick.choices(list(MIX), list(MIX.values()))[0]
        if kind == "example":
            text = next(example)
        elif kind == "two examples":
            text = f"{next(example)} {next(example)}"
        elif kind == "definition":
            text = next(definition)
        elif kind == "words":
            listed = pick.sample(list(words), pick.choice((1, 2, 3, 4)))
            text = sentence(", ".join(listed))
        elif kind == "phrase":
            made.append(everyday.phrase())
            continue
        else:
            text = everyday.sentence()
        if len(text) <= LONGEST and key(text) not in seen:
            seen.add(key(text))
            made.append(text)
    made += [text for text in carriers(made, words, wordnet, seed) if key(text) not in seen]
    pick.shuffle(made)
    return made


def key(text: str) -> str:
    """What makes two sentences the same: their letters and digits."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def sentence(text: str) -> str:
    """With a capital letter and an end."""
    text = text[0].upper() + text[1:].replace(";", ",").rstrip(" ,:-")
    return text if text[-1] in ".!?" else text + "."


def _quotes(wordnet: Path) -> tuple[list[str], list[str]]:
    """Usage examples and short definitions."""
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
