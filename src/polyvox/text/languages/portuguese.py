# SPDX-License-Identifier: Apache-2.0
"""Portuguese text rules, with the number words of Brazil."""

import re

from polyvox.text.languages.european_rules import build_language
from polyvox.text.languages.grammar import Noun, nouns, word_set, words
from polyvox.text.languages.romance import RomanceGrammar
from polyvox.text.rules import LEFT, Rules


class PortugueseGrammar(RomanceGrammar):
    name, code = "portuguese", "pt_BR"
    months = ("janeiro", "fevereiro", "março", "abril", "maio", "junho", "julho", "agosto", "setembro", "outubro",
              "novembro", "dezembro")  # fmt: skip
    units = nouns(
        "km = quilômetro, quilômetros; m = metro, metros; cm = centímetro, centímetros; mm = milímetro, milímetros; "
        "kg = quilo, quilos; g = grama, gramas; mg = miligrama, miligramas; t = tonelada, toneladas, f; "
        "l | L = litro, litros; ml | mL = mililitro, mililitros; ha = hectare, hectares; s = segundo, segundos; "
        "seg = segundo, segundos; min = minuto, minutos; W = watt, watts; kW = quilowatt, quilowatts; "
        "kWh = quilowatt-hora, quilowatts-hora; V = volt, volts; Hz = hertz; MHz = megahertz; GHz = gigahertz; "
        "kB | KB = kilobyte, kilobytes; MB = megabyte, megabytes; GB = gigabyte, gigabytes; "
        "TB = terabyte, terabytes; kcal = quilocaloria, quilocalorias, f; cv = cavalo, cavalos; "
        "dB = decibel, decibéis"
    )
    per_units = words(
        "h = por hora; s = por segundo; min = por minuto; kg = por quilo; km = por quilômetro; l = por litro; "
        "dia = por dia; mês = por mês; ano = por ano; m² = por metro quadrado"
    )
    money = nouns(
        "R$ | BRL = real, reais; € | EUR | euros | euro = euro, euros; $ | USD | US$ = dólar, dólares; "
        "£ | GBP = libra, libras, f; ¥ = iene, ienes"
    )
    coins = nouns(
        "R$ | BRL | $ | USD | US$ = centavo, centavos; € | EUR | euros | euro = cêntimo, cêntimos; "
        "£ | GBP = pêni, pence"
    )
    magnitudes = nouns(
        "mil = mil; milhão | milhões | mi = milhão, milhões; bilhão | bilhões | bi = bilhão, bilhões; "
        "trilhão | trilhões = trilhão, trilhões"
    )
    abbreviations = words(
        "Sr. = senhor; Sra. = senhora; Srta. = senhorita; Srs. = senhores; Dr. = doutor; Dra. = doutora; "
        "Prof. = professor; Profa. = professora; D. = dom; pág. = página; págs. = páginas; p. ex. = por exemplo; "
        "nº | n.º | n° | Nº | núm. = número; etc. = et cetera; Av. = avenida; R. = rua; Pça. = praça; "
        "tel. = telefone; Tel. = Telefone; cap. = capítulo; art. = artigo; aprox. = aproximadamente; máx. = máximo; "
        "mín. = mínimo; a.C. | a. C. = antes de Cristo; d.C. | d. C. = depois de Cristo; vol. = volume; "
        "fig. = figura; Sto. = santo; Sta. = santa; apto. = apartamento"
    )
    fractions = words(
        "1/2 = meio; 1/3 = um terço; 2/3 = dois terços; 1/4 = um quarto; 3/4 = três quartos; 1/5 = um quinto; "
        "2/5 = dois quintos; 3/5 = três quintos; 4/5 = quatro quintos; 1/8 = um oitavo; 1/10 = um décimo"
    )
    signs = words(
        "& = e; + = mais; = = igual a; < = menor que; > = maior que; × = vezes; * = vezes; ÷ = dividido por; "
        "± = mais ou menos; § = parágrafo; ≈ = aproximadamente; ≤ = menor ou igual a; ≥ = maior ou igual a; "
        "% = por cento"
    )
    percent, degree = Noun("por cento"), Noun("grau", "graus")
    comma, point, minus, plus, to, versus, of_money = "vírgula", "ponto", "menos", "mais", "a", "a", " de "
    words_before_date = ("em", "dia", "até", "no", "desde")
    of_fraction = " de "
    dot, at_sign, slash, dash, number_sign = "ponto", "arroba", "barra", "hífen", "número"
    labels = word_set(
        "capítulo página quarto número sala artigo linha versão parte tomo volume plataforma rua grupo tipo dia"
    )
    not_nouns = word_set(
        "é e ou de do da em a ao à às por para com que está estão são foi não se o os as um uma já como mas sem até "
        "desde mais menos trata tem há era sobre entre quando na no"
    )
    date_words = ("de", "do")
    joining_words = ("e", "a", "às", "x", "horas")
    feminine_endings = ("a", "as", "ção", "ções", "são", "sões", "dade", "dades", "gem", "gens")
    feminine_nouns = word_set(
        "vez vezes colher colheres xícara xícaras noite noites tarde tardes mulher mulheres parte partes classe classes"
    )
    phone = r"(?:\(\d\d\) ?9?\d{4}-?\d{4}|\d\d 9\d{4}-\d{4}|9?\d{4}-\d{4}|0800[ -]\d{3}[ -]\d{4})"

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        spoken, rest = self.words(value), value % 1_000_000
        if (
            rest > 100 and rest % 100_000 and not (rest < 1000 and rest % 100 == 0)
        ):  # "e" stands before round numbers only
            spoken = spoken.replace("milhão e ", "milhão ").replace("milhões e ", "milhões ")
        if gender == "f":
            spoken = re.sub(r"entos\b", "entas", spoken)
            spoken = re.sub(r"\bdois(?= mil\b|$)", "duas", spoken)
            spoken = re.sub(r"\bum(?= mil\b|$)", "uma", spoken)
        return spoken

    def ordinal(self, value: int, gender: str = "m") -> str:
        spoken = self.words(value, "ordinal")
        return " ".join(word[:-1] + "a" for word in spoken.split()) if gender == "f" else spoken

    def price(self, whole: str, cents: str, noun: Noun, coin: Noun) -> str:
        return f"{self.count(whole, noun)} e {self.count(cents, coin)}"

    def large(self, text: str, magnitude: Noun, noun: Noun | None) -> str:
        if magnitude.one == "mil":
            return f"{self.number(text)} mil" + (f" {noun.many}" if noun else "")
        return super().large(text, magnitude, noun)

    def square(self, noun: Noun, power: str) -> Noun:
        name = "quadrado" if power in "²2" else "cúbico"
        return Noun(f"{noun.one} {name}", f"{noun.many} {name}s", noun.gender)

    def date(self, day: int, month: int, year: str, before: str) -> str:
        spoken = f"{'primeiro' if day == 1 else self.cardinal(day)} de {self.months[month - 1]}"
        return f"{spoken} de {self.year(int(year))}" if year else spoken

    def time_span(self, first: str, last: str) -> str:
        return f"das {first} às {last}"

    def clock(self, hour: int, minute: int, unit: str) -> str:
        spoken = self.cardinal(hour, "f")
        if minute:
            return f"{spoken} e {self.cardinal(minute)}"
        return f"{spoken} {'hora' if hour == 1 else 'horas'}"

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        if spoken := self.roman_before_noun(value, before, after):
            return spoken
        if re.search(r"\b(?:século|séculos|capítulo|tomo|ato|volume|parte) $", before, re.IGNORECASE):
            return self.cardinal(value)
        if re.search(r"\b[A-ZÁÂÉÍÓÚ][^\W0-9_]{2,} $", before):
            return self.ordinal(value) if value <= 10 else self.cardinal(value)
        return None


GRAMMAR = PortugueseGrammar()
_RULES = Rules()


@_RULES(
    "ordinal",
    LEFT + rf"(\d{{1,3}})\.?(?P<mark>[ºª°])(?!\w)(?! ?[CF]\b)(?! de (?:{'|'.join(PortugueseGrammar.months)}))",
)
def _ordinal(match: re.Match[str]) -> str:
    return GRAMMAR.ordinal(int(match[1]), "f" if match["mark"] == "ª" else "m")


@_RULES("score", LEFT + r"(\d{1,2}) ?x ?(\d{1,2})(?!\w)(?! ?(?:c?m|k?g|p))")
def _score(match: re.Match[str]) -> str:
    return f"{GRAMMAR.integer(match[1])} a {GRAMMAR.integer(match[2])}"


LANGUAGE = build_language(GRAMMAR, _RULES)
