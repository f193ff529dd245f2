# SPDX-License-Identifier: Apache-2.0
"""English rules for phone numbers, and for codes that are read digit by digit."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.number_words import digits, pair
from polyvox.text.rules import LEFT, Rules, after, before

PHONES = Rules()
_CALL = re.compile(r"\b(?:call|dial|text|phone|ring)(?:s|ed|ing|ling|led)?(?: [0-9]{3},? or)? $", re.IGNORECASE)
_SHORT_NUMBERS = ("000", "111", "112", "211", "311", "411", "511", "611", "711", "811", "911", "988", "999")
_COUNTED = re.compile(r" (?:(?!calls?\b)[a-z]+s|people|men|women|children)\b")
_CODE_WORD = re.compile(
    r"\b(?:PINs?|pin|(?:pass|access|security|zip|ZIP|post(?:al)? |area )?[Cc]ode|password|ZIP|OTP"
    r"|(?:[Aa]ccount|[Ss]erial|[Cc]ard|[Oo]rder|[Tt]racking|[Cc]onfirmation|[Rr]eference) (?:number|no\.|#))"
    r"(?:: ?| is | was | )$|\b(?:[Nn]umber|[Pp]hone|[Cc]ell|[Mm]obile|[Ff]ax)(?:: ?| is )$"
)
_STATE = re.compile(rf"(?:^|, |\b[a-z]+ )(?:{'|'.join(tables.STATES)}) $")
_STAR = re.compile(r"\b(?:[Dd]ial|[Pp]ress|[Cc]all|[Tt]ype) $")


@PHONES(
    "phone",
    r"(?<![\w.])(?:\+\d{1,3}(?:[ .-]?\(\d{1,4}\)|[ .-]\d{1,5}|\d{2,4}){1,5}|(?:1[ .-])?\(\d{3}\) ?\d{3}[-. ]\d{4}"
    r"|(?:1[.-])?\d{3}([.-])\d{3}\1\d{4}|\d{3} \d{3} \d{4}|\d{3}-\d{4}|0\d{1,4}(?: \d{3,4}){2}|0\d{3,4} \d{6}"
    r"|\(0\d{1,4}\) \d{3,4}[ -]\d{3,4})(?![\w-])(?! \d)(?!\.\d)",
)
def _phone(match: re.Match[str]) -> str | None:
    groups = re.findall(r"[0-9]+", match[0])
    if not 7 <= sum(map(len, groups)) <= 15:
        return None
    return ("plus " if match[0].startswith("+") else "") + ", ".join(map(digits, groups))


@PHONES("phone", r"(?<![\w-])(1-)?(8(?:00|33|44|55|66|77|88)|900)((?:-(?:[A-Z]+|\d+))+)(?![\w-])")
def _phone_word(match: re.Match[str]) -> str | None:
    """1-800-FLOWERS: the number, then words or digits."""
    if not re.search("[A-Z]", match[3]):
        return None
    code = pair(match[2]) if match[2].endswith("00") else digits(match[2])
    groups = [digits(group) if group.isdigit() else group for group in match[3].strip("-").split("-")]
    return ("one, " if match[1] else "") + f"{code}, {' '.join(groups)}"


@PHONES("phone", rf"{LEFT}(?:{'|'.join(_SHORT_NUMBERS)})(?![\w,.]*\d)(?![-%/]\w)(?!\w)")
def _short_number(match: re.Match[str]) -> str | None:
    text = before(match)
    if match[0] == "911" and text.endswith("Porsche "):
        return pair(match[0])
    if match[0] != "911" and not _CALL.search(text):
        return None
    return None if _COUNTED.match(after(match)) else digits(match[0])


@PHONES("phone", r"(?<!\S)\*(\d{2,3})(?![\w*])")
def _star_code(match: re.Match[str]) -> str | None:
    return f"star {digits(match[1])}" if _STAR.search(before(match)) else None


@PHONES("code", LEFT + r"\d{4}(?:([ -])\d{4})(?:\1\d{4}){2}(?![\w-])")
@PHONES("code", LEFT + r"\d+(?:-\d+){2,}(?![\w-])")
def _groups(match: re.Match[str]) -> str:
    return ", ".join(map(digits, re.split("[ -]", match[0])))


@PHONES("code", LEFT + r"(\d{5})(?:-(\d{4}))?(?![\w-])(?![.,]\d)")
def _zip_code(match: re.Match[str]) -> str | None:
    if not _STATE.search(before(match)):
        return None
    return ", ".join(digits(group) for group in match.groups() if group)


@PHONES("code", LEFT + r"\d{3,15}(?![\w-])(?![.,]\d)")
def _code(match: re.Match[str]) -> str | None:
    word = _CODE_WORD.search(before(match))
    return digits(match[0]) if word and (len(match[0]) > 3 or word[0].lower().startswith("area")) else None
