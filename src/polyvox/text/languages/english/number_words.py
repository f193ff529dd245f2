# SPDX-License-Identifier: Apache-2.0
"""Numbers as English words."""

import re
import unicodedata
from functools import lru_cache

from num2words import num2words

MAX_DIGITS = 15  # longer numbers are read digit by digit
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FRACTIONS = {2: ("half", "halves"), 4: ("quarter", "quarters")}
_LARGE_DENOMINATORS = (32, 50, 64, 100, 1000)  # of those above 20, the ones that are read as ordinals
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_ROMAN = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")


@lru_cache(4096)
def _words(number: int, to: str) -> str:
    return num2words(number, to=to).replace(",", "").replace(" and ", " ")


def digits(text: str, zero: str = "zero") -> str:
    """Each digit as a word; other characters are skipped."""
    return " ".join(zero if char == "0" else DIGITS[int(char)] for char in text if char in "0123456789")


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
    """An ordinal number: 21 as "twenty-first", 99.9 as "ninety-nine point ninth"."""
    bare = text.replace(",", "")
    whole, _, decimals = bare.partition(".")
    if decimals:
        *first, last = digits(decimals).split()
        return " ".join([number(whole), "point", *first, _words(DIGITS.index(last), "ordinal")])
    return _words(int(bare), "ordinal") if len(bare) <= MAX_DIGITS else digits(bare)


def year(text: str) -> str:
    """A year of four digits: 1905 as "nineteen oh five", 2100 as "twenty-one hundred"."""
    value = int(text)
    if 2000 <= value < 2010 or not 1000 <= value < 10000 or value % 1000 == 0:
        return _words(value, "cardinal")
    return pair(text)


def pair(text: str) -> str:
    """Three or four digits as two numbers: 1080 as "ten eighty", 404 as "four oh four", 800 as "eight hundred"."""
    first, last = str(int(text[:-2])), text[-2:]
    if last == "00":
        return f"{cardinal(first)} hundred"
    return f"{cardinal(first)} {'oh ' if last[0] == '0' else ''}{cardinal(str(int(last)))}"


def decade(text: str) -> str:
    """1990 as "nineteen nineties", 90 as "nineties"."""
    if len(text) == 4 and text.endswith("00"):
        return ("two thousand" if text == "2000" else year(text)) + "s"
    tens = cardinal(text[-2:])
    tens = tens[:-1] + "ies" if tens.endswith("y") else tens + "s"
    return f"{cardinal(text[:2])} {tens}" if len(text) == 4 else tens


def fraction(over: str, under: str) -> str:
    """3/4 as "three quarters", 45/60 as "forty-five out of sixty", 120/80 as "one hundred twenty over eighty"."""
    top, bottom = int(over), int(under)
    if not 0 < top < bottom or (bottom > 20 and bottom not in _LARGE_DENOMINATORS):
        return f"{cardinal(over)} {'out of' if top <= bottom else 'over'} {cardinal(under)}"
    names = _FRACTIONS.get(bottom, (ordinal(under), ordinal(under) + "s"))
    return f"{cardinal(over)} {names[top != 1]}"


def vulgar_fraction(char: str) -> str:
    """The words of a character such as ¾."""
    return unicodedata.name(char).removeprefix("VULGAR FRACTION ").lower()


def roman(text: str) -> int | None:
    """The value of a Roman numeral from 1 to 3999; None if it is not one."""
    if not text or not _ROMAN.fullmatch(text):
        return None
    values = [_ROMAN_VALUES[char] for char in text]
    return sum(-v if v < w else v for v, w in zip(values, [*values[1:], 0], strict=True))
