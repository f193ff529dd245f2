# SPDX-License-Identifier: Apache-2.0
"""English rules for Roman numerals."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.number_words import cardinal, ordinal, roman, year
from polyvox.text.rules import Rules, after, before

ROMAN = Rules()
_WORD_BEFORE = re.compile(r"\b([A-Z][a-z]+|(?:[Vv]ol|[Cc]h|[Nn]o)\.) $")
_SPECIFIED = re.compile(r"\b(?:[Tt]he|[Tt]hat|[Tt]his|[Ee]ach|[Ee]very|[Aa]n?|[Mm]y|[Hh]is|[Hh]er) \w+\.? $")
_NEXT_WORD = re.compile(r" ([a-z']+)")
_MAX = 89  # of a numeral after a noun; C, D and M begin too many abbreviations


@ROMAN("year", r"(?<!\w)(?=M(?:M|CM|DCC))[MDCLXVI]{4,}(?![\w'-])")
def _year(match: re.Match[str]) -> str | None:
    value = roman(match[0])
    return year(str(value)) if value is not None and value < 2200 else None


@ROMAN("roman", r"(?<!\w)[IVXL]+(?![\w-])(?!'(?!s\b))")
def _roman(match: re.Match[str]) -> str | None:
    word, value = _WORD_BEFORE.search(before(match)), roman(match[0])
    if not word or value is None or value > _MAX:
        return None
    is_name, is_noun = word[1] in tables.REGNAL, word[1] in tables.NUMBERED_NOUNS
    if len(match[0]) == 1:
        if not (is_name or is_noun) or match[0] == "L" or after(match).startswith("'") or _is_pronoun(match, word[1]):
            return None
    elif word[1] in tables.NOT_NAMES or ("L" in match[0] and not (is_name or is_noun)):
        return None  # size XL
    return f"the {ordinal(str(value))}" if is_name and not is_noun else cardinal(str(value))


def _is_pronoun(match: re.Match[str], noun: str) -> bool:
    """Whether "I" is a word: "the Act I saw", "Chapter I am reading"; but "World War I ended", "Charles I was king"."""
    following = _NEXT_WORD.match(after(match))
    if match[0] != "I" or not following:
        return False
    if noun in tables.REGNAL:
        return following[1] in tables.VERBS_AFTER_I
    if _SPECIFIED.search(before(match)) or following[1] in (*tables.VERBS_AFTER_I, "had", "did"):
        return True
    if noun in tables.KINDS:
        return False
    return following[1] not in tables.NOT_NOUNS and not following[1].endswith("s")
