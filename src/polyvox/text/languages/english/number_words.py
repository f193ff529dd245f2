# SPDX-License-Identifier: Apache-2.0
"""Numbers as English words."""

from functools import lru_cache

from num2words import num2words

MAX_DIGITS = 15  # longer numbers are read digit by digit
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FRACTIONS = {2: ("half", "halves"), 4: ("quarter", "quarters")}


@lru_cache(4096)
def _words(number: int, to: str) -> str:
    return num2words(number, to=to).replace(",", "").replace(" and ", " ")


def digits(text: str) -> str:
    """Each digit as a word; other characters are skipped."""
    return " ".join(DIGITS[int(char)] for char in text if char in "0123456789")


def cardinal(text: str) -> str:
    """An integer, possibly with thousands separators; 007 and very long numbers digit by digit."""
    bare = text.replace(",", "")
    if len(bare) > MAX_DIGITS or (len(bare) > 1 and bare[0] == "0"):
        return digits(bare)
    return _words(int(bare), "cardinal")


def number(text: str) -> str:
    """A number with an optional sign and decimals."""
    sign = {"-": "minus ", "−": "minus ", "+": "plus ", "±": "plus or minus "}.get(text[0], "")
    whole, _, decimals = text.lstrip("-−+±").partition(".")
    words = cardinal(whole) if whole else ""
    return sign + (f"{words} point {digits(decimals)}" if decimals else words).strip()


def ordinal(text: str) -> str:
    bare = text.replace(",", "")
    return _words(int(bare), "ordinal") if len(bare) <= MAX_DIGITS else digits(bare)


def year(text: str) -> str:
    value = int(text)
    if 2000 <= value < 2010 or not 1000 <= value < 10000 or value % 1000 == 0:
        return _words(value, "cardinal")
    return _words(value, "year").replace("oh-", "oh ")


def decade(text: str) -> str:
    """1990 as "nineteen nineties", 90 as "nineties"."""
    if len(text) == 4 and text.endswith("00"):
        return ("two thousand" if text == "2000" else year(text)) + "s"
    tens = cardinal(text[-2:])
    tens = tens[:-1] + "ies" if tens.endswith("y") else tens + "s"
    return f"{cardinal(text[:2])} {tens}" if len(text) == 4 else tens


def fraction(over: str, under: str) -> str:
    top, bottom = int(over), int(under)
    if not 0 < top < bottom or (bottom > 20 and bottom not in (32, 50, 64, 100)):
        return f"{cardinal(over)} {'out of' if top <= bottom else 'over'} {cardinal(under)}"
    names = _FRACTIONS.get(bottom, (ordinal(under), ordinal(under) + "s"))
    return f"{cardinal(over)} {names[top != 1]}"


def roman(text: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10}[char] for char in text]
    return sum(-v if v < w else v for v, w in zip(values, [*values[1:], 0], strict=True))
