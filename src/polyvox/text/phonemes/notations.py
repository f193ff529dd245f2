# SPDX-License-Identifier: Apache-2.0
"""Phonemes in other notations (IPA, CMU ARPAbet) converted to the alphabet of the package."""

import re
import unicodedata

from polyvox.text.phonemes.alphabet import PHONEMES, PRIMARY, SECONDARY, VOWELS, flap

ARPABET = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "B": "b", "CH": "ʧ", "D": "d", "DH": "ð",
    "EH": "ɛ", "ER": "ɜɹ", "EY": "A", "F": "f", "G": "ɡ", "HH": "h", "IH": "ɪ", "IY": "i", "JH": "ʤ", "K": "k",
    "L": "l", "M": "m", "N": "n", "NG": "ŋ", "OW": "O", "OY": "Y", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t",
    "TH": "θ", "UH": "ʊ", "UW": "u", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
_UNSTRESSED_ARPABET = {"AH": "ə", "ER": "əɹ"}
_STRESS_DIGITS = {"0": "", "1": PRIMARY, "2": SECONDARY}

# Sequences of IPA first, then single symbols; the nearest phoneme of American English.
_IPA_SEQUENCES = {
    "eɪ": "A", "aɪ": "I", "oʊ": "O", "əʊ": "O", "aʊ": "W", "ɔɪ": "Y", "tʃ": "ʧ", "dʒ": "ʤ", "ɛə": "ɛɹ", "ɪə": "ɪɹ",
    "ʊə": "ʊɹ", "ɜː": "ɜɹ", "ɑːɹ": "ɑɹ", "ɔːɹ": "ɔɹ",
}  # fmt: skip
_IPA_SYMBOLS = {
    "ɚ": "əɹ", "ɝ": "ɜɹ", "r": "ɹ", "ɾ": "T", "g": "ɡ", "ɫ": "l", "ʔ": "t", "ɒ": "ɑ", "a": "æ", "e": "ɛ", "o": "O",
    "ɐ": "ə", "ɨ": "ᵻ", "y": "u", "ø": "ɛ", "x": "h", "ç": "h", "χ": "h", "ʁ": "ɹ", "ɲ": "nj", "β": "v", "ɣ": "ɡ",
    "c": "k", "q": "k", "ʍ": "w", "ɬ": "l", "ʦ": "ts", "ʣ": "dz", "'": PRIMARY,
}  # fmt: skip
# Length, ties, syllable dots, aspiration and other marks without a counterpart.
_IGNORED = frozenset("ː͡‿.ʰʲˑ/[]()̪̩̯̃")
_SYLLABIC = {"l̩": "ᵊl", "n̩": "ᵊn", "m̩": "əm", "ɹ̩": "əɹ"}


def from_arpabet(phonemes: str) -> str:
    """Phonemes of ARPAbet symbols with stress digits, separated by spaces; raises ValueError."""
    spoken = ""
    for sound in phonemes.split():
        symbol, digit = (sound[:-1], sound[-1]) if sound[-1] in _STRESS_DIGITS else (sound, "0")
        if symbol not in ARPABET:
            raise ValueError(f"unknown phoneme: {sound}")
        plain = _UNSTRESSED_ARPABET.get(symbol, ARPABET[symbol]) if digit == "0" else ARPABET[symbol]
        spoken += _STRESS_DIGITS[digit] + plain
    spoken = spoken.replace("iɹ", "ɪɹ").replace("ʌɹ", "ɜɹ")
    return flap(re.sub(r"(?<=[bdfkmnpstvzɡʃʒʤʧθð])əl$", "ᵊl", spoken))


def from_ipa(phonemes: str) -> str:
    """Phonemes of IPA; sounds that American English lacks become the nearest one; raises ValueError.

    A stress mark may stand before its syllable, as IPA has it, or before its vowel.
    """
    text = unicodedata.normalize("NFD", phonemes.strip().strip("/[]"))
    text = text.replace("\u0361", "").replace("t\u0283", "tʃ")
    for table in (_SYLLABIC, _IPA_SEQUENCES):
        for sequence, symbol in table.items():
            text = text.replace(unicodedata.normalize("NFD", sequence), symbol)
    made = ""
    for symbol in text:
        if symbol in PHONEMES or symbol == " ":
            made += symbol
        elif symbol in _IPA_SYMBOLS:
            made += _IPA_SYMBOLS[symbol]
        elif symbol not in _IGNORED:
            raise ValueError(f"unknown phoneme: {symbol}")
    return re.sub("([ˈˌ])([^ˈˌ ]*?)(?=[" + "".join(sorted(VOWELS)) + "])", _stress_before_vowel, made)


def _stress_before_vowel(match: re.Match[str]) -> str:
    return match[2] + match[1]
