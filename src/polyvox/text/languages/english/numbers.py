# SPDX-License-Identifier: Apache-2.0
"""English rules for versions, fractions, ordinals, ranges, codes of letters and digits, and plain numbers."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.context import is_year
from polyvox.text.languages.english.formulas import formula
from polyvox.text.languages.english.number_words import cardinal, digits, fraction, number, ordinal, pair, year
from polyvox.text.rules import LEFT, LETTER, NUM, SIGN, TH, TO, Rules, after, before

NUMBERS = Rules()
_SMALL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RUNS = re.compile(rf"[0-9]+|{LETTER}+")
_OPERATOR_BEFORE = re.compile(r"[=+*/(^-] ?$")
_OPERATOR_AFTER = re.compile(r" ?[=+*/^<>≤≥-]")
_NOUN_AFTER = re.compile(r" [a-z]")
_LETTER_K_AFTER = re.compile(r" (?:run|race|resolution|display|video|TV|monitor|screen)\b")  # a 5K run
_CODE_BEFORE = re.compile(r"\w-$")  # ISO-8859-1
_MIN_DIGITS_READ_ALONE = 10  # of a number without separators, unless it is round
_PAIRS = ("24/7", "9/11", "50/50", "20/20", "60/40", "80/20", "6/8")


def digit_runs(text: str) -> list[str]:
    """Letters unchanged; short digit runs as numbers, years as years, longer runs digit by digit."""
    return [run if run[0] not in "0123456789" else _digit_run(run) for run in _RUNS.findall(text)]


def _digit_run(run: str) -> str:
    if len(run) == 4 and "1900" <= run < "2100":
        return year(run)
    return cardinal(run) if len(run) < 3 else digits(run)


@NUMBERS("section", r"(?<!\w)(401|403|457|501|529)(?:\(([a-z])\)|(?P<k>k)(?!\w))(?:\((\d)\))?")
def _tax_section(match: re.Match[str]) -> str:
    """The sections of American tax law: 401(k), 501(c)(3)."""
    spoken = f"{digits(match[1], zero='oh')} {match[2] or match['k']}"
    return f"{spoken} {cardinal(match[4])}" if match[4] else spoken


@NUMBERS("number", LEFT + r"\d{1,3}(?: \d{3}){2,}(?![\w-])(?! \d)")
def _spaced(match: re.Match[str]) -> str:
    return cardinal(match[0].replace(" ", ""))


@NUMBERS("version", r"(?<!\w)(?<!\d\.)(?:(v\.?(?=\d)|V\.?(?=\d+\.))(\d+(?:\.\d+)*)|(\d+(?:\.\d+){2,}))(?!\w)(?!\.\d)")
def _version(match: re.Match[str]) -> str:
    numbers = (match[2] or match[3]).split(".")
    spoken = (" dot " if len(numbers) == 4 and not match[1] else " point ").join(map(cardinal, numbers))
    return f"version {spoken}" if match[1] else spoken


@NUMBERS(
    "fraction",
    rf"{LEFT}(?P<whole>\d+[ -])?(?P<over>\d{{1,4}})/(?P<under>\d{{1,4}})(?:{TH}s?)?(?![\w/])(?!\.\d)"
    r"(?P<by> ?[x×] ?(?=\d))?",
)
def _fraction(match: re.Match[str]) -> str:
    over, under, whole = match["over"], match["under"], (match["whole"] or "").rstrip(" -")
    if not whole and f"{over}/{under}" in _PAIRS:
        return f"{cardinal(over)} {cardinal(under)}"
    if len(over) == 4 and len(under) == 2:  # a season
        return f"{year(over)} {cardinal(under)}"
    spoken = fraction(over, under) if under.strip("0") else f"{cardinal(over)} slash {cardinal(under)}"
    spoken = f"{cardinal(whole)} and {'a' + spoken[3:] if spoken.startswith('one ') else spoken}" if whole else spoken
    return f"{spoken} by" if match["by"] else spoken


@NUMBERS("division", LEFT + rf"({NUM}) / (?={NUM})(?!{NUM} /)")
def _division(match: re.Match[str]) -> str | None:
    if before(match).endswith("/ "):
        return None  # one of several alternatives
    return f"{number(match[1])} divided by"


@NUMBERS("times", rf"{LEFT}({NUM})[x×](?!\w)")
def _times(match: re.Match[str]) -> str | None:
    if _OPERATOR_BEFORE.search(before(match)) or _OPERATOR_AFTER.match(after(match)):
        return None  # 2x in an equation
    return f"{number(match[1])} times"


@NUMBERS("science", rf"{LEFT}({SIGN}{NUM})[eE]([+-]?\d+)(?!\w)")
def _science(match: re.Match[str]) -> str:
    return f"{number(match[1])} times ten to the power of {number(match[2].lstrip('+'))}"


@NUMBERS("ordinal", rf"{LEFT}(\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?)(?:{TH}|ST|ND|RD|TH)(?!\w)")
def _ordinal(match: re.Match[str]) -> str:
    return ordinal(match[1])


@NUMBERS("power", r"(?<=[\w)\]])(?:\^(?P<caret>-?\d+|\{-?\d+\}|\(-?\d+\))|(?P<small>[⁻⁺]?[⁰¹²³⁴-⁹]+))")
def _power(match: re.Match[str]) -> str:
    exponent = (match["caret"] or match["small"]).translate(_SMALL).strip("{}()+")
    return {"2": "squared", "3": "cubed"}.get(exponent) or f"to the power of {number(exponent)}"


@NUMBERS("power", rf"(?<=[\w)\]])\^(?:({LETTER})(?!\w)|\{{([^{{}}\n]{{1,20}})\}})")
def _power_letters(match: re.Match[str]) -> str:
    return f"to the power of {match[1] or formula(match[2])}"


@NUMBERS("number", r"(?<!\w)(?:#|№ ?|[Nn]o(s?)\. ?)(\d+)(?!\w)")
def _numbered(match: re.Match[str]) -> str:
    return f"number{match[1] or ''} {cardinal(match[2])}"


@NUMBERS("range", rf"{LEFT}(?P<first>{SIGN}{NUM})(?P<to>{TO})(?P<last>{NUM})(?![\w-])(?!\.\d)")
def _range(match: re.Match[str]) -> str:
    first, last = match["first"], match["last"]
    if _CODE_BEFORE.search(before(match)):
        return f"{number(first)} {number(last)}"
    larger = (len(first), first) > (len(last), last)
    is_first_year = len(first) == 4 and first.isdigit() and "1000" <= first < "2100"
    if is_first_year and first >= "1200" and match["to"].strip() == match["to"] and len(last) == 2 and last > first[2:]:
        return f"{year(first)} to {cardinal(last)}"  # 1939-45
    if match["to"] == " - " and (larger or after(match).startswith(" =")):
        return f"{number(first)} minus {number(last)}"
    if first == last and len(first) == 2:  # 50-50
        return f"{number(first)} {number(last)}"
    say = year if is_first_year and len(last) == 4 and "1000" <= last < "2100" else number
    return f"{say(first)} to {say(last)}"


@NUMBERS("number", rf"{LEFT}(?P<number>{SIGN}{NUM})(?:(?P<large>[kKMB]|bn|mn|tn)(?!\w)|(?![^\W_]))")
def _number(match: re.Match[str]) -> str | None:
    text, large = match["number"], match["large"]
    if large:
        is_part_of_name = before(match).endswith("-")  # i7-8700K, Qwen3-1.7B
        if match[0] in ("2K", "4K", "8K") or (is_part_of_name and "." not in text):
            return None
        if is_part_of_name or (large == "K" and _LETTER_K_AFTER.match(after(match))):
            return f"{number(text)} {large}"
        if large == "B" and not ("." in text or _NOUN_AFTER.match(after(match))):
            return None  # Gate 5B, 221B Baker Street
        return f"{number(text)} {tables.MAGNITUDES[large]}"
    if text.isdigit() and len(text) >= _MIN_DIGITS_READ_ALONE and not text.endswith("000"):
        return digits(text)
    return year(text) if is_year(match, text) else number(text)


@NUMBERS("codec", r"(?<!\w)H\.(26[1-6])(?!\w)")
def _codec(match: re.Match[str]) -> str:
    return f"H {pair(match[1])}"


@NUMBERS("letters and number", r"(?<![^\W_])([A-Z]{1,4})(\d+\.\d+)(?![\w.])")
def _letters_and_number(match: re.Match[str]) -> str:
    return f"{match[1]} {number(match[2])}"


@NUMBERS("digits", r"\d+")
@NUMBERS("letters and digits", rf"(?<![^\W_])(?={LETTER}*\d)(?:\d|{LETTER}){{2,}}")
def _digit_runs(match: re.Match[str]) -> str:
    return " ".join(digit_runs(match[0]))
