# SPDX-License-Identifier: Apache-2.0
"""Spanish text rules."""

import re

from polyvox.text.languages.european_rules import build_language, last_word
from polyvox.text.languages.grammar import Noun, nouns, word_set, words
from polyvox.text.languages.romance import RomanceGrammar
from polyvox.text.rules import LEFT, Rules, after, before


class SpanishGrammar(RomanceGrammar):
    name, code = "spanish", "es"
    months = ("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre",
              "noviembre", "diciembre")  # fmt: skip
    units = nouns(
        "km = kilómetro, kilómetros; m = metro, metros; cm = centímetro, centímetros; mm = milímetro, milímetros; "
        "kg = kilo, kilos; g = gramo, gramos; mg = miligramo, miligramos; t = tonelada, toneladas, f; "
        "l | L = litro, litros; ml = mililitro, mililitros; cl = centilitro, centilitros; "
        "ha = hectárea, hectáreas, f; s = segundo, segundos; seg = segundo, segundos; min = minuto, minutos; "
        "W = vatio, vatios; kW = kilovatio, kilovatios; kWh = kilovatio hora, kilovatios hora; V = voltio, voltios; "
        "Hz = hercio, hercios; MHz = megahercio, megahercios; GHz = gigahercio, gigahercios; "
        "kB | KB = kilobyte, kilobytes; MB = megabyte, megabytes; GB = gigabyte, gigabytes; "
        "TB = terabyte, terabytes; kcal = kilocaloría, kilocalorías, f; CV = caballo, caballos; "
        "dB = decibelio, decibelios"
    )
    per_units = words(
        "h = por hora; s = por segundo; min = por minuto; kg = por kilo; km = por kilómetro; l = por litro; "
        "día = por día; mes = al mes; año = al año; m² = por metro cuadrado"
    )
    money = nouns(
        "€ | EUR | euros | euro = euro, euros; $ | USD | US$ = dólar, dólares; £ | GBP = libra, libras, f; "
        "¥ = yen, yenes; MXN = peso mexicano, pesos mexicanos; CHF = franco suizo, francos suizos"
    )
    coins = nouns(
        "€ | EUR | euros | euro = céntimo, céntimos; $ | USD | US$ | MXN = centavo, centavos; "
        "£ | GBP = penique, peniques"
    )
    magnitudes = nouns(
        "mil = mil; millón | millones | M | mill. = millón, millones; billón | billones = billón, billones"
    )
    abbreviations = words(
        "Sr. = señor; Sra. = señora; Srta. = señorita; Sres. = señores; D. = don; Dña. = doña; Dr. = doctor; "
        "Dra. = doctora; Prof. = profesor; Ud. = usted; Uds. = ustedes; pág. = página; págs. = páginas; "
        "p. ej. = por ejemplo; n.º | núm. | N.º = número; etc. = etcétera; C/ = calle; c/ = calle; "
        "Avda. | Av. = avenida; Pza. = plaza; EE. UU. | EE.UU. = Estados Unidos; aprox. = aproximadamente; "
        "máx. = máximo; mín. = mínimo; tel. = teléfono; Tel. = Teléfono; cap. = capítulo; art. = artículo; "
        "a. C. = antes de Cristo; d. C. = después de Cristo; a. m. | a.m. = a. m.; p. m. | p.m. = p. m.; "
        "vol. = volumen; fig. = figura; Sto. = santo; Sta. = santa"
    )
    fractions = words(
        "1/2 = medio; 1/3 = un tercio; 2/3 = dos tercios; 1/4 = un cuarto; 3/4 = tres cuartos; 1/5 = un quinto; "
        "2/5 = dos quintos; 3/5 = tres quintos; 4/5 = cuatro quintos; 1/8 = un octavo; 1/10 = un décimo"
    )
    signs = words(
        "& = y; + = más; = = igual a; < = menor que; > = mayor que; × = por; * = por; ÷ = entre; ± = más menos; "
        "§ = sección; ≈ = aproximadamente; ≤ = menor o igual que; ≥ = mayor o igual que; % = por ciento"
    )
    percent, degree = Noun("por ciento"), Noun("grado", "grados")
    comma, point, minus, plus, to, versus, of_money = "coma", "punto", "menos", "más", "a", "a", " de "
    words_before_date = ("el", "del", "al", "día")
    of_fraction = " de "
    dot, at_sign, slash, dash, number_sign = "punto", "arroba", "barra", "guion", "número"
    labels = word_set(
        "capítulo página habitación número sala artículo línea versión parte tomo volumen andén punto calle grupo tipo"
    )
    not_nouns = word_set(
        "es y o u de del en a al por para con que está están son fue no se el la los las un una e ya como pero sin "
        "hasta desde si más menos trata tiene hay era sobre entre cuando"
    )
    date_words = ("de", "del")
    joining_words = ("y", "a", "horas", "h", "p.", "a.")
    feminine_endings = ("a", "as", "ción", "ciones", "sión", "siones", "dad", "dades")
    feminine_nouns = word_set(
        "vez veces noche noches tarde tardes mujer mujeres clase clases calle calles parte partes"
    )
    own_words = ("1.er", "C/")
    phone = r"(?:[6-9]\d\d[ .-]\d{3}[ .-]\d{3}|[6-9]\d\d(?:[ .-]\d\d){3}|[6-9]\d{8})"

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        spoken = re.sub(r"veintiuno (?=mil)", "veintiún ", self.words(value))
        spoken = re.sub(r"uno (?=mil)", "un ", spoken)
        if gender == "f":
            spoken = re.sub(r"cientos\b", "cientas", spoken)
            spoken = re.sub(r"quinientos\b", "quinientas", spoken)
            return spoken[:-1] + "a" if spoken.endswith("uno") else spoken
        if attributive and spoken.endswith("veintiuno"):
            return spoken[:-3] + "ún"
        return spoken[:-1] if attributive and spoken.endswith("uno") else spoken

    def ordinal(self, value: int, gender: str = "m") -> str:
        spoken = self.words(value, "ordinal")
        return " ".join(word[:-1] + "a" for word in spoken.split()) if gender == "f" else spoken

    def price(self, whole: str, cents: str, noun: Noun, coin: Noun) -> str:
        return f"{self.count(whole, noun)} con {self.cardinal(int(cents))}"

    def large(self, text: str, magnitude: Noun, noun: Noun | None) -> str:
        if magnitude.one == "mil":
            return f"{self.number(text)} mil" + (f" {noun.many}" if noun else "")
        return super().large(text, magnitude, noun)

    def square(self, noun: Noun, power: str) -> Noun:
        name = "cuadrado" if power in "²2" else "cúbico"
        return Noun(f"{noun.one} {name}", f"{noun.many} {name}s", noun.gender)

    def date(self, day: int, month: int, year: str, before: str) -> str:
        spoken = f"{self.cardinal(day)} de {self.months[month - 1]}"
        return f"{spoken} de {self.year(int(year))}" if year else spoken

    def time_span(self, first: str, last: str) -> str:
        return f"de {first} a {last}"

    def clock(self, hour: int, minute: int, unit: str) -> str:
        spoken = self.cardinal(hour, "f")
        if minute:
            return f"{spoken} {'cero ' if minute < 10 else ''}{self.cardinal(minute)}"
        return f"{spoken} {'hora' if hour == 1 else 'horas'}" if unit else spoken

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        if spoken := self.roman_before_noun(value, before, after):
            return spoken
        if re.search(r"\b(?:siglo|siglos|capítulo|tomo|acto|volumen|parte|y) $", before, re.IGNORECASE):
            return self.cardinal(value)
        if re.search(r"\b[A-ZÁÉÍÓÚ][^\W0-9_]{2,} $", before):
            return self.ordinal(value) if value <= 10 else self.cardinal(value)
        return None


GRAMMAR = SpanishGrammar()
_RULES = Rules()


@_RULES("ordinal", LEFT + r"(\d{1,3})\.?(?P<mark>er|[ºª°]|ro|ra|do|da|to|ta)(?!\w)(?! ?[CF]\b)")
def _ordinal(match: re.Match[str]) -> str:
    mark = match["mark"]
    spoken = GRAMMAR.ordinal(int(match[1]), "f" if mark in ("ª", "ra", "da", "ta") else "m")
    noun = re.match(r" [^\W0-9_]+", after(match))
    if spoken.endswith(("primero", "tercero")) and (mark == "er" or (noun and last_word(before(match)) != "de")):
        return spoken[:-1]
    return spoken


LANGUAGE = build_language(GRAMMAR, _RULES)
