# SPDX-License-Identifier: Apache-2.0
"""Words to phonemes, for checkpoints whose text is phonemes. American English."""

from polyvox.text.phonemes.alphabet import ALPHABET, SYMBOLS
from polyvox.text.phonemes.phonemizer import PhonemeStream, mark_phonemes, phonemize, unmark_phonemes

__all__ = ["ALPHABET", "SYMBOLS", "PhonemeStream", "mark_phonemes", "phonemize", "unmark_phonemes"]
