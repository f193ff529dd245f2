# SPDX-License-Identifier: Apache-2.0
"""Rules that European languages share: patterns of dates, times, amounts and numbers with a decimal comma."""

import re
from collections.abc import Callable, Iterable

from polyvox.text.languages.grammar import Grammar, Noun
from polyvox.text.languages.language_rules import LanguageRules
from polyvox.text.rules import LEFT, SIGN, TO, Rules, after, before

NUM = r"(?:\d{1,3}(?:[.  ]\d{3})+(?!\d)(?:,\d+)?|\d+(?:,\d+)?)"
# An amount may also have a decimal point, or the separators of English.
_AMOUNT = r"(?:\d{1,3}(?:,\d{3})+\.\d{1,2}(?!\d)|" + NUM[3:-1] + r"(?!\.\d{1,2}(?!\d))|\d+\.\d{1,2}(?![0-9.]))"
_TIGHT_TO = r"(?: ?[-–—] ?)"
_WORD_AFTER = re.compile(r" ([^\W0-9_]+)")
_LAST_WORD = re.compile(r"([^\W0-9_]+)[.,]? $")
_ROMAN = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_TRAILING = ".,;:!?)]}'\"*_~…»"
_CAPITAL_AFTER = re.compile(r" [A-ZÀ-ÖØ-ÞА-ЯЁ]")
_TOP_DOMAINS = "com|org|net|info|io|de|fr|es|it|pt|br|ru|eu|ch|at"
_TAIL = 48  # characters before the end of a word that decide whether it joins the next


def _alternatives(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


def _bounded(names: Iterable[str]) -> str:
    """Names that end at a word boundary, unless they end with a sign."""
    return "|".join(
        re.escape(name) + (r"(?!\w)" if name[-1].isalnum() else "") for name in sorted(names, key=len, reverse=True)
    )


def roman_value(text: str) -> int | None:
    """The value of a Roman numeral; None if it is not one."""
    if not text or not _ROMAN.fullmatch(text):
        return None
    values = [_ROMAN_VALUES[char] for char in text]
    return sum(-v if v < w else v for v, w in zip(values, [*values[1:], 0], strict=True))


def last_word(text: str) -> str:
    """The word before a match, in lower case."""
    found = _LAST_WORD.search(text)
    return found[1].lower() if found else ""


def ends_sentence(grammar: Grammar, match: re.Match[str]) -> bool:
    """Whether the full stop of an abbreviation ends a sentence: no text, or a capital letter follows."""
    following = after(match)
    return not following.strip() or (not grammar.capitalises_nouns and _CAPITAL_AFTER.match(following) is not None)


def with_comma(number: str | None) -> str:
    """A number with the decimal comma: 1.5 and 1,000.50 as 1,5 and 1000,50. An empty text for None."""
    if number and re.fullmatch(r"\D?[0-9]+\.[0-9]{1,2}|\D?[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]{1,2}", number):
        return number.replace(",", "").replace(".", ",")
    return number or ""


def build_language(grammar: Grammar, own: Rules) -> LanguageRules:
    """The rules of a language. own: rules of the language itself, which are tried first."""
    rules = [
        *_electronic_rules(grammar),
        *own,
        *_date_rules(grammar),
        *_time_rules(grammar),
        *_phone_rules(grammar),
        *_amount_rules(grammar),
        *_number_rules(grammar),
        *_word_rules(grammar),
    ]
    special = {re.split(r"[. ]", name)[0] for name in (*grammar.abbreviations, *grammar.own_words)}
    special |= {sign for sign in grammar.money if sign.isalpha()}
    return LanguageRules(
        grammar.name,
        rules,
        frozenset(special | {word.lower() for word in special}),
        _joining(grammar),
        cardinal=grammar.integer,
        signs=grammar.signs,
        link=lambda address: grammar.spell(re.sub(r"^[a-z]+:(?://)?", "", address)),
        say_as=grammar.say_as,
        special_pattern=re.compile(grammar.special_pattern),
        keeps_foreign_numbers=grammar.letters.startswith("A-Z"),
    )


def _electronic_rules(grammar: Grammar) -> Rules:
    rules = Rules()

    @rules("email", r"(?<![\w.])[\w.+-]{1,64}@(?:[\w-]+\.)+[A-Za-z]{2,}(?!\w)")
    @rules("url", r"(?<!\w)(?:(?:https?|ftp)://|www\.)[^\s<>\"`|]+", re.IGNORECASE)
    @rules(
        "url",
        rf"(?<![\w@.-])(?:[A-Za-z0-9-]{{2,63}}\.){{1,8}}(?:{_TOP_DOMAINS})(?:/[^\s<>\"`|]*)?(?![\w-])(?!\.\w)",
    )
    def _address(match: re.Match[str]) -> str:
        kept = match[0].rstrip(_TRAILING)
        address = re.sub(r"^[a-z]+://|^www\.", "", re.split(r"[?#]", kept)[0]).rstrip("/")
        return grammar.spell(address) + match[0][len(kept) :]

    return rules


def _date_rules(grammar: Grammar) -> Rules:
    rules = Rules()
    short = grammar.short_months or tuple(month[:3] for month in grammar.months)
    numbers = {name.lower(): index for names in (grammar.months, short) for index, name in enumerate(names, 1)}
    month = rf"(?P<month>(?:{_alternatives(grammar.months)})(?!\w)|(?:{_alternatives(short)})(?:\.|(?!\w)))"
    link = "|".join(grammar.date_words) or "(?!)"

    def spoken(match: re.Match[str], day: str, month_number: int, year: str) -> str | None:
        if not (1 <= int(day) <= 31 and 1 <= month_number <= 12):
            return None
        if len(year) == 2:
            year = ("20" if int(year) < 70 else "19") + year
        return grammar.date(int(day), month_number, year, before(match))

    @rules("date", LEFT + r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?![\w-])")
    @rules("date", LEFT + r"(?<!/)(?P<day>\d{1,2})/(?P<month>\d{1,2})/(?P<year>\d{4}|\d\d)(?![\w/])")
    @rules("date", LEFT + r"(?<!-)(?P<day>\d{1,2})-(?P<month>\d{1,2})-(?P<year>\d{4})(?![\w-])")
    @rules("date", LEFT + r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4}|\d\d(?!\w))(?![\w])(?!\.\d)")
    def _numeric(match: re.Match[str]) -> str | None:
        return spoken(match, match["day"], int(match["month"]), match["year"])

    @rules("date", LEFT + r"(?<!/)(?P<day>\d{1,2})/(?P<month>\d{1,2})(?![\w/])")
    def _day_and_month(match: re.Match[str]) -> str | None:
        if last_word(before(match)) not in grammar.words_before_date:
            return None
        return spoken(match, match["day"], int(match["month"]), "")

    @rules(
        "date",
        LEFT
        + rf"(?P<day>\d{{1,2}})(?:\.|º|°|er|-(?:е|го))? (?:(?:{link}) )?{month}"
        + rf"(?:,? (?:(?:{link}) )?(?P<year>\d{{4}})(?![.,]?\d)(?!\w))?",
        re.IGNORECASE,
    )
    def _written(match: re.Match[str]) -> str | None:
        name = match["month"].rstrip(".").lower()
        result = spoken(match, match["day"], numbers[name], match["year"] or "")
        ends = match["month"].endswith(".") and not match["year"] and not after(match).strip()
        return result + "." if result and ends else result

    return rules


def _time_rules(grammar: Grammar) -> Rules:
    rules = Rules()
    unit = r"(?P<unit> ?(?:Uhr|hrs?|horas|heures|ч|h)(?!\w)(?! \d))?"

    @rules(
        "time",
        LEFT + rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d){_TIGHT_TO}(?P<hour2>\d{{1,2}}):(?P<minute2>\d\d){unit}(?![\w:])",
    )
    def _range(match: re.Match[str]) -> str | None:
        hours, minutes = (int(match["hour"]), int(match["hour2"])), (int(match["minute"]), int(match["minute2"]))
        if max(hours) > 24 or max(minutes) > 59:
            return None
        first, last = (grammar.clock(*time, match["unit"] or "") for time in zip(hours, minutes, strict=True))
        return grammar.time_span(first, last)

    @rules("time", LEFT + rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::\d\d)?{unit}(?![\w:])")
    @rules("time", LEFT + r"(?P<hour>\d{1,2}) ?h ?(?P<minute>\d\d)?(?P<unit>)(?:min)?(?!\w)(?!/)")
    @rules("time", LEFT + r"(?P<hour>\d{1,2})\.(?P<minute>\d\d)(?P<unit> Uhr)(?!\w)")
    def _time(match: re.Match[str]) -> str | None:
        hour, minute = int(match["hour"]), int(match["minute"] or "0")
        if hour > 24 or minute > 59:
            return None
        return grammar.clock(hour, minute, match["unit"] or (" h" if "h" in match[0] else ""))

    @rules("score", LEFT + r"(\d{1,3}):(\d{1,3})(?![\w:])")
    def _score(match: re.Match[str]) -> str:
        return f"{grammar.integer(match[1])} {grammar.versus} {grammar.integer(match[2])}"

    return rules


def _phone_rules(grammar: Grammar) -> Rules:
    rules = Rules()

    @rules("telephone", LEFT.replace(r"(?<!\w)", r"(?<![\w+])") + grammar.phone + r"(?![\w-])")
    @rules("telephone", r"(?<!\w)\+\d{1,3}(?:[ -]?\(?\d{1,5}\)?){2,6}(?![\w-])")
    def _phone(match: re.Match[str]) -> str:
        return grammar.phone_words(match[0])

    return rules


def _amount_rules(grammar: Grammar) -> Rules:
    rules = Rules()
    signs = _bounded(grammar.money)
    large = rf"(?: ?(?P<large>{_bounded(grammar.magnitudes)}))?"
    per = rf"(?:/(?P<per>{_alternatives(grammar.per_units)})(?!\w))?"
    dot = r"(?P<dot>\.(?=[ ,;:)]|$))?"

    def amount(text: str, until: str | None, magnitude: str | None, noun: Noun, coin: Noun | None) -> str:
        if magnitude:
            spoken = f"{grammar.number(text)} {grammar.to} " if until else ""
            return spoken + grammar.large(until or text, grammar.magnitudes[magnitude], noun)
        whole, _, decimals = text.partition(",")
        if until or len(decimals) != 2 or coin is None:
            return grammar.count(text, noun, until)
        if not int(decimals):
            return grammar.count(whole, noun)
        if not whole.strip("-−+±0"):
            return grammar.sign(whole) + grammar.count(str(int(decimals)), coin)
        return grammar.price(whole, str(int(decimals)), noun, coin)

    @rules(
        "money",
        rf"(?P<minus>{SIGN})(?<!\w)(?P<sign>{_alternatives(grammar.money)}) ?"
        rf"(?P<amount>{_AMOUNT})(?:{TO}(?P<until>{_AMOUNT}))?{large}(?!\w){per}",
    )
    @rules(
        "money",
        LEFT + rf"(?P<minus>)(?P<amount>{SIGN}{_AMOUNT})(?:{TO}(?P<until>{_AMOUNT}))?{large} ?(?P<sign>{signs}){per}",
    )
    def _money(match: re.Match[str]) -> str:
        sign = match["sign"]
        spoken = amount(
            match["minus"] + with_comma(match["amount"]),
            with_comma(match["until"]) or None,
            match["large"],
            grammar.money[sign],
            grammar.coins.get(sign),
        )
        if match["per"]:
            return f"{spoken} {grammar.per_units[match['per']]}"
        return spoken + "." if sign.endswith(".") and ends_sentence(grammar, match) else spoken

    @rules("percent", LEFT + rf"(?P<amount>{SIGN}{_AMOUNT})(?: ?%)?(?:{TO}(?P<until>{SIGN}{_AMOUNT}))? ?%")
    def _percent(match: re.Match[str]) -> str:
        return grammar.count(with_comma(match["amount"]), grammar.percent, with_comma(match["until"]) or None)

    @rules(
        "temperature",
        LEFT + rf"(?P<amount>{SIGN}{_AMOUNT})(?:{TO}(?P<until>{SIGN}{_AMOUNT}))? ?°(?: ?(?P<scale>[CFС])(?!\w))?",
    )
    def _temperature(match: re.Match[str]) -> str:
        scale = (match["scale"] or "").replace("С", "C")
        first, last = with_comma(match["amount"]), with_comma(match["until"])
        if last:
            return f"{grammar.number(first)} {grammar.to} {grammar.degrees(last, scale)}"
        return grammar.degrees(first, scale)

    @rules(
        "measure",
        LEFT + rf"(?P<amount>{SIGN}{_AMOUNT})(?:{TO}(?P<until>{_AMOUNT})| ?[x×] ?(?P<by>{_AMOUNT}))? ?"
        rf"(?P<unit>{_alternatives(grammar.units)})"
        rf"(?P<power>[²³23](?!\w))?(?:/(?P<per>{_alternatives(grammar.per_units)}))?(?![\w/])(?!\.\w){dot}",
    )
    def _measure(match: re.Match[str]) -> str | None:
        noun = grammar.units[match["unit"]]
        if match["power"]:
            noun = grammar.square(noun, match["power"])
        if match["by"]:
            first, last = with_comma(match["amount"]), with_comma(match["by"])
            spoken = f"{grammar.number(first)} {grammar.signs['×']} {grammar.count(last, noun)}"
        else:
            spoken = grammar.count(with_comma(match["amount"]), noun, with_comma(match["until"]) or None)
        spoken += f" {grammar.per_units[match['per']]}" if match["per"] else ""
        return spoken + "." if match["dot"] and ends_sentence(grammar, match) else spoken

    @rules(
        "large",
        LEFT + rf"(?P<amount>{SIGN}{_AMOUNT})(?:{TO}(?P<until>{_AMOUNT}))? ?(?P<large>{_bounded(grammar.magnitudes)})",
    )
    def _large(match: re.Match[str]) -> str:
        first, last = with_comma(match["amount"]), with_comma(match["until"])
        spoken = f"{grammar.number(first)} {grammar.to} " if last else ""
        spoken += grammar.large(last or first, grammar.magnitudes[match["large"]], None)
        return spoken + "." if match["large"].endswith(".") and ends_sentence(grammar, match) else spoken

    return rules


def _number_rules(grammar: Grammar) -> Rules:
    rules = Rules()

    @rules(
        "roman",
        r"(?<![\w.])(?:(?P<roman>[IVXLCDM]+)|(?P<numeral>[IVX]+)(?P<suffix>er|re|e|ème))(?!\w)"
        r"(?P<dot>\.(?= ?[^\W0-9_]))?",
    )
    def _roman(match: re.Match[str]) -> str | None:
        value = roman_value(match["roman"] or match["numeral"])
        if not value:
            return None
        dot = match["dot"] or ""
        mark = dot if grammar.ordinal_dot else match["suffix"] or ""
        spoken = grammar.roman(value, before(match), after(match), mark)
        return spoken + dot if spoken and not grammar.ordinal_dot else spoken

    @rules(
        "fraction",
        LEFT + rf"(?P<over>\d{{1,2}})/(?P<under>\d{{1,2}}) ?(?P<unit>{_alternatives(grammar.units)})(?![\w/])",
    )
    def _fraction_of_unit(match: re.Match[str]) -> str | None:
        noun = grammar.units[match["unit"]]
        spoken = grammar.fraction(int(match["over"]), int(match["under"]), noun)
        if spoken is None:
            return None
        is_half = (match["over"], match["under"]) == ("1", "2")
        return f"{spoken}{' ' if is_half else grammar.of_fraction}{grammar.fraction_noun(noun)}"

    @rules("fraction", LEFT + r"(?:(?P<whole>\d+) )?(?P<over>\d{1,2})/(?P<under>\d{1,2})(?![\w/])")
    def _fraction(match: re.Match[str]) -> str | None:
        following = _WORD_AFTER.match(after(match))
        noun = grammar.counted_noun(following[1], "1") if following else None
        spoken = grammar.fraction(int(match["over"]), int(match["under"]), noun)
        if spoken is None:
            return None
        return f"{grammar.integer(match['whole'])} {grammar.signs['&']} {spoken}" if match["whole"] else spoken

    @rules("fraction", r"(?<!\w)(?P<whole>\d+ ?)?(?P<sign>[½¼¾⅓⅔])")
    def _vulgar_fraction(match: re.Match[str]) -> str:
        over, under = {"½": (1, 2), "¼": (1, 4), "¾": (3, 4), "⅓": (1, 3), "⅔": (2, 3)}[match["sign"]]
        spoken = grammar.fraction(over, under) or ""
        return f"{grammar.integer(match['whole'])} {grammar.signs['&']} {spoken}" if match["whole"] else spoken

    @rules("version", r"(?<!\w)(?<!\d\.)[vV]?\d+(?:\.\d+)+(?!\w)(?!\.\d)(?!,\d)")
    def _version(match: re.Match[str]) -> str | None:
        if re.fullmatch(r"\d{1,3}(?:\.\d{3})+", match[0]):
            return None
        return f" {grammar.point} ".join(map(grammar.integer, match[0].lstrip("vV").split(".")))

    @rules("number", r"(?<!\w)(?:№ ?|#)(\d+)(?!\w)")
    def _numbered(match: re.Match[str]) -> str:
        return f"{grammar.number_sign} {grammar.integer(match[1])}"

    @rules("range", LEFT + rf"(?P<first>{SIGN}{NUM}){_TIGHT_TO}(?P<last>{NUM})(?![\w-])(?!\.\d)")
    def _range(match: re.Match[str]) -> str:
        first, last = match["first"], match["last"]
        if before(match).endswith("-"):
            return f"{grammar.number(first)} {grammar.number(last)}"
        return f"{_plain(grammar, first)} {grammar.to} {_plain(grammar, last)}"

    @rules("number", LEFT + rf"(?P<number>{SIGN}{NUM})(?![^\W_])")
    def _number(match: re.Match[str]) -> str:
        text = match["number"]
        following = _WORD_AFTER.match(after(match))
        if following and "," not in text and last_word(before(match)) not in grammar.labels:
            noun = grammar.counted_noun(following[1], text)
            if noun is not None and following[1].lower() not in grammar.not_nouns:
                return grammar.number(text, noun)
        return _plain(grammar, text)

    @rules("letters and digits", r"(?<![^\W_])(?=[^\W0-9_]*\d)[^\W_]{2,}")
    @rules("digits", r"\d+")
    def _digits(match: re.Match[str]) -> str:
        runs = re.findall(r"[0-9]+|[^\W0-9_]+", match[0])
        return " ".join(grammar.integer(run) if run[0] in "0123456789" else run for run in runs)

    return rules


def _plain(grammar: Grammar, text: str) -> str:
    """A number that counts nothing. Four digits without a separator may be a year."""
    if len(text) == 4 and text.isdigit() and "1100" <= text < "2100":
        return grammar.year(int(text))
    return grammar.number(text)


def _word_rules(grammar: Grammar) -> Rules:
    rules = Rules()
    ends = grammar.sentence_end_abbreviations

    @rules("short", rf"(?<![\w.])(?P<short>{_alternatives(grammar.abbreviations)})(?!\w)")
    def _abbreviation(match: re.Match[str]) -> str:
        short = match["short"]
        spoken = grammar.abbreviations[short]
        ends_text = not after(match).strip(" \"')]*_")
        is_end = ends_text or (short in ends and ends_sentence(grammar, match))
        return spoken + "." if short.endswith(".") and is_end else spoken

    @rules("sign", r"(?<=[\w)] )[-−](?= \d)|(?<=\d )[-−](?= [\w(])")
    def _minus(_: re.Match[str]) -> str:
        return grammar.minus

    @rules("sign", r"[&+=<>×÷±§≈≤≥]|(?<=\d)\*(?=\d)")
    def _sign(match: re.Match[str]) -> str | None:
        return grammar.signs.get(match[0])

    return rules


def _joining(grammar: Grammar) -> Callable[[str, int, int], bool]:
    firsts = {name.split(" ")[0] for name in (*grammar.abbreviations, *grammar.own_words)} | set(grammar.money)
    firsts |= {f"{unit}." for unit in grammar.units}
    special = re.compile(rf"(?:{grammar.special_pattern}|[IVXLCDM]+)[.,]?")
    tails = {*grammar.magnitudes, *grammar.date_words, *grammar.joining_words, *grammar.months, *grammar.short_months}
    tails |= {month[:3] for month in grammar.months} | {f"{month[:3]}." for month in grammar.months}
    tail = re.compile(rf"[0-9]\S*(?: (?:{_alternatives(tails)})\.?)+$", re.IGNORECASE)

    def joins_next(text: str, start: int, end: int) -> bool:
        chunk = text[start:end]
        if re.search(r"[0-9½¼¾⅓⅔$€£¥₽№#]", chunk) or chunk.lstrip("(\"'«[*_").rstrip(",") in firsts:
            return True
        if special.fullmatch(chunk):
            return True
        return tail.search(text, max(0, end - _TAIL), end) is not None

    return joins_next
