# SPDX-License-Identifier: Apache-2.0
"""English rules for measures: a number and a unit, sizes, angles and heights."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.context import is_adjective
from polyvox.text.languages.english.number_words import cardinal, fraction, number, pair, vulgar_fraction, year
from polyvox.text.rules import LEFT, NUM, SIGN, TO, Rules, after, before

MEASURES = Rules()
_UNIT = "|".join(re.escape(unit) for unit in sorted(tables.UNITS, key=len, reverse=True))
_NOT_WITH_SPACE = ("in", "pt")  # "5 in the morning"
_ONE_LETTER = ("A",)  # "Gate 5 A"
_POWERS = {"2": "square ", "3": "cubic "}
_SMALL = str.maketrans("²³", "23")
_FEET_BEFORE = re.compile(r"\b(?:ft|feet|foot)\.? $")
_CAPITALISED_BEFORE = re.compile(r"\b[A-Z][a-z]*\.? $")
_OPEN_QUOTE = re.compile(r'(?:^|[\s(\[=:,])"[^"\n]*$|\w-$')
_NOUN_AFTER = re.compile(" [a-z]")
_AMPERES_AFTER = re.compile(
    r"$|[.,;:!?)]| (?:fuse|plug|breaker|socket|outlet|charger|circuit|current|supply|adapter|cable|at|of|and|or|max)\b"
)


def per_unit(unit: str | None, power: str | None = None) -> str:
    """ " per second squared" for "s" and "2"; an empty text without a unit."""
    if not unit:
        return ""
    name = tables.PER.get(unit) or tables.UNITS.get(unit, [unit])[0]
    return f" per {name}" + ({"2": " squared", "3": " cubed"}[power.translate(_SMALL)[-1]] if power else "")


@MEASURES("height", LEFT + r"(\d{1,2})['′] ?(\d{1,2})(?:[\"″]|''|(?!\w))")
def _height(match: re.Match[str]) -> str | None:
    return f"{cardinal(match[1])} foot {cardinal(match[2])}" if int(match[2]) < 12 else None


@MEASURES("angle", LEFT + rf"({SIGN}\d+)° ?(\d{{1,2}})['′](?: ?(\d{{1,2}}(?:\.\d+)?)[\"″])?")
def _angle(match: re.Match[str]) -> str:
    counts = [(match[1], "degree"), (match[2], "minute"), (match[3], "second")]
    return " ".join(f"{number(value)} {name}{'' if value == '1' else 's'}" for value, name in counts if value)


@MEASURES("inches", rf"{LEFT}({NUM})[\"″]? ?[x×] ?({NUM})(?: ?[x×] ?({NUM}))?[\"″](?!\w)")
def _inches_by(match: re.Match[str]) -> str:
    return " by ".join(number(side) for side in match.groups() if side) + (
        " inch" if is_adjective(match) else " inches"
    )


@MEASURES("inches", rf"{LEFT}(?:(?P<whole>\d+)[ -])?(?P<over>\d{{1,2}})/(?P<under>\d{{1,2}})(?P<sign>[\"″])(?!\w)")
@MEASURES("inches", rf"{LEFT}(?P<amount>{NUM})(?P<sign>[\"″])(?!\w)")
def _inches(match: re.Match[str]) -> str | None:
    if match["sign"] == '"' and _OPEN_QUOTE.search(before(match)):
        return None  # the end of a quotation
    fields = match.groupdict()
    if "amount" in fields:
        return f"{number(match['amount'])} {'inch' if match['amount'] == '1' or is_adjective(match) else 'inches'}"
    spoken = fraction(match["over"], match["under"])
    if match["whole"]:
        unit = "inch" if _NOUN_AFTER.match(after(match)) else "inches"
        return f"{cardinal(match['whole'])} and {spoken.replace('one ', 'a ', 1)} {unit}"
    return f"{spoken} inch" if _NOUN_AFTER.match(after(match)) else f"{spoken} of an inch"


@MEASURES("feet", rf"{LEFT}({NUM})(?:′|'(?= (?:tall|wide|long|high|deep|away|by)\b))(?!\w)")
def _feet(match: re.Match[str]) -> str:
    return f"{number(match[1])} {'foot' if match[1] == '1' or is_adjective(match) else 'feet'}"


@MEASURES("percent", rf"{LEFT}({SIGN}{NUM})%{TO}({NUM})%")
def _percent_range(match: re.Match[str]) -> str:
    return f"{number(match[1])} to {number(match[2])} percent"


@MEASURES("resolution", LEFT + r"(240|360|480|576|720|1080|1440|2160|4320)([pi])(?!\w)")
def _resolution(match: re.Match[str]) -> str:
    return f"{pair(match[1])} {match[2]}"


@MEASURES(
    "measure",
    rf"{LEFT}(?P<amount>{SIGN}{NUM})(?:{TO}(?P<until>{SIGN}{NUM})| ?[x×] ?(?P<by>{NUM}))?(?P<gap>[ -]?)"
    rf"(?:(?P<kind>sq|cu)\.? )?(?P<unit>{_UNIT})(?P<power>\^?[23²³])?"
    r"(?:/(?P<per>[A-Za-z]+)(?P<per_power>\^?[23²³])?)?(?!\w|\.\w)(?P<dot>\.(?= [a-z]|[,;:)])|(?<=ft)\.(?= \d))?",
)
def _measure(match: re.Match[str]) -> str | None:
    unit, gap, amount = match["unit"], match["gap"], match["amount"]
    if (
        gap == " "
        and unit in _NOT_WITH_SPACE
        and not (match["dot"] or match["kind"] or _FEET_BEFORE.search(before(match)))
    ):
        return None
    if unit in _ONE_LETTER and "." not in amount and not _is_current(match):
        return None
    one, *many = tables.UNITS[unit]
    singular = gap == "-" or (amount.lstrip("-−±") == "1" and not match["until"]) or is_adjective(match)
    name = one if singular else many[0] if many else one + "s"
    if match["power"]:
        name = _POWERS[match["power"].translate(_SMALL)[-1]] + name
    elif match["kind"]:
        name = ("square " if match["kind"] == "sq" else "cubic ") + name
    spoken = number(amount) + (f" to {number(match['until'])}" if match["until"] else "")
    spoken += f" by {number(match['by'])}" if match["by"] else ""
    return spoken + f" {name}{per_unit(match['per'], match['per_power'])}"


@MEASURES("measure", rf"{LEFT}(?:(\d+) ?)?([¼½¾⅐-⅞]) ?({_UNIT})(?!\w)")
def _fraction_measure(match: re.Match[str]) -> str | None:
    if match[3] in (*_NOT_WITH_SPACE, *_ONE_LETTER):
        return None
    one, *many = tables.UNITS[match[3]]
    part = vulgar_fraction(match[2])
    if not match[1]:
        return f"{part} {one}"
    return f"{cardinal(match[1])} and {part.replace('one ', 'a ', 1)} {many[0] if many else one + 's'}"


def _is_current(match: re.Match[str]) -> bool:
    """Whether "A" after an integer is amps: "a 10 A fuse", but not "Gate 5 A" or "five A grades"."""
    is_label = match["gap"] != " " or _CAPITALISED_BEFORE.search(before(match))
    return not is_label and _AMPERES_AFTER.match(after(match)) is not None


@MEASURES("by", r"(?<=[a-z] )[x×](?= \d)")
def _by_sign(match: re.Match[str]) -> str | None:
    return "by" if re.search(rf"[0-9] ?(?:{_UNIT}) $", before(match)) else None


@MEASURES("by", rf"{LEFT}({NUM})(?:[x×]({NUM})|(?: x ({NUM})))(?: ?[x×] ?({NUM}))?(?!\w)")
def _by(match: re.Match[str]) -> str:
    sides = [side for side in match.groups() if side]
    return " by ".join(year(side) if len(side) == 4 and side.isdigit() else number(side) for side in sides)
