# SPDX-License-Identifier: Apache-2.0
"""Phoneme strings of the alphabet `kokoro-en-us` as ids of the teacher's vocabulary."""

from collections.abc import Iterable

# The teacher's ids of the symbols that polyvox.text.phonemes writes.
IDS = {
    ";": 1, ":": 2, ",": 3, ".": 4, "!": 5, "?": 6, "—": 9, "…": 10, " ": 16, "A": 24, "I": 25, "O": 31, "T": 36,
    "W": 39, "Y": 41, "ᵊ": 42, "b": 44, "d": 46, "f": 48, "h": 50, "i": 51, "j": 52, "k": 53, "l": 54, "m": 55,
    "n": 56, "p": 58, "s": 61, "t": 62, "u": 63, "v": 64, "w": 65, "z": 68, "ɑ": 69, "ɐ": 70, "æ": 72, "ɔ": 76,
    "ð": 81, "ʤ": 82, "ə": 83, "ɛ": 86, "ɜ": 87, "ɡ": 92, "ɪ": 102, "ŋ": 112, "θ": 119, "ɹ": 123, "ʃ": 131,
    "ʧ": 133, "ʊ": 135, "ʌ": 138, "ʒ": 147, "ˈ": 156, "ˌ": 157, "ᵻ": 177,
}  # fmt: skip
SYMBOLS = {number: symbol for symbol, number in IDS.items()}


def to_ids(phonemes: str) -> list[int]:
    return [IDS[symbol] for symbol in phonemes]


def to_phonemes(ids: Iterable[int]) -> str:
    return "".join(SYMBOLS[int(number)] for number in ids)
