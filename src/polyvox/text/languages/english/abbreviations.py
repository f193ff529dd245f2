# SPDX-License-Identifier: Apache-2.0
"""English rules for abbreviations, among them those of street addresses."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.rules import Rules, after, before

SHORT_FORMS = Rules()
_SHORT = "|".join(re.escape(name) for name in sorted(tables.ABBREVIATIONS, key=len, reverse=True))
_STREETS = {"St": "Street", "Dr": "Drive"}
_CAPITAL_BEFORE = re.compile(r"\b(?:[A-Z][a-z]+(?:'s)?|[0-9]+(?:st|nd|rd|th)) $")
_CAPITAL_AFTER = re.compile(r' ["(*_]*[A-Z]')
_NUMBER_AFTER = re.compile(r" ?(?:[0-9#]|[IVXL]{2,}(?!\w)|[A-Z][0-9])")
_ONE_ROMAN_LETTER_AFTER = re.compile(r" [IVX](?![\w'])(?! [a-z])")
_PRECEDED_BY_THE = re.compile(r"\b[Tt]he $")
_WRITTEN_OUT = {"w/": "with", "w/o": "without", "w/out": "without", "c/o": "care of", "b/c": "because"}


@SHORT_FORMS("short", r"(?<![\w/])(?:w/(?:o(?:ut)?(?!\w))?|[cb]/[oc](?![\w/]))")
def _with(match: re.Match[str]) -> str | None:
    return _WRITTEN_OUT.get(match[0])


@SHORT_FORMS("short", r"(?<![\w/])N/A(?![\w/])")
def _not_applicable(_: re.Match[str]) -> str:
    return "N A"


@SHORT_FORMS("short", rf"(?<![\w.])({_SHORT})\.(?!\w)")
def _abbreviation(match: re.Match[str]) -> str | None:
    name = match[1]
    spoken, follows = tables.ABBREVIATIONS[name]
    capital, ends = _CAPITAL_AFTER.match(after(match)), not after(match).strip(" \"')]*_")
    follows_name = _CAPITAL_BEFORE.search(before(match))
    if name in _STREETS and follows_name and (not capital or name == "St"):
        spoken, follows = _STREETS[name], "end"
    if follows in ("street", "street or number"):
        if not follows_name and not (follows == "street or number" and _NUMBER_AFTER.match(after(match))):
            return None
        follows = "end" if follows_name else "number"
    if follows == "name":
        return spoken if capital else None
    if follows == "number":
        found = _NUMBER_AFTER.match(after(match))
        is_noun = name.capitalize() + "." in tables.NUMBERED_NOUNS
        return spoken if found or (is_noun and _ONE_ROMAN_LETTER_AFTER.match(after(match))) else None
    if follows == "day":
        if _PRECEDED_BY_THE.search(before(match)):
            return None  # the Sun
        follows = "end"
    return spoken + ("." if follows == "end" and (ends or capital) else "")


@SHORT_FORMS("short", r"(?<=[0-9](?:st|nd|rd|th) )ed\.")
def _edition(match: re.Match[str]) -> str:
    return "edition" + ("" if re.match(" [a-z]|,", after(match)) else ".")
