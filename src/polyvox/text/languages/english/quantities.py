# SPDX-License-Identifier: Apache-2.0
"""English rules for money, measures, phone numbers, versions, fractions and plain numbers."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.dates import FULL_MONTH
from polyvox.text.languages.english.number_words import cardinal, digits, fraction, number, ordinal, roman, year
from polyvox.text.rules import LEFT, LETTER, NUM, SIGN, TH, TO, Rules, after, before

QUANTITIES = Rules()
_UNIT = "|".join(re.escape(unit) for unit in sorted(tables.UNITS, key=len, reverse=True))
_NOT_WITH_SPACE = ("in", "pt")  # "5 in the morning"
_CURRENCY = "".join(sign for sign in tables.MONEY if len(sign) == 1)
_CODES = "|".join(sign for sign in tables.MONEY if len(sign) == 3)
_LARGE = r"(?: ?(?P<large>(?:hundred|thousand|million|billion|trillion)\b|(?:[kKMBbTm]|bn|mn|tn)(?!\w)))?"
_PER = r"(?:/(?P<per>[A-Za-z]+))?"
_SMALL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RUNS = re.compile(rf"[0-9]+|{LETTER}+")
_ARTICLE = re.compile(r"\b[Aa]n? $")
_WORD_BEFORE = re.compile(r"\b([A-Z][a-z]+|(?:[Vv]ol|[Cc]h)\.) $")
_SEASONS = "in|since|years?|circa|until|till|born|died|spring|summer|autumn|fall|winter"
_YEAR_BEFORE = re.compile(rf"\b(?:{_SEASONS}|{FULL_MONTH}),? \(?$", re.IGNORECASE)
_OPERATOR_BEFORE = re.compile(r"[=+*/(^-] ?$")
_FEET_BEFORE = re.compile(r"\b(?:ft|feet|foot) $")
_PLURAL = re.compile(r" ([a-z]+s)\b")


def digit_runs(text: str) -> list[str]:
    """Letters unchanged; short digit runs as numbers, years as years, longer runs digit by digit."""
    return [run if run[0] not in "0123456789" else _digit_run(run) for run in _RUNS.findall(text)]


def _digit_run(run: str) -> str:
    if len(run) == 4 and "1900" <= run < "2100":
        return year(run)
    return cardinal(run) if len(run) < 3 else digits(run)


@QUANTITIES(
    "phone",
    r"(?<![\w.])(?:\+\d{1,3}(?:[ .-]?\(\d{1,4}\)|[ .-]\d{1,4}|\d{2,4}){1,5}|(?:1[ .-])?\(\d{3}\) ?\d{3}[-. ]\d{4}"
    r"|(?:1[.-])?\d{3}([.-])\d{3}\1\d{4}|\d{3}-\d{4})(?![\w-])(?!\.\d)",
)
def _phone(match: re.Match[str]) -> str | None:
    groups = re.findall(r"[0-9]+", match[0])
    if not 7 <= sum(map(len, groups)) <= 15:
        return None
    return ("plus " if match[0].startswith("+") else "") + ", ".join(map(digits, groups))


@QUANTITIES("code", LEFT + r"\d+(?:-\d+){2,}(?![\w-])")
def _groups(match: re.Match[str]) -> str:
    return ", ".join(map(digits, match[0].split("-")))


@QUANTITIES("number", LEFT + r"\d{1,3}(?: \d{3}){2,}(?![\w-])(?! \d)")
def _spaced(match: re.Match[str]) -> str:
    return cardinal(match[0].replace(" ", ""))


@QUANTITIES(
    "money",
    rf"(?P<minus>{SIGN})(?:(?<!\w)(?P<country>US|CA|C|AU|A|NZ))?"
    rf"(?P<sign>[{_CURRENCY}]|(?<!\w)(?:{_CODES})(?= ?\d)) ?(?P<amount>{NUM})(?:{TO}[{_CURRENCY}]?(?P<until>{NUM}))?"
    rf"{_LARGE}{_PER}",
)
@QUANTITIES(
    "money",
    rf"{LEFT}(?P<minus>{SIGN})(?P<country>)(?P<amount>{NUM})(?:{TO}(?P<until>{NUM}))?{_LARGE}"
    rf" ?(?P<sign>[€£¥₹₩₽₿]|(?:{_CODES})(?!\w)){_PER}",
)
def _money(match: re.Match[str]) -> str:
    one, many, *cents = tables.MONEY[match["sign"]]
    country = tables.COUNTRIES.get(match["country"] or "", "")
    one, many = f"{country} {one}".strip(), f"{country} {many}".strip()
    if _ARTICLE.search(before(match)):
        many = one
    amount, large = match["amount"], match["large"] or ""
    whole, _, decimals = amount.partition(".")
    if large or match["until"] or len(decimals) != 2 or not cents:
        spoken = number(amount) + (f" to {number(match['until'])}" if match["until"] else "")
        spoken += f" {tables.MAGNITUDES.get(large, large)}" if large else ""
        spoken += f" {one if spoken == 'one' else many}"
    else:
        kept = [f"{number(whole)} {one if whole == '1' else many}"] if whole.strip("0,") else []
        if int(decimals) or not kept:
            coin = cents[0] if decimals != "01" else {"cents": "cent", "pence": "penny"}.get(cents[0], cents[0])
            kept.append(f"{cardinal(str(int(decimals)))} {coin}")
        spoken = " and ".join(kept)
    return ("minus " if match["minus"] else "") + spoken + _per(match["per"])


def _per(unit: str | None) -> str:
    return f" per {tables.PER.get(unit) or tables.UNITS.get(unit, [unit])[0]}" if unit else ""


@QUANTITIES("height", LEFT + r"(\d)' ?(\d{1,2})(?:\"|''|(?!\w))")
def _height(match: re.Match[str]) -> str:
    return f"{cardinal(match[1])} foot {cardinal(match[2])}"


@QUANTITIES("version", r"(?<!\w)(?<!\d\.)(?:([vV])\.?(\d+(?:\.\d+)*)|(\d+(?:\.\d+){2,}))(?!\w)(?!\.\d)")
def _version(match: re.Match[str]) -> str:
    numbers = (match[2] or match[3]).split(".")
    spoken = (" dot " if len(numbers) == 4 and not match[1] else " point ").join(map(cardinal, numbers))
    return f"version {spoken}" if match[1] else spoken


@QUANTITIES("fraction", LEFT + r"(?P<whole>\d+[ -])?(?P<over>\d{1,4})/(?P<under>\d{1,4})(?![\w/])(?!\.\d)")
def _fraction(match: re.Match[str]) -> str:
    over, under, whole = match["over"], match["under"], (match["whole"] or "").rstrip(" -")
    if not whole and f"{over}/{under}" in ("24/7", "9/11"):
        return f"{cardinal(over)} {cardinal(under)}"
    if len(over) == 4 and len(under) == 2:  # a season
        return f"{year(over)} {cardinal(under)}"
    spoken = fraction(over, under) if under.strip("0") else f"{cardinal(over)} slash {cardinal(under)}"
    return f"{cardinal(whole)} and {'a' + spoken[3:] if spoken.startswith('one ') else spoken}" if whole else spoken


@QUANTITIES(
    "measure",
    rf"{LEFT}(?P<amount>{SIGN}{NUM})(?:{TO}(?P<until>{SIGN}{NUM})| ?[x×] ?(?P<by>{NUM}))?(?P<gap>[ -]?)"
    rf"(?P<unit>{_UNIT})(?P<power>\^?[23²³])?{_PER}(?!\w)",
)
def _measure(match: re.Match[str]) -> str | None:
    unit, gap, amount = match["unit"], match["gap"], match["amount"]
    if gap == " " and unit in _NOT_WITH_SPACE and not _FEET_BEFORE.search(before(match)):
        return None
    one, *many = tables.UNITS[unit]
    singular = gap == "-" or (amount.lstrip("-−±") == "1" and not match["until"]) or _ARTICLE.search(before(match))
    name = one if singular else many[0] if many else one + "s"
    if match["power"]:
        name = {"2": "square ", "3": "cubic "}[match["power"].translate(_SMALL)[-1]] + name
    spoken = number(amount) + (f" to {number(match['until'])}" if match["until"] else "")
    return spoken + (f" by {number(match['by'])}" if match["by"] else "") + f" {name}{_per(match['per'])}"


@QUANTITIES("by", rf"{LEFT}({NUM})(?:[x×]({NUM})|(?: x ({NUM})))(?: ?[x×] ?({NUM}))?(?!\w)")
def _by(match: re.Match[str]) -> str:
    sides = [side for side in match.groups() if side]
    return " by ".join(year(side) if len(side) == 4 and side.isdigit() else number(side) for side in sides)


@QUANTITIES("times", rf"{LEFT}({NUM})[x×](?!\w)")
def _times(match: re.Match[str]) -> str | None:
    if _OPERATOR_BEFORE.search(before(match)):
        return None  # 2x in an equation
    return f"{number(match[1])} times"


@QUANTITIES("science", rf"{LEFT}({SIGN}{NUM})[eE]([+-]?\d+)(?!\w)")
def _science(match: re.Match[str]) -> str:
    return f"{number(match[1])} times ten to the power of {number(match[2].lstrip('+'))}"


@QUANTITIES("ordinal", rf"{LEFT}(\d{{1,3}}(?:,\d{{3}})+|\d+){TH}(?!\w)")
def _ordinal(match: re.Match[str]) -> str:
    return ordinal(match[1])


@QUANTITIES("power", r"(?<=[\w)\]])(?:\^(?P<caret>-?\d+|\{-?\d+\}|\(-?\d+\))|(?P<small>[⁻⁺]?[⁰¹²³⁴-⁹]+))")
def _power(match: re.Match[str]) -> str:
    exponent = (match["caret"] or match["small"]).translate(_SMALL).strip("{}()+")
    return {"2": "squared", "3": "cubed"}.get(exponent) or f"to the power of {number(exponent)}"


@QUANTITIES("number", r"(?<!\w)(?:#|№ ?|[Nn]o(s?)\. ?)(\d+)(?!\w)")
def _numbered(match: re.Match[str]) -> str:
    return f"number{match[1] or ''} {cardinal(match[2])}"


@QUANTITIES("range", rf"{LEFT}(?P<first>{SIGN}{NUM})(?P<to>{TO})(?P<last>{NUM})(?![\w-])(?!\.\d)")
def _range(match: re.Match[str]) -> str:
    first, last = match["first"], match["last"]
    larger = (len(first), first) > (len(last), last)
    if match["to"] == " - " and (larger or after(match).startswith(" =")):
        return f"{number(first)} minus {number(last)}"
    say = year if all(len(end) == 4 and "1000" <= end < "2100" for end in (first, last)) else number
    return f"{say(first)} to {say(last)}"


@QUANTITIES("number", rf"{LEFT}(?P<number>{SIGN}{NUM})(?:(?P<large>[kKMB]|bn|mn|tn)(?!\w)|(?![^\W_]))")
def _number(match: re.Match[str]) -> str | None:
    text = match["number"]
    if match["large"]:
        if (match["large"] == "B" and _WORD_BEFORE.search(before(match))) or match[0] in ("2K", "4K", "8K"):
            return None  # Gate 5B, a 4K screen
        return f"{number(text)} {tables.MAGNITUDES[match['large']]}"
    if len(text) == 4 and text.isdigit() and "1000" <= text < "2100":
        plural = _PLURAL.match(after(match))
        if _YEAR_BEFORE.search(before(match)) or (text >= "1900" and (not plural or plural[1] in tables.NOT_PLURALS)):
            return year(text)
    return number(text)


@QUANTITIES("roman", r"(?<!\w)(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})(?![\w'-])")
def _roman(match: re.Match[str]) -> str | None:
    word = _WORD_BEFORE.search(before(match))
    if not word or (word[1] not in tables.NUMBERED_NOUNS and (word[1] in tables.NOT_NAMES or len(match[0]) < 2)):
        return None
    value = str(roman(match[0]))
    return f"the {ordinal(value)}" if word[1] in tables.REGNAL else cardinal(value)


@QUANTITIES("digits", r"\d+")
@QUANTITIES("letters and digits", rf"(?<![^\W_])(?={LETTER}*\d)(?:\d|{LETTER}){{2,}}")
def _digit_runs(match: re.Match[str]) -> str:
    return " ".join(digit_runs(match[0]))
