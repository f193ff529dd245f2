# SPDX-License-Identifier: Apache-2.0
"""Words to phonemes, for checkpoints whose text is phonemes. American English."""

from polyvox.text.phonemes.alphabet import ALPHABET, SYMBOLS
from polyvox.text.phonemes.inline_phonemes import mark_phonemes, unmark_phonemes
from polyvox.text.phonemes.phonemizer import PhonemeStream, phonemize
from polyvox.text.phonemes.pronouncer import load_pronunciations

__all__ = [
    "ALPHABET",
    "SYMBOLS",
    "PhonemeStream",
    "load_pronunciations",
    "mark_phonemes",
    "phonemize",
    "unmark_phonemes",
]
