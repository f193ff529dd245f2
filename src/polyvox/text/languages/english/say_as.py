# SPDX-License-Identifier: Apache-2.0
"""English reading of SSML's <say-as>."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.dates import spoken_date
from polyvox.text.languages.english.number_words import cardinal, digits, number, ordinal, roman, year
from polyvox.text.languages.english.times import clock, duration

_DATE_PARTS = {"y": r"\d{2,4}", "m": r"\d{1,2}|[A-Za-z]{3,}\.?", "d": r"\d{1,2}"}
_INTEGER = re.compile(r"[0-9][0-9,]*")
_CHARACTER_NAMES = tables.SIGNS | {
    ".": "dot",
    ",": "comma",
    "-": "dash",
    "_": "underscore",
    "/": "slash",
    ":": "colon",
    ";": "semicolon",
    "!": "exclamation mark",
    "?": "question mark",
    "*": "star",
    "'": "apostrophe",
    '"': "quote",
    "~": "tilde",
    "(": "open parenthesis",
    ")": "close parenthesis",
    " ": "",
}


def say_as(kind: str, text: str, format: str = "") -> str | None:
    """The words of a text that is read as a given kind; None if it is read as any other text.

    Kinds: characters, spell-out, verbatim, digits, cardinal, number, ordinal, year, date, time, duration, telephone,
    expletive.
    """
    kind, text = kind.lower(), " ".join(text.split())
    integer = text.replace(",", "") if _INTEGER.fullmatch(text) else None
    match kind:
        case "characters" | "character" | "spell-out" | "spell" | "verbatim" | "letters":
            return " ".join(filter(None, (_character(char) for char in text)))
        case "digits" | "digit":
            return digits(text) or None
        case "cardinal" | "number":
            value = roman(text)
            return cardinal(str(value)) if value else _number(text)
        case "ordinal":
            bare = re.sub(r"(?<=[0-9])(?:st|nd|rd|th)$", "", text)
            value = roman(text)
            return ordinal(str(value)) if value else ordinal(bare) if _INTEGER.fullmatch(bare) else None
        case "year":
            return year(integer) if integer and len(integer) <= 4 else None
        case "date":
            return _date(text, format.lower())
        case "time":
            return _time(text)
        case "duration":
            return _duration(text)
        case "telephone":
            groups = re.findall(r"[0-9]+", text)
            return ("plus " if text.startswith("+") else "") + ", ".join(map(digits, groups)) if groups else None
        case "expletive" | "bleep":
            return "bleep"
    return None


def _character(char: str) -> str:
    return digits(char) or _CHARACTER_NAMES.get(char, char.upper() if char.isalpha() else char)


def _number(text: str) -> str | None:
    bare = text.replace(",", "")
    return number(bare) if re.fullmatch(r"[-−+]?[0-9]+(?:\.[0-9]+)?", bare) else None


def _date(text: str, format: str) -> str | None:
    """A date in the order of `format`: mdy, dmy, ymd, md, dm, ym, my, d, m or y; "yyyymmdd" is ymd."""
    format = re.sub(r"(.)\1+", r"\1", format)
    if not format or set(format) - set("ymd") or len(set(format)) != len(format):
        return None
    pattern = r"[ ./,-]*".join(f"(?P<{part}>{_DATE_PARTS[part]})" for part in format)
    found = re.fullmatch(pattern.replace(r"\d", "[0-9]"), text)
    return spoken_date(**{part: found[part] for part in format}) if found else None


def _time(text: str) -> str | None:
    found = re.fullmatch(r"([0-9]{1,2})(?::([0-9]{2}))?(?::[0-9]{2})? ?(?:([AaPp])\.?[Mm]\.?)?", text)
    if not found or int(found[1]) > 24 or int(found[2] or 0) > 59:
        return None
    return clock(found[1], found[2] or "00", found[3] or "")


def _duration(text: str) -> str | None:
    found = re.fullmatch(r"(?:([0-9]{1,3}):)?([0-9]{1,2}):([0-9]{2})", text)
    return duration(*found.groups()) if found else None
