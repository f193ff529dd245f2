# SPDX-License-Identifier: Apache-2.0
"""Word error rate of a transcript, after both texts are normalised to one spelling. English."""

import re
from dataclasses import dataclass

from num2words import num2words

from polyvox.errors import PolyvoxError, how_to_install

SPELLINGS = {
    "okay": "ok", "mr": "mister", "dr": "doctor", "colour": "color", "favourite": "favorite", "harbour": "harbor",
    "neighbours": "neighbors", "neighbour": "neighbor", "grey": "gray", "theatre": "theater", "metres": "meters",
    "apologised": "apologized", "travelling": "traveling", "centre": "center", "realise": "realize",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Word errors of one transcript, and the number of words in the reference text."""

    errors: int
    words: int


def spell_out(number: int) -> str:
    """An integer in words, without hyphens, commas or "and"."""
    return num2words(number).replace(",", "").replace(" and ", " ").replace("-", " ")


def normalise(text: str) -> list[str]:
    """Lower-case words; numbers, amounts of money and times are spelled out."""
    text = text.lower().replace("’", "'")
    text = re.sub(r"(\d),(\d)", r"\1\2", text)
    text = re.sub(r"\$(\d+)", r"\1 dollars", text)
    text = re.sub(r"(\d+)%", r"\1 percent", text)
    text = re.sub(r"(\d+):(\d\d)", r"\1 \2", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", lambda found: num2words(int(found[1]), to="ordinal"), text)
    text = re.sub(r"\d+", lambda found: spell_out(int(found[0])) if len(found[0]) < 6 else " ".join(found[0]), text)
    words = re.sub(r"[^a-z' ]", " ", text).split()
    return [SPELLINGS.get(word, word) for word in words]


def word_errors(reference: str, transcript: str) -> WordErrors:
    """Substitutions, deletions and insertions. Compounds written as one word or as two are equal."""
    try:
        import jiwer
    except ImportError:
        raise PolyvoxError(f"The word error rate requires the package jiwer: {how_to_install('bench')}.") from None
    expected, found = normalise(reference), normalise(transcript)
    if "".join(expected) == "".join(found):
        return WordErrors(0, len(expected))
    if not expected:
        return WordErrors(len(found), 0)
    aligned = jiwer.process_words(" ".join(expected), " ".join(found))
    return WordErrors(aligned.substitutions + aligned.deletions + aligned.insertions, len(expected))
