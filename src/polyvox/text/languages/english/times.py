# SPDX-License-Identifier: Apache-2.0
"""English rules for times of day, durations and ratios."""

import re

from polyvox.text.languages.english.number_words import cardinal, pair
from polyvox.text.rules import LEFT, TO, Rules, after, before

TIMES = Rules()
_HALF = r"(?: ?(?P<half{0}>[ap]|[AP](?=\.?[Mm]))\.?[mM](?!\w)\.?)"
_POINT_IN_TIME = re.compile(r"\b(?:at|by|until|till|since|before|after|from) $", re.IGNORECASE)


def count(text: str, name: str) -> str:
    """A number and a noun, singular after one."""
    value = str(int(text))
    return f"{cardinal(value)} {name}{'' if value == '1' else 's'}"


def clock(hour: str, minute: str, half: str = "") -> str:
    """A time of day: 9:05 as "nine oh five", 14:00 as "fourteen hundred hours"."""
    spoken = cardinal(str(int(hour)))
    if minute != "00":
        spoken += f" oh {cardinal(minute[1])}" if minute[0] == "0" else f" {cardinal(minute)}"
    elif not half:
        spoken += " o'clock" if 0 < int(hour) <= 12 else " hundred hours"
    return spoken + (f" {half.lower()}.m." if half else "")


def duration(*parts: str | None) -> str:
    """Hours, minutes and seconds, those that are given."""
    spans = zip(parts, ("hour", "minute", "second"), strict=True)
    *first, last = [count(part, name) for part, name in spans if part]
    return " ".join([*first, "and", last]) if len(first) > 1 else " ".join([*first, last])


@TIMES(
    "time",
    rf"{LEFT}(?P<hour>\d{{1,2}})(?::(?P<minute>\d\d))?{_HALF.format(1)}?{TO}"
    rf"(?P<hour2>\d{{1,2}})(?::(?P<minute2>\d\d))?{_HALF.format(2)}?(?![\w:])",
)
def _time_range(match: re.Match[str]) -> str | None:
    hours, minutes = (match["hour"], match["hour2"]), (match["minute"], match["minute2"])
    if not (all(minutes) or match["half2"]) or int(max(hours, key=int)) > 24 or any(int(m or 0) > 59 for m in minutes):
        return None
    # "8-9 pm" is "eight to nine p.m."
    bare = match["half2"] and not match["half1"] and (minutes[0] or "00") == "00"
    first = cardinal(str(int(hours[0]))) if bare else clock(hours[0], minutes[0] or "00", match["half1"] or "")
    return f"{first} to {clock(hours[1], minutes[1] or '00', match['half2'] or '')}"


@TIMES("time", LEFT + rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::(?P<second>\d\d))?{_HALF.format('')}?(?![\w:])")
@TIMES("time", LEFT + rf"(?P<hour>\d{{1,2}})\.(?P<minute>\d\d)(?P<second>){_HALF.format('')}(?![\w:])")
def _time(match: re.Match[str]) -> str | None:
    hour, minute, second, half = match["hour"], match["minute"], match["second"], match["half"] or ""
    if int(hour) > 24 or int(minute) > 59 or int(second or 0) > 59:
        return None
    if second and not half and len(hour) == 1 and not _POINT_IN_TIME.search(before(match)):
        return duration(hour, minute, second)
    spoken = clock(hour, minute, half)
    if not second:
        return spoken
    seconds = f" and {count(second, 'second')}"
    return spoken.removesuffix(f" {half.lower()}.m.") + seconds + f" {half.lower()}.m." if half else spoken + seconds


@TIMES("time", LEFT + rf"(?P<hour>1[0-2]|0?[1-9]){_HALF.format('')}")
def _hour(match: re.Match[str]) -> str:
    return clock(match["hour"], "00", match["half"])


@TIMES("time", LEFT + r"([01]\d|2[0-3])([0-5]\d)(?= hours\b)")
def _military(match: re.Match[str]) -> str | None:
    if match[0] in ("1000", "2000") or after(match).startswith(" hours of"):
        return None
    return ("zero " if match[0][0] == "0" else "") + pair(match[0])


@TIMES("time", LEFT + r"(\d{1,4})h ?(\d{1,2})m(?:in)?(?: ?(\d{1,2})s)?(?!\w)")
@TIMES("time", LEFT + r"()(\d{1,3})m(?:in)? ?(\d{1,2})s(?!\w)")
def _duration_units(match: re.Match[str]) -> str:
    return duration(*match.groups())


@TIMES("time", LEFT + r"([2-5]\d):([0-5]\d)(?![\w:])")
def _minutes_and_seconds(match: re.Match[str]) -> str:
    return pair(match[1] + match[2])


@TIMES("ratio", LEFT + r"\d+(?::\d+)+(?![\w:])")
def _ratio(match: re.Match[str]) -> str:
    return " to ".join(map(cardinal, match[0].split(":")))
