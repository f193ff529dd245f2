# SPDX-License-Identifier: Apache-2.0
"""German text rules."""

import re

from polyvox.text.languages.european_rules import build_language, last_word
from polyvox.text.languages.grammar import Grammar, Noun, nouns, word_set, words
from polyvox.text.rules import LEFT, Rules, after, before

# Words before an ordinal, by the ending that they give it.
_WEAK = word_set("der die das dieser diese dieses jeder jede jedes welcher welche welches")
_OBLIQUE = word_set(
    "am im vom zum zur beim dem den des einem einer eines ihrem ihrer ihren seinem seiner seinen meinem meiner "
    "meinen unserem unserer deinem deiner deinen diesem diesen ab bis seit"
)
_INDEFINITE = word_set("ein ihr sein mein dein unser kein euer eine ihre seine meine deine unsere keine")
_ORDINAL_NOUNS = word_set(
    "Jahrhundert Platz Stock Etage Klasse Mal Kapitel Auflage Tag Woche Monat Jahr Liga Bundesliga Weltkrieg Runde "
    "Advent Geburtstag Minute Teil Schritt Semester Quartal Halbjahr Preis Rang Spieltag Staffel Folge Band Akt"
)
_NEUTER = word_set(
    "Buch Kind Mal Jahr Spiel Tor Haus Semester Quartal Album Lied Kapitel Jahrhundert Halbjahr Bild Kilo Pfund "
    "Glas Brot Stück Päckchen"
)
_FEMININE_ENDINGS = ("e", "ung", "heit", "keit", "schaft", "ion", "tät", "ik", "ur", "anz", "enz")
_NOT_FEMININE = word_set("Name Junge Kollege Kunde Käse Ende Auge Interesse Gebäude Gemüse Russe Franzose Affe Hase")
_FEMININE = word_set("Person Zahl Frau Tochter Mutter Nacht Uhr Stadt Hand Tür Art Antwort Wahl Zeit Fahrt Nummer")
_WEEKDAYS = words(
    "Mo = Montag; Di = Dienstag; Mi = Mittwoch; Do = Donnerstag; Fr = Freitag; Sa = Samstag; So = Sonntag"
)
_SHORT_DAYS = "|".join(_WEEKDAYS)


def _is_feminine(noun: str) -> bool:
    return noun in _FEMININE or (noun.endswith(_FEMININE_ENDINGS) and noun not in _NOT_FEMININE)


class GermanGrammar(Grammar):
    name, code = "german", "de"
    months = ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November",
              "Dezember")  # fmt: skip
    short_months = ("Jan", "Feb", "Mär", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep", "Okt", "Nov", "Dez")
    units = nouns(
        "km = Kilometer; m = Meter; cm = Zentimeter; mm = Millimeter; kg = Kilogramm,,n; g = Gramm,,n; "
        "mg = Milligramm,,n; t = Tonne, Tonnen, f; l | L = Liter; ml = Milliliter; cl = Zentiliter; dl = Deziliter; "
        "ha = Hektar; qm = Quadratmeter; s = Sekunde, Sekunden, f; Sek. | sek = Sekunde, Sekunden, f; "
        "Min. | min | Min = Minute, Minuten, f; Std. | h = Stunde, Stunden, f; W = Watt,,n; kW = Kilowatt,,n; "
        "kWh = Kilowattstunde, Kilowattstunden, f; MW = Megawatt,,n; V = Volt,,n; Hz = Hertz,,n; "
        "kHz = Kilohertz,,n; MHz = Megahertz,,n; GHz = Gigahertz,,n; kB | KB = Kilobyte,,n; MB = Megabyte,,n; "
        "GB = Gigabyte,,n; TB = Terabyte,,n; kcal = Kilokalorie, Kilokalorien, f; PS = P S; EL = Esslöffel; "
        "TL = Teelöffel; Stk. = Stück,,n; Mbit = Megabit,,n; dB = Dezibel,,n; hPa = Hektopascal,,n"
    )
    per_units = words(
        "h = pro Stunde; s = pro Sekunde; min = pro Minute; km = pro Kilometer; kg = pro Kilogramm; l = pro Liter; "
        "m² = pro Quadratmeter; Tag = pro Tag; Monat = pro Monat; Jahr = pro Jahr; 100 = pro hundert"
    )
    money = nouns(
        "€ | EUR | Euro = Euro; $ | USD | US$ = Dollar; £ | GBP = Pfund,,n; ¥ = Yen; CHF = Franken; ct | Ct = Cent"
    )
    coins = nouns("€ | EUR | Euro | $ | USD | US$ = Cent; £ | GBP = Penny, Pence; CHF = Rappen")
    magnitudes = nouns(
        "Tsd. = tausend; Mio. | Mio | Million | Millionen = Million, Millionen, f; "
        "Mrd. | Mrd | Milliarde | Milliarden = Milliarde, Milliarden, f; Bio. | Billionen = Billion, Billionen, f"
    )
    abbreviations = words(
        "z.B. | z. B. = zum Beispiel; d.h. | d. h. = das heißt; u.a. | u. a. = unter anderem; "
        "i.d.R. | i. d. R. = in der Regel; z.T. | z. T. = zum Teil; v.a. | v. a. = vor allem; "
        "o.ä. | o. ä. = oder ähnliches; u.U. | u. U. = unter Umständen; usw. = und so weiter; "
        "bzw. = beziehungsweise; ca. = circa; evtl. = eventuell; ggf. = gegebenenfalls; vgl. = vergleiche; "
        "inkl. = inklusive; exkl. = exklusive; zzgl. = zuzüglich; max. = maximal; min. = mindestens; "
        "sog. = sogenannte; Dr. = Doktor; Prof. = Professor; Hr. = Herr; Fr. = Frau; Nr. = Nummer; Abs. = Absatz; "
        "Art. = Artikel; Kap. = Kapitel; Tel. = Telefon; Str. = Straße; Pl. = Platz; Mo. = Montag; Di. = Dienstag; "
        "Mi. = Mittwoch; Do. = Donnerstag; Sa. = Samstag; So. = Sonntag; Jh. = Jahrhundert; v. Chr. = vor Christus; "
        "n. Chr. = nach Christus; St. = Sankt; bspw. = beispielsweise; etc. = et cetera; geb. = geboren; "
        "gest. = gestorben; einschl. = einschließlich; Abb. = Abbildung"
    )
    fractions = words(
        "1/2 = ein halb; 1/3 = ein Drittel; 2/3 = zwei Drittel; 1/4 = ein Viertel; 3/4 = drei Viertel; "
        "1/5 = ein Fünftel; 2/5 = zwei Fünftel; 3/5 = drei Fünftel; 4/5 = vier Fünftel; 1/8 = ein Achtel; "
        "1/10 = ein Zehntel"
    )
    signs = words(
        "& = und; + = plus; = = gleich; < = kleiner als; > = größer als; × = mal; * = mal; ÷ = geteilt durch; "
        "± = plus minus; § = Paragraf; ≈ = ungefähr; ≤ = kleiner gleich; ≥ = größer gleich; % = Prozent"
    )
    percent, degree = Noun("Prozent", "", "n"), Noun("Grad")
    comma, point, minus, plus, to, versus = "Komma", "Punkt", "minus", "plus", "bis", "zu"
    dot, at_sign, slash, dash, number_sign = "Punkt", "ät", "Schrägstrich", "Bindestrich", "Nummer"
    labels = word_set("kapitel zimmer seite nummer punkt teil band artikel absatz gleis linie version klasse")
    ordinal_dot = capitalises_nouns = True
    own_words, special_pattern = ("S.", *_WEEKDAYS), r"\w+str"
    joining_words = ("Uhr", "bis", "und")
    phone = r"(?:0\d{1,5}[ /-]\d{2,}(?:[ -]\d{2,}){0,4}|\(0\d{1,5}\) ?\d{3,}(?:[ -]\d{2,}){0,3}|01\d{8,10})"

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        if value == 1 and attributive:
            return "eine" if gender == "f" else "ein"
        return re.sub(r"^ein(?=hundert|tausend)", "", self.words(value)) if value < 2000 else self.words(value)

    def ordinal(self, value: int, gender: str = "m") -> str:
        return re.sub(r"siebente$", "siebte", self.words(value, "ordinal"))

    def year(self, value: int) -> str:
        if not 1100 <= value < 2000:
            return self.cardinal(value)
        hundreds, rest = divmod(value, 100)
        return f"{self.cardinal(hundreds)}hundert" + (self.cardinal(rest) if rest else "")

    def decimals(self, text: str) -> str:
        return self.digits(text)

    def form(self, text: str, noun: Noun) -> str:
        return noun.one if text.lstrip("-−+±") in ("1", "1,0") else noun.many

    def large(self, text: str, magnitude: Noun, noun: Noun | None) -> str:
        if magnitude.one == "tausend":
            return f"{self.number(text)} tausend" + (f" {noun.many}" if noun else "")
        return super().large(text, magnitude, noun)

    def price(self, whole: str, cents: str, noun: Noun, coin: Noun) -> str:
        return f"{self.number(whole, noun)} {noun.many} {self.cardinal(int(cents))}"

    def counted_noun(self, word: str, text: str) -> Noun | None:
        if word == "Uhr":
            return Noun("Uhr")
        if not word[0].isupper():
            return None
        return Noun(word, "", "f" if _is_feminine(word) else "n" if word in _NEUTER else "m")

    def square(self, noun: Noun, power: str) -> Noun:
        prefix = "Quadrat" if power in "²2" else "Kubik"
        return Noun(prefix + noun.one.lower(), prefix + noun.many.lower(), noun.gender)

    def fraction(self, over: int, under: int, noun: Noun | None = None) -> str | None:
        if (over, under) == (1, 2) and noun is not None:
            return {"f": "eine halbe", "n": "ein halbes"}.get(noun.gender, "ein halber")
        return super().fraction(over, under)

    def inflected_ordinal(self, value: int, before: str, noun: str) -> str:
        """An ordinal with the ending that the word before it and the noun after it give."""
        stem, previous = self.ordinal(value), last_word(before)
        if previous in _OBLIQUE:
            return stem + "n"
        if previous in _WEAK or _is_feminine(noun):
            return stem
        return stem + ("s" if noun in _NEUTER else "r")

    def date(self, day: int, month: int, year: str, before: str) -> str:
        spoken = f"{self.inflected_ordinal(day, before, '')} {self.months[month - 1]}"
        return f"{spoken} {self.year(int(year))}" if year else spoken

    def clock(self, hour: int, minute: int, unit: str) -> str:
        spoken = f"{self.cardinal(hour, '', attributive=True)} Uhr"
        return f"{spoken} {self.cardinal(minute)}" if minute else spoken

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        if dot == "." and before[-1:] == " " and re.search(r"[^\W0-9_]{3,} $", before) and value < 40:
            return f"der {self.ordinal(value).capitalize()}"
        return self.cardinal(value) if re.search(r"\b(?:Kapitel|Teil|Band|Akt|Typ|Weltkrieg) $", before) else None

    def phone_words(self, text: str) -> str:
        return super().phone_words(text).replace(",", "") if len(text) < 9 else super().phone_words(text)


GRAMMAR = GermanGrammar()
_RULES = Rules()


@_RULES("date", LEFT + r"(\d{1,2})\.(\d{1,2})\.(?=[ ,;:)]|$)(?! ?\d{4})")
def _day_and_month(match: re.Match[str]) -> str | None:
    day, month = int(match[1]), int(match[2])
    if not (1 <= day <= 31 and 1 <= month <= 12):
        return None
    return GRAMMAR.date(day, month, "", before(match)) + ("" if after(match).strip() else ".")


@_RULES("time", LEFT + r"(\d{1,2}) ?[-–] ?(\d{1,2}) Uhr(?!\w)")
def _hours(match: re.Match[str]) -> str:
    return f"{GRAMMAR.integer(match[1])} bis {GRAMMAR.integer(match[2], '', True)} Uhr"


@_RULES("ordinal", LEFT + r"(\d{1,3})\.(?= [^\W0-9_]| ?[-–] ?\d)")
def _ordinal(match: re.Match[str]) -> str | None:
    noun = re.match(r" ([^\W0-9_]+)", after(match))
    name, previous = noun[1] if noun else "", last_word(before(match))
    if name in ("und", "oder", "bis"):
        following = re.match(r" \w+ \d{1,3}\. ?([^\W0-9_]+)?", after(match))
        if not following:
            return None
        name = following[1] or ""
    elif previous not in _WEAK | _OBLIQUE | _INDEFINITE and name not in _ORDINAL_NOUNS and name not in GRAMMAR.months:
        return None
    return GRAMMAR.inflected_ordinal(int(match[1]), before(match), name)


@_RULES("weekdays", rf"(?<!\w)({_SHORT_DAYS})\.? ?[-–] ?({_SHORT_DAYS})(?!\w)\.?")
def _weekdays(match: re.Match[str]) -> str:
    return f"{_WEEKDAYS[match[1]]} bis {_WEEKDAYS[match[2]]}"


@_RULES("weekday", r"(?<!\w)Fr\.(?=, |,$| \d)")
def _friday(_: re.Match[str]) -> str:
    return "Freitag"


@_RULES("decade", LEFT + r"(\d0|1\d\d0|20\d0)er(?!\w)")
def _decade(match: re.Match[str]) -> str:
    return GRAMMAR.year(int(match[1])) + "er"


@_RULES("measure", LEFT + r"(\d),(\d\d) m(?= (?:groß|lang|hoch|breit|tief)\b|[.,]|$)")
def _height(match: re.Match[str]) -> str:
    return f"{GRAMMAR.cardinal(int(match[1]), 'm', True)} Meter {GRAMMAR.cardinal(int(match[2]))}"


@_RULES("street", r"(?<!\w)([A-ZÄÖÜ][\w-]+)str\.(?= ?\d| [A-ZÄÖÜ(]|,|$)")
def _street(match: re.Match[str]) -> str:
    return f"{match[1]}straße"


@_RULES("page", r"(?<![\w.])S\.(?= \d)")
def _page(_: re.Match[str]) -> str:
    return "Seite"


LANGUAGE = build_language(GRAMMAR, _RULES)
