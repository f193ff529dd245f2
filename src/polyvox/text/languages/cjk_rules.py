# SPDX-License-Identifier: Apache-2.0
"""Rules that Chinese, Japanese and Korean share: dates, times, amounts and numbers with a decimal point."""

import re
from abc import ABC, abstractmethod

from polyvox.text.languages.language_rules import LanguageRules
from polyvox.text.rules import SIGN, Rules, after, before

NUM = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)"
MAX_DIGITS = 12  # longer numbers are read digit by digit
_LEFT = r"(?<![A-Za-z0-9])(?<!\d[.,])"
_RIGHT = r"(?![A-Za-z0-9])"
_TO = r" ?[-–—~～〜] ?"
_DIGIT = re.compile("[0-9$€£¥₩#]")


class CjkGrammar(ABC):
    """Numbers, dates, times and amounts of a language as words."""

    name: str
    digit_names: str  # from 0 to 9
    phone_digits: str
    phone_gap = ""
    units: dict[str, str]
    money: dict[str, str]
    to: str
    versus: str
    point: str
    gap = ""  # between a number and its unit
    signs: dict[str, str]

    @abstractmethod
    def integer(self, value: int) -> str: ...

    def cardinal(self, text: str) -> str:
        """An integer with thousands separators; 007 and very long numbers digit by digit."""
        bare = text.replace(",", "")
        if len(bare) > MAX_DIGITS or (len(bare) > 1 and bare[0] == "0"):
            return self.digits(bare)
        return self.integer(int(bare))

    def digits(self, text: str) -> str:
        return "".join(self.digit_names[int(char)] for char in text if char in "0123456789")

    def minus(self, text: str) -> str:
        return {"-": self.signs["-"], "−": self.signs["-"], "+": self.signs["+"], "±": self.signs["±"]}.get(
            text[:1], ""
        )

    def number(self, text: str) -> str:
        """A number with an optional sign and decimals."""
        whole, _, decimals = text.lstrip("-−+±").partition(".")
        words = self.cardinal(whole)
        return self.minus(text) + (f"{words}{self.point}{self.digits(decimals)}" if decimals else words)

    def span(self, first: str, last: str) -> str:
        return f"{first}{self.to}{last}"

    def counted(self, text: str, before: str, after: str) -> str | None:
        """A number before a counter; None if it is read as any number. The counter is not part of the result."""
        return None

    def range_end(self, text: str, after: str) -> str:
        """The second number of a range."""
        return self.number(text)

    @abstractmethod
    def date(self, year: str, month: int, day: int) -> str: ...

    @abstractmethod
    def clock(self, hour: int, minute: int) -> str: ...

    @abstractmethod
    def percent(self, text: str) -> str: ...

    @abstractmethod
    def degrees(self, text: str, scale: str) -> str: ...

    def degrees_span(self, first: str, last: str, scale: str) -> str:
        return self.span(self.number(first), self.degrees(last, scale))

    @abstractmethod
    def fraction(self, over: str, under: str) -> str: ...

    def measure(self, text: str, unit: str) -> str:
        return f"{self.number(text)}{self.gap}{self.units[unit]}"

    def price(self, text: str, sign: str, magnitude: str) -> str:
        text = re.sub(r"(?<=\.\d)0$|\.00?$", "", text)
        return f"{self.number(text)}{magnitude}{self.gap}{self.money[sign]}"

    def phone(self, text: str) -> str:
        groups = re.findall("[0-9]+", text)
        return self.phone_gap.join("".join(self.phone_digits.split()[int(char)] for char in group) for group in groups)

    def say_as(self, kind: str, text: str, format: str) -> str | None:
        """SSML's <say-as>; None if the text is read as any other text."""
        text = "".join(text.split())
        match kind.lower():
            case "characters" | "character" | "spell-out" | "spell" | "verbatim" | "letters":
                return " ".join(self.digits(char) or char.upper() for char in text)
            case "digits" | "digit":
                return self.digits(text) or None
            case "telephone":
                return self.phone(text) or None
            case "cardinal" | "number":
                return self.number(text) if re.fullmatch(rf"[-−+]?{NUM}".replace(r"\d", "[0-9]"), text) else None
        return None


def build_language(grammar: CjkGrammar, magnitudes: str, own: Rules | None = None) -> LanguageRules:
    """The rules of a language. magnitudes: characters such as 万. own: rules that are tried first."""
    rules = _address_rules()
    rules += own or []
    rules += _time_rules(grammar)
    rules += _phone_rules(grammar)
    rules += _amount_rules(grammar, magnitudes)
    rules += _number_rules(grammar)
    return LanguageRules(
        grammar.name,
        rules,
        joins_next=_joins_next,
        cardinal=grammar.cardinal,
        signs=grammar.signs,
        say_as=grammar.say_as,
    )


def _joins_next(text: str, start: int, end: int) -> bool:
    return _DIGIT.search(text, start, end) is not None


def _address_rules() -> Rules:
    rules = Rules()

    @rules("address", r"(?<![\w.])[\w.+-]{1,64}@(?:[\w-]+\.)+[A-Za-z]{2,}(?!\w)", re.ASCII)
    @rules(
        "address", r"(?<![A-Za-z0-9])(?:(?:https?|ftp)://|www\.)[^\s<>\"`|\u3000-\u9fff\uac00-\ud7a3]+", re.IGNORECASE
    )
    def _address(match: re.Match[str]) -> str:
        return match[0]

    return rules


def _time_rules(grammar: CjkGrammar) -> Rules:
    """Dates, times and scores, which look like times."""
    rules = Rules()

    @rules("date", _LEFT + r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?![\w-]*\d)" + _RIGHT)
    def _date(match: re.Match[str]) -> str | None:
        month, day = int(match[3]), int(match[4])
        return grammar.date(match[1], month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None

    @rules("time", _LEFT + rf"(\d{{1,2}})[:：]([0-5]\d){_TO}(\d{{1,2}})[:：]([0-5]\d)" + _RIGHT)
    def _times(match: re.Match[str]) -> str | None:
        first, last = (grammar.clock(int(match[index]), int(match[index + 1])) for index in (1, 3))
        return grammar.span(first, last) if int(match[1]) <= 24 and int(match[3]) <= 24 else None

    @rules("time", _LEFT + r"(\d{1,2})[:：]([0-5]\d)(?:[:：][0-5]\d)?(?![:：]?\d)" + _RIGHT)
    def _time(match: re.Match[str]) -> str | None:
        return grammar.clock(int(match[1]), int(match[2])) if int(match[1]) <= 24 else None

    @rules("score", _LEFT + r"(\d{1,3})[:：](\d{1,3})" + _RIGHT)
    def _score(match: re.Match[str]) -> str:
        return f"{grammar.cardinal(match[1])}{grammar.versus}{grammar.cardinal(match[2])}"

    return rules


def _phone_rules(grammar: CjkGrammar) -> Rules:
    rules = Rules()

    @rules("telephone", r"(?<![A-Za-z0-9])\+\d{1,3}(?:[ -]?\d{2,5}){2,4}" + _RIGHT)
    @rules(
        "telephone",
        _LEFT
        + r"(?:0\d{1,3}-\d{3,4}-\d{4}|0\d{2,3}-?\d{7,8}|1[3-9]\d{9}|1[56]\d\d-\d{4}|[48]00-\d{3,4}-\d{3,4})"
        + _RIGHT,
    )
    def _phone(match: re.Match[str]) -> str:
        return (grammar.signs["+"] if match[0][0] == "+" else "") + grammar.phone(match[0])

    return rules


def _amount_rules(grammar: CjkGrammar, magnitudes: str) -> Rules:
    """Money, percentages, temperatures and measures."""
    rules = Rules()
    signs = "|".join(re.escape(sign) for sign in sorted(grammar.money, key=len, reverse=True))
    units = "|".join(re.escape(unit) for unit in sorted(grammar.units, key=len, reverse=True))

    @rules("money", rf"(?P<sign>{signs}) ?(?P<amount>{NUM})(?: ?(?P<large>[{magnitudes}]))?" + _RIGHT)
    @rules("money", _LEFT + rf"(?P<amount>{NUM})(?P<large>) ?(?P<sign>{signs})" + _RIGHT)
    def _money(match: re.Match[str]) -> str:
        return grammar.price(match["amount"], match["sign"], match["large"] or "")

    @rules("percent", _LEFT + rf"({SIGN}{NUM}) ?%{_TO}({NUM}) ?%")
    def _percents(match: re.Match[str]) -> str:
        return grammar.span(grammar.percent(match[1]), grammar.percent(match[2]))

    @rules("percent", _LEFT + rf"({SIGN}{NUM}) ?%")
    def _percent(match: re.Match[str]) -> str:
        return grammar.percent(match[1])

    @rules("temperature", _LEFT + rf"([-−]?{NUM})(?: ?°C?)?{_TO}([-−]?{NUM}) ?°(?: ?([CF]))?" + _RIGHT)
    def _temperatures(match: re.Match[str]) -> str:
        return grammar.degrees_span(match[1], match[2], match[3] or "")

    @rules("temperature", _LEFT + rf"((?<![0-9.])[-−+]?{NUM}) ?°(?: ?([CF]))?" + _RIGHT)
    def _temperature(match: re.Match[str]) -> str:
        return grammar.degrees(match[1], match[2] or "")

    @rules("measure", _LEFT + rf"(?P<first>{NUM}){_TO}(?P<amount>{NUM}) ?(?P<unit>{units})" + _RIGHT)
    @rules("measure", _LEFT + rf"(?P<first>)(?P<amount>{SIGN}{NUM}) ?(?P<unit>{units})" + _RIGHT)
    def _measure(match: re.Match[str]) -> str:
        spoken = grammar.measure(match["amount"], match["unit"])
        return grammar.span(grammar.number(match["first"]), spoken) if match["first"] else spoken

    return rules


def _number_rules(grammar: CjkGrammar) -> Rules:
    """Fractions, versions, ranges, numbers and signs between numbers."""
    rules = Rules()

    @rules("fraction", _LEFT + r"(\d{1,3})/(\d{1,3})(?!/)" + _RIGHT)
    def _fraction(match: re.Match[str]) -> str:
        return grammar.fraction(match[1], match[2])

    @rules("version", _LEFT + r"\d+(?:\.\d+){2,}" + _RIGHT)
    def _version(match: re.Match[str]) -> str:
        return grammar.point.join(map(grammar.cardinal, match[0].split(".")))

    @rules("range", _LEFT + rf"({NUM}){_TO}({NUM})(?![-0-9])" + _RIGHT)
    def _range(match: re.Match[str]) -> str:
        return grammar.span(grammar.number(match[1]), grammar.range_end(match[2], after(match)))

    @rules("number", rf"(?<![A-Za-z0-9])(?<!\d\.)({SIGN}{NUM})(?!\.\d)" + _RIGHT)  # also in lists: 1,2,3
    def _number(match: re.Match[str]) -> str:
        return grammar.counted(match[1], before(match), after(match)) or grammar.number(match[1])

    @rules("sign", r"(?<=[0-9 ])[+=×÷](?=[0-9 ])")
    def _sign(match: re.Match[str]) -> str | None:
        return grammar.signs.get(match[0])

    return rules
