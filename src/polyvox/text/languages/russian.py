# SPDX-License-Identifier: Apache-2.0
"""Russian text rules."""

import re

from polyvox.text.languages.european_rules import NUM, build_language, last_word
from polyvox.text.languages.grammar import Grammar, Noun, nouns, word_set, words
from polyvox.text.rules import LEFT, Rules, after, before

# Case and gender of an ordinal by the letters after its hyphen.
_ORDINAL_ENDINGS = {
    **dict.fromkeys(("й", "ый", "ой", "ий"), ("n", "m")),
    **dict.fromkeys(("я", "ая"), ("n", "f")),
    **dict.fromkeys(("е", "ое"), ("n", "n")),
    **dict.fromkeys(("го", "ого", "его"), ("g", "m")),
    **dict.fromkeys(("му", "ому", "ему"), ("d", "m")),
    **dict.fromkeys(("ю", "ую"), ("a", "f")),
    **dict.fromkeys(("ым", "им"), ("i", "m")),
    **dict.fromkeys(("м", "ом", "ем"), ("p", "m")),
}
_YEAR_CASES = {"год": "n", "года": "g", "году": "p", "годом": "i", "годы": "n", "годов": "g", "годах": "p"}
_GENITIVE_BEFORE = word_set("от с до из около после без для со конца начала середины лета зимы весны осени")
_GENITIVE_PREPOSITIONS = word_set("от до около более менее свыше после без кроме из больше меньше вместо")
_PREPOSITIONAL_BEFORE = word_set("в во на о об при")
_DECIMALS = {1: ("десятая", "десятых"), 2: ("сотая", "сотых"), 3: ("тысячная", "тысячных")}


class RussianGrammar(Grammar):
    name, code = "russian", "ru"
    letters = "А-Яа-яЁё"
    months = ("января", "февраля", "марта", "апреля", "мая", "июня", "июля", "августа", "сентября", "октября", "ноября",
              "декабря")  # fmt: skip
    short_months = ("янв", "фев", "мар", "апр", "мая", "июн", "июл", "авг", "сен", "окт", "ноя", "дек")
    units = nouns(
        "км = километр, километров, m, километра; м = метр, метров, m, метра; "
        "см = сантиметр, сантиметров, m, сантиметра; мм = миллиметр, миллиметров, m, миллиметра; "
        "кг = килограмм, килограммов, m, килограмма; г | гр = грамм, граммов, m, грамма; "
        "мг = миллиграмм, миллиграммов, m, миллиграмма; т = тонна, тонн, f, тонны; л = литр, литров, m, литра; "
        "мл = миллилитр, миллилитров, m, миллилитра; га = гектар, гектаров, m, гектара; "
        "с | сек = секунда, секунд, f, секунды; мин = минута, минут, f, минуты; ч = час, часов, m, часа; "
        "Вт = ватт, ватт, m, ватта; кВт = киловатт, киловатт, m, киловатта; В = вольт, вольт, m, вольта; "
        "Гц = герц, герц, m, герца; МГц = мегагерц, мегагерц, m, мегагерца; ГГц = гигагерц, гигагерц, m, гигагерца; "
        "КБ = килобайт, килобайт, m, килобайта; МБ | Мб = мегабайт, мегабайт, m, мегабайта; "
        "ГБ | Гб = гигабайт, гигабайт, m, гигабайта; ТБ = терабайт, терабайт, m, терабайта; "
        "ккал = килокалория, килокалорий, f, килокалории; шт = штука, штук, f, штуки; "
        "ст. л. | ст.л. = столовая ложка, столовых ложек, f, столовые ложки; "
        "ч. л. | ч.л. = чайная ложка, чайных ложек, f, чайные ложки; чел = человек, человек, m, человека; "
        "км² = квадратный километр, квадратных километров, m, квадратных километра"
    )
    per_units = words(
        "ч = в час; с = в секунду; мин = в минуту; кг = за килограмм; л = за литр; м² = за квадратный метр; "
        "мес = в месяц; день = в день; год = в год; шт = за штуку"
    )
    money = nouns(
        "₽ | руб. | руб | р. | RUB | рублей | рубля | рубль = рубль, рублей, m, рубля; "
        "$ | USD = доллар, долларов, m, доллара; € | EUR = евро; £ = фунт, фунтов, m, фунта; "
        "¥ = иена, иен, f, иены; коп. = копейка, копеек, f, копейки"
    )
    coins = nouns(
        "₽ | руб. | руб | р. | RUB | рублей | рубля | рубль = копейка, копеек, f, копейки; "
        "$ | USD | € | EUR = цент, центов, m, цента; £ = пенни"
    )
    magnitudes = nouns(
        "тыс. | тыс = тысяча, тысяч, f, тысячи; млн | млн. = миллион, миллионов, m, миллиона; "
        "млрд | млрд. = миллиард, миллиардов, m, миллиарда; трлн | трлн. = триллион, триллионов, m, триллиона"
    )
    abbreviations = words(
        "т. д. | т.д. = так далее; т. п. | т.п. = тому подобное; др. = другие; т. е. | т.е. = то есть; "
        "т. к. | т.к. = так как; ул. = улица; д. = дом; кв. = квартира; пр. = проспект; пл. = площадь; "
        "пер. = переулок; стр. = страница; гл. = глава; рис. = рисунок; см. | См. = смотри; напр. = например; "
        "тел. = телефон; им. = имени; г. = город; обл. = область; р-н = район; проф. = профессор; акад. = академик; "
        "до н. э. = до нашей эры; н. э. = нашей эры; ср. = сравни; мин. = минут; макс. = максимум; чел. = человек; "
        "руб. = рублей; коп. = копеек"
    )
    sentence_end_abbreviations = ("т. д.", "т.д.", "т. п.", "т.п.", "др.")
    fractions = words(
        "1/2 = одна вторая; 1/3 = одна треть; 2/3 = две трети; 1/4 = одна четверть; 3/4 = три четверти; "
        "1/5 = одна пятая; 2/5 = две пятых; 3/5 = три пятых; 4/5 = четыре пятых; 1/8 = одна восьмая; "
        "1/10 = одна десятая"
    )
    signs = words(
        "& = и; + = плюс; = = равно; < = меньше; > = больше; × = на; * = умножить на; ÷ = разделить на; "
        "± = плюс минус; § = параграф; ≈ = примерно; ≤ = меньше или равно; ≥ = больше или равно; % = процентов"
    )
    percent, degree = Noun("процент", "процентов", "m", "процента"), Noun("градус", "градусов", "m", "градуса")
    comma, point, minus, plus, to, versus = "целых", "точка", "минус", "плюс", "", ""
    dot, at_sign, slash, dash, number_sign = "точка", "собака", "слеш", "дефис", "номер"
    labels = word_set("глава страница комната номер часть том пункт статья линия версия дом квартира этаж")
    not_nouns = word_set("и в на с по до от из к о у не но или это был была было были")
    joining_words = ("ст.", "ч.", "год", "году", "года", "г.", "ч", "мин")
    own_words = ("г.", "гг.")
    phone = r"(?:8[ -]?\(?\d{3}\)?[ -]?\d{3}[ -]?\d\d[ -]?\d\d|\d{3}-\d\d-\d\d)"

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        if gender == "a":  # the accusative of a feminine noun
            spoken = re.sub("одна$", "одну", self.words(value, gender="f"))
        else:
            spoken = self.words(value, gender=gender or "m")
        return re.sub(r"^одна (?=тысяча)", "", spoken)

    def ordinal(self, value: int, gender: str = "m") -> str:
        return self.inflected_ordinal(value, "n", gender)

    def inflected_ordinal(self, value: int, case: str, gender: str = "m") -> str:
        spoken = self.words(value, "ordinal", case=case, gender=gender)
        return re.sub(r"^одна (?=тысяча)", "", spoken).replace("четверт", "четвёрт")

    def number(self, text: str, noun: Noun | None = None) -> str:
        whole, _, decimals = text.lstrip("-−+±").partition(",")
        if not decimals or len(decimals) not in _DECIMALS:
            return super().number(text, noun)
        integer = int(re.sub("[^0-9]", "", whole))
        ones = integer % 10 == 1 and integer % 100 != 11
        part = int(decimals)
        name = _DECIMALS[len(decimals)][not (part % 10 == 1 and part % 100 != 11)]
        spoken = f"{self.cardinal(integer, 'f')} {'целая' if ones else 'целых'} {self.cardinal(part, 'f')} {name}"
        return self.sign(text) + spoken

    def genitive(self, text: str, gender: str = "m") -> str:
        """A number in the genitive: 2,5 as "двух целых пяти десятых"."""
        whole, _, decimals = text.partition(",")
        integer = int(re.sub("[^0-9]", "", whole))
        spoken = re.sub(r"^одной (?=тысячи)", "", self.words(integer, case="g", gender="f" if decimals else gender))
        if not decimals or len(decimals) not in _DECIMALS:
            return spoken
        part = self.words(int(decimals), case="g", gender="f")
        return f"{spoken} целых {part} {_DECIMALS[len(decimals)][1]}"

    def genitive_form(self, text: str, noun: Noun) -> str:
        """The genitive of a noun after a number in the genitive."""
        return noun.few if "," in text or self.form(text, noun) == noun.one else noun.many

    def fraction_noun(self, noun: Noun) -> str:
        return re.sub("ые (?=ложки)", "ой ", noun.few)

    def form(self, text: str, noun: Noun) -> str:
        whole, _, decimals = text.lstrip("-−+±").partition(",")
        value = int(re.sub("[^0-9]", "", whole) or 0)
        if decimals:
            return noun.few
        if value % 10 == 1 and value % 100 != 11:
            return noun.one
        return noun.few if 2 <= value % 10 <= 4 and not 12 <= value % 100 <= 14 else noun.many

    def count(self, text: str, noun: Noun, until: str | None = None) -> str:
        if until:
            return f"{self.number(text, noun)}, {self.number(until, noun)} {self.form(until, noun)}"
        return super().count(text, noun)

    def price(self, whole: str, cents: str, noun: Noun, coin: Noun) -> str:
        return f"{self.count(whole, noun)} {self.count(cents, coin)}"

    def counted_noun(self, word: str, text: str) -> Noun | None:
        value, lower = int(re.sub("[^0-9]", "", text) or 0), word.lower()
        if value % 100 in (11, 12) or value % 10 not in (1, 2):
            return None
        if value % 10 == 1 and lower.endswith(("у", "ю")):
            gender = "a"
        elif value % 10 == 1:
            gender = "f" if lower.endswith(("а", "я")) else "n" if lower.endswith(("о", "е")) else "m"
        else:
            gender = "f" if lower.endswith(("ы", "и")) else "m"
        return Noun(word, "", gender)

    def square(self, noun: Noun, power: str) -> Noun:
        one, many = ("квадратный", "квадратных") if power in "²2" else ("кубический", "кубических")
        return Noun(f"{one} {noun.one}", f"{many} {noun.many}", noun.gender, f"{many} {noun.few}")

    def degrees(self, text: str, scale: str) -> str:
        return self.count(text, self.degree) + {"C": " Цельсия", "F": " Фаренгейта"}.get(scale, "")

    def date(self, day: int, month: int, year: str, before: str) -> str:
        case, gender = ("n", "n") if last_word(before) in ("сегодня", "завтра", "наступило", "дата") else ("g", "m")
        spoken = f"{self.inflected_ordinal(day, case, gender)} {self.months[month - 1]}"
        return f"{spoken} {self.inflected_ordinal(int(year), 'g')} года" if year else spoken

    def clock(self, hour: int, minute: int, unit: str) -> str:
        if minute:
            return f"{self.cardinal(hour)} {'ноль ' if minute < 10 else ''}{self.cardinal(minute)}"
        return self.count(str(hour), self.units["ч"])

    def phone_words(self, text: str) -> str:
        groups = re.findall("[0-9]+", text)
        if len(groups) == 1 and len(groups[0]) == 11:
            digits = groups[0]
            groups = [digits[0], digits[1:4], digits[4:7], digits[7:9], digits[9:]]
        spoken = (self.integer(group) if group[0] != "0" else self.digits(group) for group in groups)
        return (f"{self.plus} " if text.startswith("+") else "") + ", ".join(spoken)

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        if century := re.match(r" (?:век|столети)(\w*)", after):
            case = {"": "n", "е": "p", "а": "g", "у": "d", "ом": "i"}.get(century[1], "n")
            return self.inflected_ordinal(value, case)
        if re.search(r"\b[А-ЯЁ][а-яё]{2,} $", before):
            return self.inflected_ordinal(value, "n", "f" if re.search("(?:ина|ета|ия|анна) $", before) else "m")
        return None


GRAMMAR = RussianGrammar()
_RULES = Rules()
_COUNTED_NOUNS = GRAMMAR.units | GRAMMAR.money | GRAMMAR.magnitudes
_COUNTED = "°[CС]?|%|" + "|".join(re.escape(name) for name in sorted(_COUNTED_NOUNS, key=len, reverse=True))


@_RULES("year", LEFT + r"(?P<year>\d{4}) ?(?P<word>год(?:а|у|ом|ы|ов|ах)?|гг?\.)(?!\w)")
def _year(match: re.Match[str]) -> str:
    word, previous = match["word"], last_word(before(match))
    case = _YEAR_CASES.get(word)
    if case is None:
        case = "p" if previous in _PREPOSITIONAL_BEFORE else "g" if previous in _GENITIVE_BEFORE else "n"
        name = {"p": "году", "g": "года", "n": "год"}[case]
    else:
        name = word
    spoken = f"{GRAMMAR.inflected_ordinal(int(match['year']), case)} {name}"
    return spoken + "." if word.endswith(".") and not after(match).strip() else spoken


@_RULES(
    "date",
    LEFT + r"(?P<day>\d{1,2}) (?P<month>" + "|".join(RussianGrammar.months) + r") (?P<year>\d{4}) (?:года|г\.)(?!\w)",
)
def _date(match: re.Match[str]) -> str:
    month = GRAMMAR.months.index(match["month"]) + 1
    spoken = GRAMMAR.date(int(match["day"]), month, match["year"], before(match))
    return spoken + "." if match[0].endswith(".") and not after(match).strip() else spoken


def _takes_genitive(match: re.Match[str]) -> bool:
    previous = last_word(before(match))
    return previous in _GENITIVE_PREPOSITIONS or (previous in ("с", "со") and after(match).startswith(" до"))


@_RULES("time", LEFT + r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?![\w:])")
def _time_after_preposition(match: re.Match[str]) -> str | None:
    if not _takes_genitive(match) or int(match["hour"]) > 24:
        return None
    spoken = GRAMMAR.genitive(match["hour"])
    if int(match["minute"]):
        return f"{spoken} {'ноля ' if match['minute'][0] == '0' else ''}{GRAMMAR.genitive(match['minute'])}"
    return f"{spoken} {GRAMMAR.genitive_form(match['hour'], GRAMMAR.units['ч'])}"


@_RULES("number", LEFT + rf"(?P<number>{NUM})(?: ?(?P<unit>{_COUNTED}))?(?![\w/:-])(?!\.\d)")
def _number_after_preposition(match: re.Match[str]) -> str | None:
    if not _takes_genitive(match) or re.match(
        r" (?:год|г\.|[а-я]+(?:аря|аля|арта|реля|мая|юня|юля|уста|бря)\b)", after(match)
    ):
        return None
    text, unit = match["number"], match["unit"]
    if not unit:
        return GRAMMAR.genitive(text, "f" if re.match(r" \w+[ыи]\b", after(match)) else "m")
    noun = GRAMMAR.percent if unit == "%" else GRAMMAR.degree if unit[0] == "°" else _COUNTED_NOUNS[unit]
    scale = " Цельсия" if unit[-1] in "CС" else ""
    return f"{GRAMMAR.genitive(text, noun.gender)} {GRAMMAR.genitive_form(text, noun)}{scale}"


@_RULES("temperature", LEFT + r"(?P<number>\d+) ?°[CС]?(?!\w)")
def _degrees_after_preposition(match: re.Match[str]) -> str | None:
    if last_word(before(match)) != "при":
        return None
    scale = " Цельсия" if match[0][-1] in "CС" else ""
    return f"{GRAMMAR.words(int(match['number']), case='p', gender='m')} градусах{scale}"


@_RULES(
    "compound",
    LEFT + r"(?P<number>\d{1,3})-(?P<rest>лет\w+|дневн\w+|часов\w+|минутн\w+|этажн\w+|метров\w+|процентн\w+)",
)
def _compound(match: re.Match[str]) -> str:
    """18-летие: "восемнадцатилетие"."""
    spoken = "".join(GRAMMAR.genitive(match["number"]).split())
    return re.sub(r"^ста$", "сто", spoken).replace("девяноста", "девяносто") + match["rest"]


@_RULES("percent", LEFT + r"(?P<number>\d*1,\d{1,3}) ?%")
def _accusative_percent(match: re.Match[str]) -> str | None:
    if last_word(before(match)) not in ("на", "в", "за", "через"):
        return None
    return GRAMMAR.count(match["number"], GRAMMAR.percent).replace("одна целая", "одну целую")


@_RULES(
    "ordinal",
    LEFT + rf"(?P<number>\d{{1,4}})-(?P<ending>{'|'.join(sorted(_ORDINAL_ENDINGS, key=len, reverse=True))})(?!\w)",
)
def _ordinal(match: re.Match[str]) -> str:
    case, gender = _ORDINAL_ENDINGS[match["ending"]]
    if (
        match["ending"] == "й"
        and last_word(before(match)) in _PREPOSITIONAL_BEFORE
        and re.match(r" \w+[еиы]\b", after(match))
    ):
        case, gender = "p", "f"
    return GRAMMAR.inflected_ordinal(int(match["number"]), case, gender)


@_RULES("street", r"(?<![\w.])(?P<short>ул|г|пл|обл)\.(?= ?[А-ЯЁ])")
def _address(match: re.Match[str]) -> str | None:
    forms = {
        "ул": ("улице", "улица"),
        "г": ("городе", "город"),
        "пл": ("площади", "площадь"),
        "обл": ("области", "область"),
    }
    return forms[match["short"]][last_word(before(match)) not in _PREPOSITIONAL_BEFORE]


LANGUAGE = build_language(GRAMMAR, _RULES)
