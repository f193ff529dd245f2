"""How well a text was understood: word errors, after both sides are spelled alike. English."""

import re
from dataclasses import dataclass

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ORDINALS = {
    "1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth", "6th": "sixth", "7th": "seventh",
    "8th": "eighth", "9th": "ninth", "10th": "tenth", "11th": "eleventh", "12th": "twelfth", "20th": "twentieth",
}  # fmt: skip
# One word, two spellings.
SAME = {
    "okay": "ok", "mr": "mister", "dr": "doctor", "colour": "color", "favourite": "favorite", "harbour": "harbor",
    "neighbours": "neighbors", "neighbour": "neighbor", "grey": "gray", "theatre": "theater", "metres": "meters",
    "apologised": "apologized", "travelling": "traveling", "centre": "center", "realise": "realize",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Errors:
    """Word errors of one sentence."""

    errors: int
    words: int


def spelled(number: int) -> str:
    """A whole number below a million in words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f" {ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{ONES[number // 100]} hundred" + (f" {spelled(number % 100)}" if number % 100 else "")
    return f"{spelled(number // 1000)} thousand" + (f" {spelled(number % 1000)}" if number % 1000 else "")


def normalised(text: str) -> list[str]:
    """Words in lower case; digits spelled, money and times as they are said."""
    text = text.lower().replace("’", "'")
    text = re.sub(r"(\d),(\d)", r"\1\2", text)
    text = re.sub(r"\$(\d+)", r"\1 dollars", text)
    text = re.sub(r"(\d+)%", r"\1 percent", text)
    text = re.sub(r"(\d+):(\d\d)", r"\1 \2", text)
    text = re.sub(r"\d+(st|nd|rd|th)", lambda found: ORDINALS.get(found[0], found[0]), text)
    text = re.sub(r"\d+", lambda found: spelled(int(found[0])) if len(found[0]) < 6 else " ".join(found[0]), text)
    words = re.sub(r"[^a-z' ]", " ", text).split()
    return [SAME.get(word, word) for word in words]


def word_errors(wanted: str, heard: str) -> Errors:
    """Levenshtein distance in words. Compounds that are written apart are no errors."""
    a, b = normalised(wanted), normalised(heard)
    if "".join(a) == "".join(b):
        return Errors(0, len(a))
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return Errors(row[-1], len(a))
