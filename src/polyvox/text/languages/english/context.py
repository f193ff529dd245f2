# SPDX-License-Identifier: Apache-2.0
"""What stands around a number: whether it is an adjective, as in "a 90° angle", or a year."""

import re

from polyvox.text.languages.english.word_tables import FULL_MONTH, NOT_NOUNS, NOT_PLURALS
from polyvox.text.rules import after, before

_ARTICLE = re.compile(r"\b[Aa]n?[ -]$")
_DETERMINER = re.compile(
    r"\b(?:the|this|that|each|every|my|your|his|her|its|our|their|one|another|any) $", re.IGNORECASE
)
_NOUN = re.compile(r" (?:[a-z]+-)*([a-z]+)(?![\w'-])")
_PLURAL = re.compile(r" ([a-z]+s)\b")
_SEASON = "spring|summer|autumn|fall|winter"
_DEFINITE_YEAR = re.compile(
    rf"(?:\b(?:in|since|years?|circa|until|till|born|died|{_SEASON}|early|late|mid|{FULL_MONTH}|christmas|copyright|fy),?"
    rf"|\b(?:{_SEASON}|war|class|battle|treaty|act|crash|revolution|end|start|beginning|eve|fire|constitution) of"
    r"|\b(?:c|ca|est)\.|\bA\.?D\.?|©) \(?$",
    re.IGNORECASE,
)
_AFTER_YEAR = re.compile(r"\b(?:1[1-9]|20)[0-9]{2},? (?:(?:and|or|to|through|until|&) )?$")
_SPAN_START = re.compile(r"\b(?:between|from) $", re.IGNORECASE)
_SPAN_END = re.compile(r" (?:and|to|until|through) (?:1[0-9]|20)[0-9]{2}(?![\w,.%]*\d)(?! [a-z]+s\b)")
_ERA = re.compile(r" (?:A\.?D|B\.?C|C\.?E)\b")
_THE = re.compile(r"\b[Tt]he $")
_CAPITALISED = re.compile(r" [A-Z][a-z]+(?!\w)")


def is_adjective(match: re.Match[str]) -> bool:
    """Whether a quantity stands before its noun, so that its unit is singular: "a $5 bill", "the 90° angle"."""
    if _ARTICLE.search(before(match)):
        return True
    noun = _NOUN.match(after(match))
    return (
        noun is not None
        and _DETERMINER.search(before(match)) is not None
        and noun[1] not in NOT_NOUNS
        and not noun[1].endswith(("ed", "ly"))
        and (not noun[1].endswith("s") or noun[1].endswith("ss"))
    )


def is_year(match: re.Match[str], text: str) -> bool:
    """Whether an integer without separators is read as a year."""
    if len(text) != 4 or not text.isdigit() or not "1000" <= text < "2200":
        return False
    plural = _PLURAL.match(after(match))
    counts = plural is not None and plural[1] not in NOT_PLURALS
    if _ERA.match(after(match)):
        return True
    if _DEFINITE_YEAR.search(before(match)):
        return not (counts and before(match).rstrip(" (").endswith("in") and text < "1100")
    if counts and _THE.search(before(match)) and text >= "1100" and text[-1] != "0":
        return True  # the 1848 revolutions
    if counts or text >= "2100":
        return False
    if text >= "1900":
        return True
    if text < "1100":
        return False
    if _AFTER_YEAR.search(before(match)) or (_SPAN_START.search(before(match)) and _SPAN_END.match(after(match))):
        return True
    return bool(_THE.search(before(match)) and _CAPITALISED.match(after(match)))
