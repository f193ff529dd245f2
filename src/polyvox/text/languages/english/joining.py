# SPDX-License-Identifier: Apache-2.0
"""Words that an English rule may match together with the next word."""

import re

from polyvox.text.languages.english.word_tables import (
    ABBREVIATIONS,
    MONEY,
    MONTHS,
    NUMBERED_NOUNS,
    REGNAL,
    UNITS,
    WEEKDAYS,
)

_JOINS_NEXT = re.compile(rf"[0-9¼-¾⅐-⅞{''.join(sign for sign in MONEY if len(sign) == 1)}]|^[\W_]+$")
_LAST_WORD = re.compile(r"([^\W0-9_][\w.]*)[.,]?[\"')*_]*$")
_JOINING_WORDS = {*ABBREVIATIONS, *MONTHS, *(sign for sign in MONEY if len(sign) == 3)}
_JOINING_WORDS |= {*NUMBERED_NOUNS, *REGNAL, "x"} | {name[:size] for name in (*MONTHS, *WEEKDAYS) for size in (3, 4, 5)}
_DETERMINERS = "the|this|that|each|every|my|your|his|her|its|our|their|one|another|any"
_JOINING_WORDS |= {name for word in _DETERMINERS.split("|") for name in (word, word.capitalize())}

# Ends of a segment that join the next word: "1760 and", "10 a.m.", "20 sq", "$5 million", "Chapter I".
_TAIL = 40  # characters
_TAIL_WORDS = {"and", "or", "to", "through", "until", "&", "sq", "cu", "fl", "am", "pm", "a.m", "p.m"}
_TAIL_WORDS |= {"hundred", "thousand", "million", "billion", "trillion"}
_JOINING_TAIL = re.compile(rf"[0-9]\S* ?(?:{'|'.join(map(re.escape, sorted(_TAIL_WORDS)))})\.?$", re.IGNORECASE)
_MAX_UNIT = 6  # characters of an abbreviated unit with its full stop, which may end a sentence: "5 ft."
_UNIT_TAIL = re.compile(r"[0-9]\S* (?:[A-Za-z]+\.|A)$")
_ADJECTIVE_TAIL = re.compile(rf"^ *(?:{_DETERMINERS}) [0-9][0-9.,]* [^ ]+$", re.IGNORECASE)  # "the 5 km"
_NUMERAL_TAIL = re.compile(rf"\b(?:{'|'.join(map(re.escape, (*NUMBERED_NOUNS, *REGNAL)))}) [IVX]$")


def joins_next(text: str, start: int, end: int) -> bool:
    """Whether a rule may match the word from `start` to `end` together with the next."""
    chunk = text[start:end]
    word = _LAST_WORD.search(chunk)
    return (
        bool(_JOINS_NEXT.search(chunk))
        or (word is not None and word[1].rstrip(".") in _JOINING_WORDS)
        or _tail_joins_next(text, chunk, end)
    )


def _tail_joins_next(text: str, chunk: str, end: int) -> bool:
    if chunk.rstrip(".").lower() in _TAIL_WORDS:
        return _JOINING_TAIL.search(text, max(0, end - _TAIL), end) is not None
    if chunk == "A" or (chunk.endswith(".") and len(chunk) <= _MAX_UNIT):
        return _UNIT_TAIL.search(text, max(0, end - _TAIL), end) is not None
    if chunk in UNITS and _ADJECTIVE_TAIL.search(text[:end]):
        return True
    return chunk in ("I", "V", "X") and _NUMERAL_TAIL.search(text, max(0, end - _TAIL), end) is not None
