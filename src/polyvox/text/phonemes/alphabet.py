# SPDX-License-Identifier: Apache-2.0
"""The phoneme alphabet `kokoro-en-us`: one character per phoneme, as the teacher of the embedded voice takes them.

Diphthongs are capital letters (A of "day", I of "my", O of "go", W of "now", Y of "boy"), `T` is a flapped t ("water"),
`ᵊ` a short schwa before l or n, `ᵻ` the vowel of the ending "-es". A stress mark stands directly before its vowel.
"""

ALPHABET = "kokoro-en-us"

PRIMARY, SECONDARY = "ˈ", "ˌ"
VOWELS = frozenset("AIOWYiuæɐɑɔəɛɜɪʊʌᵊᵻ")
CONSONANTS = frozenset("Tbdfhjklmnpstvwzðŋɡɹʃʒʤʧθ")
PUNCTUATION = frozenset(";:,.!?—…")
PHONEMES = VOWELS | CONSONANTS | {PRIMARY, SECONDARY}
# Everything that a phoneme string can have.
SYMBOLS = PHONEMES | PUNCTUATION | {" "}

FLAP = "T"
# A t between one of these and an unstressed vowel is a flap.
_BEFORE_FLAP = VOWELS | {"ɹ"}


def flap_final_t(phonemes: str) -> str:
    """The stem before an ending that begins with an unstressed vowel: "eat" in "eating" ends in a flap."""
    if len(phonemes) > 1 and phonemes[-1] == "t" and phonemes[-2] in _BEFORE_FLAP:
        return phonemes[:-1] + FLAP
    return phonemes


def flap(phonemes: str) -> str:
    """All t between a vowel and an unstressed vowel as flaps."""
    kept = list(phonemes)
    for index in range(1, len(kept) - 1):
        if kept[index] == "t" and kept[index - 1] in _BEFORE_FLAP and kept[index + 1] in VOWELS:
            kept[index] = FLAP
    return "".join(kept)


def with_secondary_stress(phonemes: str) -> str:
    """The word with its main stress as a secondary one, as the second part of a compound has it."""
    return phonemes.replace(SECONDARY, "").replace(PRIMARY, SECONDARY)


def without_stress(phonemes: str) -> str:
    return phonemes.replace(SECONDARY, "").replace(PRIMARY, "")


def begins_with_vowel(phonemes: str) -> bool:
    """Whether the first sound is a vowel, which decides between "a" and "an"."""
    return next((symbol in VOWELS for symbol in phonemes if symbol not in (PRIMARY, SECONDARY)), False)
