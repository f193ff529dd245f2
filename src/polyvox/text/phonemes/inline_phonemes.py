# SPDX-License-Identifier: Apache-2.0
"""Words with their own phonemes inside a text, for `<phoneme>` and pronunciation lexicons.

The form is MARK_OPEN, the written words, MARK_MIDDLE, the phonemes, MARK_CLOSE, with "_" for each space. The marks are
private-use characters. Only models that take phonemes accept such text (`ModelInfo.takes_phonemes`).
"""

import re
from typing import Literal, get_args

from polyvox.text.phonemes.alphabet import ALPHABET, PHONEMES
from polyvox.text.phonemes.notations import from_arpabet, from_ipa

MARK_OPEN, MARK_MIDDLE, MARK_CLOSE = "\ue100", "\ue101", "\ue102"
# Names of SSML's alphabet attribute.
Notation = Literal["ipa", "cmu-arpabet", "kokoro-en-us"]
_NOT_MARK = f"[^{MARK_OPEN}{MARK_MIDDLE}{MARK_CLOSE}]*"
_MARKED = re.compile(f"{MARK_OPEN}({_NOT_MARK}){MARK_MIDDLE}{_NOT_MARK}{MARK_CLOSE}")
_MARKS = re.compile(f"[{MARK_OPEN}{MARK_MIDDLE}{MARK_CLOSE}]")


def mark_phonemes(text: str, phonemes: str, notation: str = ALPHABET) -> str:
    """Words with their phonemes as a piece of text; raises ValueError for unknown phonemes or notations."""
    if notation not in get_args(Notation):
        raise ValueError(f"unknown phoneme alphabet: {notation}; supported are {', '.join(get_args(Notation))}")
    if notation == "ipa":
        phonemes = from_ipa(phonemes)
    elif notation == "cmu-arpabet":
        phonemes = from_arpabet(phonemes)
    unknown = sorted(set(phonemes) - PHONEMES - {" "})
    if unknown:
        raise ValueError(f"unknown phonemes: {' '.join(unknown)}")
    if not phonemes.strip():
        raise ValueError("phonemes must not be empty")
    written = "_".join(_MARKS.sub("", text).split())
    return f"{MARK_OPEN}{written}{MARK_MIDDLE}{'_'.join(phonemes.split())}{MARK_CLOSE}"


def split_marked(marked: str) -> tuple[str, str]:
    """The written words and the phonemes of one marked piece of text."""
    written, _, phonemes = marked[1:-1].partition(MARK_MIDDLE)
    known = "".join(symbol for symbol in phonemes.replace("_", " ") if symbol in PHONEMES or symbol == " ")
    return written.replace("_", " "), known.strip()


def unmark_phonemes(text: str) -> str:
    """The text as written, without phonemes and marks: for subtitles, logs and limits by length."""
    if MARK_OPEN not in text:
        return text
    return _MARKS.sub("", _MARKED.sub(lambda match: match[1].replace("_", " "), text))
