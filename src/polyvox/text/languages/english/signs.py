# SPDX-License-Identifier: Apache-2.0
"""English rules for signs, Greek letters and emoji."""

import re
import unicodedata

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.number_words import number, vulgar_fraction
from polyvox.text.rules import LEFT, NUM, Rules, after, before
from polyvox.text.unicode_cleaner import PICTOGRAM, is_emoji

FIRST_SIGNS, SIGNS = Rules(), Rules()  # applied before and after the rules for numbers
_SEQUENCE = rf"[\U0001f1e6-\U0001f1ff]{{1,2}}|{PICTOGRAM}(?:[\U0001f3fb-\U0001f3ff]|\u200d{PICTOGRAM}){{0,8}}"
_COMPARED = {"<": "less than or equal to", ">": "greater than or equal to", "=": "equals", "!": "not equal to"}
_GREEK = "".join(tables.GREEK)
_GREEK_WORD = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]{2}")

FIRST_SIGNS.words("heart", r"(?<!\S)<3(?!\w)", "heart")
FIRST_SIGNS.words("about", r"(?<!\S)~(?=[$€£]?\.?\d)", "about")


@FIRST_SIGNS("number", rf"{LEFT}({NUM})(?=[{_GREEK.replace('μ', '').replace('Ω', '')}](?!\w))")
def _coefficient(match: re.Match[str]) -> str:
    return number(match[1])


@SIGNS("fraction", "((?<=[0-9]) ?)?([¼½¾⅐-⅞])")
def _vulgar(match: re.Match[str]) -> str:
    spoken = vulgar_fraction(match[2])
    follows_number = match[1] is not None or re.search(r"[0-9] $", before(match))
    return "and " + spoken.replace("one ", "a ", 1) if follows_number else spoken


@SIGNS("Greek", rf"(?<![\u0370-\u03ff\u1f00-\u1fff])(?!μ[A-Za-z])[{_GREEK}](?![\u0370-\u03ff\u1f00-\u1fff])")
def _greek(match: re.Match[str]) -> str | None:
    """A single Greek letter by name, except in Greek text."""
    return None if _GREEK_WORD.search(before(match) + after(match)) else tables.GREEK[match[0]]


def _emoji_name(picture: str) -> str:
    return unicodedata.name(picture, "picture").removeprefix("BLACK ").removeprefix("WHITE ").lower().replace("-", " ")


@SIGNS("emoji", rf"({_SEQUENCE})\1{{0,16}}")
def _emoji(match: re.Match[str]) -> str | None:
    """An emoji or emoji sequence by name. Repetitions are spoken once; skin tones are skipped."""
    flag = [chr(ord(char) - 0x1F1E6 + ord("A")) for char in match[1] if "\U0001f1e6" <= char <= "\U0001f1ff"]
    if flag:
        return " ".join(flag) + " flag"
    pictures = [c for c in match[1] if is_emoji(c) and not "\U0001f3fb" <= c <= "\U0001f3ff" and c not in "♂♀"]
    names = [tables.EMOJI.get(c) or _emoji_name(c) for c in pictures]
    return " ".join(dict.fromkeys(names)) or None


@SIGNS("compare", r"[<>]=|[=!]={1,2}|<>")
def _compare(match: re.Match[str]) -> str:
    return _COMPARED[match[0][0]] if match[0] != "<>" else _COMPARED["!"]


SIGNS.words("mathematics", r"\${2}", "")
SIGNS.words("and", "&&", "and")
SIGNS.words("hashes", "#{2,}", "")
SIGNS.words("and/or", r"(?<=\band)/(?=or\b)", "")
SIGNS.words("slash", r"(?<=[\w°%)])/(?=[\w(\[$€£-])|(?<= )/(?= )", "slash")
SIGNS.words("arrow", r"<?[-=]{1,2}>", "to")
SIGNS.words("arrow", r"<-{1,2}(?= )", "from")
SIGNS.words(
    "minus", r"(?<=[\w)] )[-−](?= \d)|(?<=\d )[-−](?= [\w(])|(?<=(?<!\w)[A-Za-z] )[-−](?= [A-Za-z](?![\w']))", "minus"
)
SIGNS.words(
    "times", r"(?<=[0-9)])\*(?=[0-9(])|(?<=[\w)] )\*(?= [\w(])|(?<=(?<!\w)[A-Za-z])\*(?=[A-Za-z](?!\w))", "times"
)


@SIGNS("sign", "[" + re.escape("".join(tables.SIGNS)) + "]")
def _sign(match: re.Match[str]) -> str:
    return tables.SIGNS[match[0]]
