# SPDX-License-Identifier: Apache-2.0
"""English rules for dates, weekdays and decades."""

import re

from polyvox.text.languages.english.number_words import cardinal, decade, ordinal, year
from polyvox.text.languages.english.times import clock, count
from polyvox.text.languages.english.word_tables import FULL_MONTH, MONTHS, WEEKDAYS
from polyvox.text.rules import LEFT, TH, TO, Rules, before

DATES = Rules()
_MONTH = rf"(?P<month>(?:{FULL_MONTH})|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_THE = re.compile(r"\b[Tt]he $")
_DECADE_BEFORE = re.compile(r"\b(?:the|his|her|their|my|your|our|early|mid|late|in)[ -]$", re.IGNORECASE)


def _month(name: str) -> str:
    return next(month for month in MONTHS if month.startswith(name[:3]))


def _weekday_name(name: str) -> str:
    return next(day for day in WEEKDAYS if day.startswith(name[:3]))


def _date(month: str, day: str, year_of: str | None) -> str | None:
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{MONTHS[int(month) - 1]} {ordinal(str(int(day)))}" + (f", {year(year_of)}" if year_of else "")


def spoken_date(y: str = "", m: str = "", d: str = "") -> str | None:
    """A date of year, month and day, each of which may be missing; None if it is not a date."""
    if m and not m.isdigit():
        found = [index for index, name in enumerate(MONTHS, 1) if name.lower().startswith(m.lower()[:3])]
        m = str(found[0]) if found else "0"
    if (m and not 1 <= int(m) <= 12) or (d and not 1 <= int(d) <= 31):
        return None
    if len(y) == 2:
        y = _full_year(y)
    day, month = ordinal(str(int(d))) if d else "", MONTHS[int(m) - 1] if m else ""
    spoken = f"{month} {day}" if m and d else month or (f"the {day}" if d else "")
    return f"{spoken}{', ' if d else ' ' if m else ''}{year(y)}" if y else spoken


def _full_year(last_digits: str) -> str:
    return ("20" if int(last_digits) < 70 else "19") + last_digits


@DATES(
    "date",
    LEFT + r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?(?![\w-])",
)
def _iso(match: re.Match[str]) -> str | None:
    year_of, month, day, hour, minute, second, zone = match.groups()
    spoken = _date(month, day, year_of)
    if spoken is None or int(hour or 0) > 24 or int(minute or 0) > 59:
        return None
    spoken += f" at {clock(hour, minute)}" if hour else ""
    spoken += f" and {count(second, 'second')}" if second and int(second) else ""
    if zone:
        spoken += (
            " UTC" if zone == "Z" else f" UTC {'plus' if zone[0] == '+' else 'minus'} {cardinal(str(int(zone[1:3])))}"
        )
        spoken += f" {cardinal(zone[-2:])}" if zone[3:] and zone[-2:] != "00" else ""
    return spoken


@DATES("date", LEFT + r"(?<!/)(\d{4})/(\d\d?)/(\d\d?)(?![\w/])")
def _year_first(match: re.Match[str]) -> str | None:
    return _date(match[2], match[3], match[1])


@DATES("date", LEFT + r"(?<!/)(\d{1,2})/(\d{1,2})/(\d{4}|\d\d)(?![\w/])")
@DATES("date", LEFT + r"(?<!-)(\d{1,2})-(\d{1,2})-(\d{4})(?![\w-])")
def _month_first(match: re.Match[str]) -> str | None:
    first, second, year_of = match.groups()
    if len(year_of) == 2:
        year_of = _full_year(year_of)
    return _date(first, second, year_of) or _date(second, first, year_of)


@DATES("date", LEFT + r"(\d{1,2})\.(\d{1,2})\.((?:19|20)\d\d)(?!\w)(?!\.\d)")
def _day_first(match: re.Match[str]) -> str | None:
    day, month, year_of = match.groups()
    return _date(month, day, year_of) or _date(day, month, year_of)


@DATES("date", LEFT + rf"(?P<day>\d{{1,2}}){TH}? (?:of )?{_MONTH}(?:,? (?P<year>\d{{4}})(?![.,]?\d))?(?!\w)")
def _day_month(match: re.Match[str]) -> str | None:
    if not 1 <= int(match["day"]) <= 31:
        return None
    spoken = f"{ordinal(match['day'])} of {_month(match['month'])}" + (
        f" {year(match['year'])}" if match["year"] else ""
    )
    return spoken if _THE.search(before(match)) else f"the {spoken}"


@DATES(
    "date",
    rf"(?<!\w){_MONTH} (?P<day>\d{{1,2}}){TH}?(?:{TO}(?P<until>\d{{1,2}}){TH}?"
    rf"| (?P<join>and|or) (?P<other>\d{{1,2}}){TH}?(?=[,.;:!?)]|$| (?:at|in|for|from|is|are|was|were)\b))?"
    r"(?:,? (?P<year>\d{4})(?![.,]?\d))?(?![\w%])(?![.:,]\d)",
)
def _month_day(match: re.Match[str]) -> str | None:
    if not 1 <= int(match["day"]) <= 31:
        return None
    spoken = f"{_month(match['month'])} {ordinal(match['day'])}"
    spoken += f" to {ordinal(match['until'])}" if match["until"] else ""
    spoken += f" {match['join']} {ordinal(match['other'])}" if match["other"] else ""
    return spoken + (f", {year(match['year'])}" if match["year"] else "")


@DATES("date", rf"(?<!\w){_MONTH}(?= \d{{4}}(?!\w))")
def _month_year(match: re.Match[str]) -> str:
    return _month(match["month"])


@DATES("date", rf"(?<!\w)({_DAY})\.?,(?= {_MONTH}| \d)")
def _weekday(match: re.Match[str]) -> str:
    return f"{_weekday_name(match[1])},"


@DATES("date", rf"(?<!\w)({_DAY})\.?{TO}({_DAY})(?!\w)(?:\.(?= ?[a-z0-9]))?")
def _weekdays(match: re.Match[str]) -> str:
    return f"{_weekday_name(match[1])} to {_weekday_name(match[2])}"


@DATES("decade", r"(?<!\w)'?((?:1[1-9]|20)?[0-9]0)'?s(?!\w)")
def _decade(match: re.Match[str]) -> str | None:
    sure = len(match[1]) == 4 or match[0][0] == "'" or (match[1] != "00" and _DECADE_BEFORE.search(before(match)))
    return decade(match[1]) if sure else None


@DATES("year", r"(?<![\w'])'(\d\d)(?![\w'])(?!\.\d)")
def _short_year(match: re.Match[str]) -> str:
    return f"oh {cardinal(match[1][1])}" if match[1][0] == "0" else cardinal(match[1])
