# SPDX-License-Identifier: Apache-2.0
"""What the rules of European languages need: number words, nouns and their agreement. Each language is a subclass."""

import re
from abc import ABC, abstractmethod
from functools import lru_cache

from num2words import num2words

MAX_DIGITS = 15  # longer numbers are read digit by digit


class Noun:
    """A counted noun: its forms after 1, after 2 to 4 (if they differ) and after other numbers, and its gender."""

    __slots__ = ("few", "gender", "many", "one")

    def __init__(self, one: str, many: str = "", gender: str = "m", few: str = "") -> None:
        self.one, self.many, self.gender = one, many or one, gender
        self.few = few or self.many


def nouns(table: str) -> dict[str, Noun]:
    """A table of `key = one, many, gender, few; …`. The fields after the first are optional."""
    found: dict[str, Noun] = {}
    for row in table.split(";"):
        keys, _, fields = " ".join(row.split()).partition(" = ")
        for key in keys.split(" | "):
            found[key] = Noun(*(field.strip() for field in fields.split(",")))
    return found


def words(table: str) -> dict[str, str]:
    """A table of `key = words; …`; several keys are separated by |."""
    rows = (" ".join(row.split()).partition(" = ") for row in table.split(";"))
    return {key: spoken for keys, _, spoken in rows for key in keys.split(" | ")}


def word_set(table: str) -> frozenset[str]:
    """The words of a text, which are separated by spaces."""
    return frozenset(table.split())


@lru_cache(4096)
def _num2words(value: int, code: str, to: str, options: tuple[tuple[str, str], ...]) -> str:
    return num2words(value, lang=code, to=to, **dict(options)).replace(",", "")


class Grammar(ABC):
    """Numbers, dates, times and amounts of a language as words.

    The tables and methods that differ between languages are overridden. A number is passed as it is written, with the
    decimal comma and thousands separators of the language.
    """

    name: str
    code: str  # of num2words
    months: tuple[str, ...]
    short_months: tuple[str, ...] = ()  # abbreviations, where they are not the first three letters
    units: dict[str, Noun]
    per_units: dict[str, str]  # the second unit of "km/h", with its preposition
    money: dict[str, Noun]
    coins: dict[str, Noun]  # the hundredth part of a currency
    magnitudes: dict[str, Noun]
    abbreviations: dict[str, str]
    sentence_end_abbreviations: tuple[str, ...] = ("etc.",)
    fractions: dict[str, str]
    signs: dict[str, str]
    percent: Noun
    degree: Noun
    comma: str
    point: str
    minus: str
    plus: str
    to: str
    versus: str  # between the numbers of a score
    of_fraction = " "  # between a fraction other than 1/2 and a unit
    of_money = " "  # between "million" and the currency
    dot: str
    at_sign: str
    slash: str
    dash: str
    number_sign: str  # "No."
    labels: frozenset[str] = frozenset()  # words before a number that is their name: "chapter 1"
    not_nouns: frozenset[str] = frozenset()  # words after a number that it does not count
    date_words: tuple[str, ...] = ()  # words between day, month and year
    joining_words: tuple[str, ...] = ()  # words after a number that join the next word
    capitalises_nouns = False
    words_before_date: tuple[str, ...] = ()  # before a date such as 31/12
    ordinal_dot = False  # a full stop after a Roman numeral makes it an ordinal
    own_words: tuple[str, ...] = ()  # words and abbreviations at which a rule of the language itself starts
    special_pattern = r"(?!)"  # of such words
    phone = r"(?!)"
    letters = "A-Za-zÀ-ÖØ-öø-ÿ"

    # Numbers

    def words(self, value: int, to: str = "cardinal", **options: str) -> str:
        return _num2words(value, self.code, to, tuple(options.items()))

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        """attributive: a noun of that gender follows."""
        return self.words(value)

    def ordinal(self, value: int, gender: str = "m") -> str:
        return self.words(value, "ordinal")

    def year(self, value: int) -> str:
        return self.cardinal(value)

    def digits(self, text: str) -> str:
        return " ".join(self.cardinal(int(char)) for char in text if char in "0123456789")

    def integer(self, text: str, gender: str = "", attributive: bool = False) -> str:
        """An integer with thousands separators; 007 and very long numbers digit by digit."""
        bare = re.sub("[^0-9]", "", text)
        if len(bare) > MAX_DIGITS or (len(bare) > 1 and bare[0] == "0"):
            return self.digits(bare)
        return self.cardinal(int(bare or "0"), gender, attributive)

    def decimals(self, text: str) -> str:
        """The digits after the decimal comma: two of them as a number, others one by one."""
        if len(text) == 2 and text[0] != "0":
            return self.cardinal(int(text))
        return self.digits(text)

    def sign(self, text: str) -> str:
        first = {"-": self.minus, "−": self.minus, "+": self.plus, "±": f"{self.plus} {self.minus}"}.get(text[:1], "")
        return f"{first} " if first else ""

    def number(self, text: str, noun: Noun | None = None) -> str:
        """A number with an optional sign and decimals, in agreement with a noun."""
        whole, _, decimals = text.lstrip("-−+±").partition(",")
        if decimals:
            return f"{self.sign(text)}{self.integer(whole)} {self.comma} {self.decimals(decimals)}"
        gender = noun.gender if noun else ""
        return self.sign(text) + self.integer(whole, gender, noun is not None)

    def form(self, text: str, noun: Noun) -> str:
        """The form of a noun after a number."""
        return noun.one if text.lstrip("-−+±") == "1" else noun.many

    def count(self, text: str, noun: Noun, until: str | None = None) -> str:
        """A number or a range, and the noun that it counts."""
        if until:
            return f"{self.number(text, noun)} {self.to} {self.number(until, noun)} {self.form(until, noun)}"
        is_millions = re.fullmatch(r"[0-9]+(?:[. ]000){2,}|[0-9]+000000", text) is not None
        return f"{self.number(text, noun)}{self.of(noun) if is_millions else ' '}{self.form(text, noun)}"

    def of(self, noun: Noun) -> str:
        """What stands between "million" and a noun."""
        return self.of_money

    def counted_noun(self, word: str, text: str) -> Noun | None:
        """The noun that a number before `word` agrees with; None if the word is no noun."""
        return None

    # Amounts

    def price(self, whole: str, cents: str, noun: Noun, coin: Noun) -> str:
        return f"{self.count(whole, noun)} {self.cardinal(int(cents))}"

    def large(self, text: str, magnitude: Noun, noun: Noun | None) -> str:
        """A number with a word such as million, and the noun that it counts."""
        spoken = self.count(text, magnitude)
        return f"{spoken}{self.of(noun)}{noun.many}" if noun else spoken

    @abstractmethod
    def square(self, noun: Noun, power: str) -> Noun:
        """The noun of an area or a volume. power: 2 or 3, or the same as a superscript."""

    def degrees(self, text: str, scale: str) -> str:
        return self.count(text, self.degree) + {"C": " Celsius", "F": " Fahrenheit"}.get(scale, "")

    # Dates and times

    @abstractmethod
    def date(self, day: int, month: int, year: str, before: str) -> str:
        """before: what is written before the date."""

    @abstractmethod
    def clock(self, hour: int, minute: int, unit: str) -> str:
        """unit: what is written after the time."""

    def phone_words(self, text: str) -> str:
        """A telephone number, group by group; digits one by one."""
        groups = re.findall("[0-9]+", text)
        plus = f"{self.plus} " if text.startswith("+") else ""
        return plus + ", ".join(map(self.digits, groups))

    def fraction(self, over: int, under: int, noun: Noun | None = None) -> str | None:
        """A fraction, of a noun if one follows; None if it has no name."""
        return self.fractions.get(f"{over}/{under}")

    def fraction_noun(self, noun: Noun) -> str:
        """A unit after a fraction."""
        return noun.one

    def time_span(self, first: str, last: str) -> str:
        return f"{first} {self.to} {last}"

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        """A Roman numeral after `before`; None if it is no numeral there. dot: the mark of an ordinal."""
        return None

    def spell(self, address: str) -> str:
        """An address or a file name: letters unchanged, digits and signs by name."""
        names = {".": self.dot, "@": self.at_sign, "/": self.slash, "-": self.dash, "_": self.dash}
        pieces = re.findall(r"[0-9]+|[^\W0-9_]+|.", address)
        spoken = (self.integer(piece) if piece.isdigit() else names.get(piece, piece) for piece in pieces)
        return " ".join(piece for piece in spoken if piece.strip("?#&=%+~:"))

    def say_as(self, kind: str, text: str, format: str) -> str | None:
        """SSML's <say-as>; None if the text is read as any other text."""
        text = " ".join(text.split())
        match kind.lower():
            case "characters" | "character" | "spell-out" | "spell" | "verbatim" | "letters":
                return " ".join(self.digits(char) or self.signs.get(char, char.upper()) for char in text if char != " ")
            case "digits" | "digit":
                return self.digits(text) or None
            case "telephone":
                return self.phone_words(text) if re.search("[0-9]", text) else None
            case "cardinal" | "number":
                return self.number(text) if re.fullmatch(r"[-−+]?[0-9][0-9. ]*(?:,[0-9]+)?", text) else None
            case "ordinal":
                bare = text.rstrip(".ºª°")
                return self.ordinal(int(bare)) if re.fullmatch(r"[0-9]{1,9}", bare) else None
        return None
