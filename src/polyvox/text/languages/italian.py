# SPDX-License-Identifier: Apache-2.0
"""Italian text rules."""

import re

from polyvox.text.languages.european_rules import build_language
from polyvox.text.languages.grammar import Noun, nouns, word_set, words
from polyvox.text.languages.romance import RomanceGrammar
from polyvox.text.rules import LEFT, Rules, before

_BEFORE_TIME = re.compile(r"\b(?:alle|dalle|ore|le|dell[ae]|entro le) $", re.IGNORECASE)


class ItalianGrammar(RomanceGrammar):
    name, code = "italian", "it"
    months = ("gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto", "settembre", "ottobre",
              "novembre", "dicembre")  # fmt: skip
    units = nouns(
        "km = chilometro, chilometri; m = metro, metri; cm = centimetro, centimetri; mm = millimetro, millimetri; "
        "kg = chilo, chili; g | gr = grammo, grammi; mg = milligrammo, milligrammi; t = tonnellata, tonnellate, f; "
        "l | L = litro, litri; ml = millilitro, millilitri; cl = centilitro, centilitri; dl = decilitro, decilitri; "
        "ha = ettaro, ettari; hg = etto, etti; s = secondo, secondi; sec = secondo, secondi; min = minuto, minuti; "
        "h = ora, ore, f; W = watt; kW = kilowatt; kWh = kilowattora; V = volt; Hz = hertz; MHz = megahertz; "
        "GHz = gigahertz; kB | KB = kilobyte; MB = megabyte; GB = gigabyte; TB = terabyte; "
        "kcal = chilocaloria, chilocalorie, f; CV = cavallo, cavalli; dB = decibel; "
        "mq = metro quadrato, metri quadrati"
    )
    per_units = words(
        "h = all'ora; s = al secondo; min = al minuto; kg = al chilo; km = al chilometro; l = al litro; "
        "giorno = al giorno; mese = al mese; anno = all'anno; m² = al metro quadrato"
    )
    money = nouns(
        "€ | EUR | euro = euro; $ | USD | US$ = dollaro, dollari; £ | GBP = sterlina, sterline, f; ¥ = yen; "
        "CHF = franco svizzero, franchi svizzeri"
    )
    coins = nouns("€ | EUR | euro = centesimo, centesimi; $ | USD | US$ = centesimo, centesimi; £ | GBP = penny, pence")
    magnitudes = nouns(
        "mila = mila; milione | milioni | mln | mln. = milione, milioni; "
        "miliardo | miliardi | mld | mld. = miliardo, miliardi"
    )
    abbreviations = words(
        "sig. | Sig. = signor; sig.ra | Sig.ra = signora; sig.na | Sig.na = signorina; sigg. | Sigg. = signori; "
        "dott. | Dott. = dottor; dott.ssa | Dott.ssa = dottoressa; prof. | Prof. = professor; "
        "prof.ssa | Prof.ssa = professoressa; avv. | Avv. = avvocato; ing. | Ing. = ingegner; pag. = pagina; "
        "pagg. = pagine; n. = numero; nr. = numero; N. = numero; ecc. = eccetera; etc. = eccetera; es. = esempio; "
        "ad es. = ad esempio; P.za | p.za | P.zza | p.zza = piazza; V.le | v.le = viale; C.so | c.so = corso; "
        "tel. = telefono; Tel. = Telefono; cap. = capitolo; art. = articolo; ca. = circa; max. = massimo; "
        "min. = minimo; a.C. = avanti Cristo; d.C. = dopo Cristo; vol. = volume; fig. = figura; S. = San"
    )
    sentence_end_abbreviations = ("ecc.", "etc.")
    fractions = words(
        "1/2 = mezzo; 1/3 = un terzo; 2/3 = due terzi; 1/4 = un quarto; 3/4 = tre quarti; 1/5 = un quinto; "
        "2/5 = due quinti; 3/5 = tre quinti; 4/5 = quattro quinti; 1/8 = un ottavo; 1/10 = un decimo"
    )
    signs = words(
        "& = e; + = più; = = uguale a; < = minore di; > = maggiore di; × = per; * = per; ÷ = diviso; "
        "± = più o meno; § = paragrafo; ≈ = circa; ≤ = minore o uguale a; ≥ = maggiore o uguale a; % = per cento"
    )
    percent, degree = Noun("per cento"), Noun("grado", "gradi")
    comma, point, minus, plus, to, versus, of_money = "virgola", "punto", "meno", "più", "a", "a", " di "
    words_before_date = ("il", "al", "dal", "del")
    of_fraction = " di "
    dot, at_sign, slash, dash, number_sign = "punto", "chiocciola", "barra", "trattino", "numero"
    labels = word_set(
        "capitolo pagina camera numero sala articolo linea versione parte tomo volume binario via gruppo tipo alle "
        "le ore"
    )
    not_nouns = word_set(
        "è e o di del della in a al per con che sono era non si il lo la i gli le un una ma come fino da dal su più "
        "meno ha"
    )
    joining_words = ("e", "a", "alle", "di")
    feminine_endings = ("a",)
    phone = r"(?:0\d{1,3}[ ./-]\d{4,8}(?: \d{2,4})?|3\d\d[ .-]?\d{3}[ .-]?\d{3,4})"

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        if value == 1 and attributive:
            return "una" if gender == "f" else "un"
        spoken = self.words(value).replace("dicotto", "diciotto")
        return re.sub(r"(?<=[a-z])tre$", "tré", spoken)

    def ordinal(self, value: int, gender: str = "m") -> str:
        spoken = (
            self.words(value, "ordinal")
            .replace("ventitresimo", "ventitreesimo")
            .replace("ventiseisimo", "ventiseiesimo")
        )
        return spoken[:-1] + "a" if gender == "f" else spoken

    def price(self, whole: str, cents: str, noun: Noun, coin: Noun) -> str:
        return f"{self.count(whole, noun)} e {self.cardinal(int(cents))}"

    def large(self, text: str, magnitude: Noun, noun: Noun | None) -> str:
        if magnitude.one == "mila":
            return f"{self.number(text)}mila" + (f" {noun.many}" if noun else "")
        return super().large(text, magnitude, noun)

    def square(self, noun: Noun, power: str) -> Noun:
        one, many = ("quadrato", "quadrati") if power in "²2" else ("cubo", "cubi")
        return Noun(f"{noun.one} {one}", f"{noun.many} {many}", noun.gender)

    def date(self, day: int, month: int, year: str, before: str) -> str:
        first = "uno" if before.endswith("l'") else "primo"
        spoken = f"{first if day == 1 else self.cardinal(day)} {self.months[month - 1]}"
        return f"{spoken} {self.year(int(year))}" if year else spoken

    def time_span(self, first: str, last: str) -> str:
        return f"dalle {first} alle {last}"

    def clock(self, hour: int, minute: int, unit: str) -> str:
        spoken = "una" if hour == 1 else self.cardinal(hour)
        return f"{spoken} e {self.cardinal(minute)}" if minute else spoken

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        if spoken := self.roman_before_noun(value, before, after):
            return spoken
        if re.match(r" secol[oi]\b", after) or re.search(r"\bsecolo $", before):
            return self.ordinal(value)
        if re.search(r"\b[A-Z][^\W0-9_]{2,} $", before) and (
            value > 1 or re.search(r"\b(?:Re|Papa|Carlo|Umberto|Francesco|Napoleone) $", before)
        ):
            return self.ordinal(value)
        return (
            self.cardinal(value)
            if re.search(r"\b(?:capitolo|tomo|atto|volume|parte) $", before, re.IGNORECASE)
            else None
        )


GRAMMAR = ItalianGrammar()
_RULES = Rules()


@_RULES(
    "ordinal",
    LEFT + rf"(\d{{1,3}})\.?(?P<mark>[ºª°])(?!\w)(?! ?[CF]\b)(?! (?:{'|'.join(ItalianGrammar.months)}))",
)
def _ordinal(match: re.Match[str]) -> str:
    return GRAMMAR.ordinal(int(match[1]), "f" if match["mark"] == "ª" else "m")


@_RULES("time", LEFT + r"(\d{1,2})\.(\d\d)(?![\w,])(?!\.\d)")
def _time(match: re.Match[str]) -> str | None:
    if not _BEFORE_TIME.search(before(match)) or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    return GRAMMAR.clock(int(match[1]), int(match[2]), "")


LANGUAGE = build_language(GRAMMAR, _RULES)
