# SPDX-License-Identifier: Apache-2.0
"""French text rules."""

import re

from polyvox.text.languages.european_rules import NUM, build_language
from polyvox.text.languages.grammar import Grammar, Noun, nouns, word_set, words
from polyvox.text.rules import LEFT, Rules

_FEMININE = word_set(
    "heure heures minute minutes seconde secondes page pages personne personnes fois année années semaine semaines "
    "voiture voitures femme femmes fille filles chambre chambres question questions journée journées "
    "nuit nuits pièce pièces maison maisons tranche tranches cuillère cuillères tasse tasses pomme pommes bouteille "
    "bouteilles école écoles ville villes équipe équipes victoire victoires victime victimes ligne lignes vidéo "
    "vidéos étape étapes photo photos livre-sterling tonne tonnes part parts boîte boîtes carte cartes table tables "
    "étoile étoiles lettre lettres"
)
_FEMININE_ENDINGS = ("tion", "tions", "sion", "sions", "ette", "ettes", "euse", "euses", "ité", "ités", "ance", "ances")


class FrenchGrammar(Grammar):
    name, code = "french", "fr"
    months = ("janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre",
              "novembre", "décembre")  # fmt: skip
    short_months = ("janv", "févr", "mars", "avr", "mai", "juin", "juil", "août", "sept", "oct", "nov", "déc")
    units = nouns(
        "km = kilomètre, kilomètres; m = mètre, mètres; cm = centimètre, centimètres; mm = millimètre, millimètres; "
        "kg = kilo, kilos; g = gramme, grammes; mg = milligramme, milligrammes; t = tonne, tonnes, f; "
        "l | L = litre, litres; ml | mL = millilitre, millilitres; cl | cL = centilitre, centilitres; "
        "dl = décilitre, décilitres; ha = hectare, hectares; s = seconde, secondes, f; min = minute, minutes, f; "
        "W = watt, watts; kW = kilowatt, kilowatts; kWh = kilowattheure, kilowattheures; V = volt, volts; "
        "Hz = hertz; kHz = kilohertz; MHz = mégahertz; GHz = gigahertz; ko | Ko = kilooctet, kilooctets; "
        "Mo = mégaoctet, mégaoctets; Go = gigaoctet, gigaoctets; To = téraoctet, téraoctets; "
        "GB = gigaoctet, gigaoctets; MB = mégaoctet, mégaoctets; kcal = kilocalorie, kilocalories, f; "
        "ch = cheval, chevaux; dB = décibel, décibels"
    )
    per_units = words(
        "h = par heure; s = par seconde; min = par minute; kg = par kilo; km = par kilomètre; l = par litre; "
        "jour = par jour; mois = par mois; an = par an; m² = par mètre carré"
    )
    money = nouns(
        "€ | EUR | euros | euro = euro, euros; $ | USD | US$ = dollar, dollars; £ | GBP = livre, livres, f; "
        "¥ = yen, yens; CHF = franc suisse, francs suisses; M€ = million d'euros, millions d'euros; "
        "k€ = millier d'euros, mille euros"
    )
    coins = nouns(
        "€ | EUR | euros | euro | CHF = centime, centimes; $ | USD | US$ = cent, cents; £ | GBP = penny, pence"
    )
    magnitudes = nouns(
        "million | millions | M = million, millions; milliard | milliards | Md | Mds = milliard, milliards; "
        "mille = mille, mille"
    )
    abbreviations = words(
        "M. = Monsieur; MM. = Messieurs; Mme = Madame; Mmes = Mesdames; Mlle = Mademoiselle; Dr = docteur; "
        "Pr = professeur; Me = maître; p. ex. = par exemple; c. à café = cuillère à café; "
        "c. à soupe = cuillère à soupe; p. = page; pp. = pages; n° = numéro; N° = Numéro; no. = numéro; nos = nos; "
        "etc. = et cetera; av. = avenue; bd = boulevard; Bd = Boulevard; env. = environ; tél. = téléphone; "
        "Tél. = Téléphone; chap. = chapitre; art. = article; vol. = volume; fig. = figure; c.-à-d. = c'est-à-dire; "
        "cf. = voir; St = Saint; Ste = Sainte; av. J.-C. = avant Jésus-Christ; apr. J.-C. = après Jésus-Christ; "
        "max. = maximum; min. = minimum"
    )
    fractions = words(
        "1/2 = un demi; 1/3 = un tiers; 2/3 = deux tiers; 1/4 = un quart; 3/4 = trois quarts; 1/5 = un cinquième; "
        "2/5 = deux cinquièmes; 3/5 = trois cinquièmes; 4/5 = quatre cinquièmes; 1/8 = un huitième; "
        "1/10 = un dixième"
    )
    signs = words(
        "& = et; + = plus; = = égale; < = inférieur à; > = supérieur à; × = fois; * = fois; ÷ = divisé par; "
        "± = plus ou moins; § = paragraphe; ≈ = environ; ≤ = inférieur ou égal à; ≥ = supérieur ou égal à; "
        "% = pour cent"
    )
    percent, degree = Noun("pour cent", ""), Noun("degré", "degrés")
    comma, point, minus, plus, to, versus, of_money = "virgule", "point", "moins", "plus", "à", "à", " de "
    words_before_date = ("le", "au", "du", "dès")
    of_fraction = " de "
    dot, at_sign, slash, dash, number_sign = "point", "arobase", "barre oblique", "tiret", "numéro"
    labels = word_set("chapitre page chambre numéro salle article ligne version partie tome volume quai étape")
    special_pattern = "[IVX]+(?:er|re|e|ème)"
    joining_words = ("h", "heures", "heure", "à", "et")
    phone = r"0\d(?:[ .-]\d\d){4}"

    def cardinal(self, value: int, gender: str = "", attributive: bool = False) -> str:
        spoken = self.words(value)
        if gender == "f" and spoken.endswith("un"):
            return spoken + "e"
        return spoken

    def ordinal(self, value: int, gender: str = "m") -> str:
        return "première" if value == 1 and gender == "f" else self.words(value, "ordinal")

    def form(self, text: str, noun: Noun) -> str:
        whole = text.lstrip("-−+±").partition(",")[0]
        return noun.one if whole in ("0", "1") else noun.many

    def large(self, text: str, magnitude: Noun, noun: Noun | None) -> str:
        if magnitude.one == "mille":
            return f"{self.number(text)} mille" + (f" {noun.many}" if noun else "")
        spoken = self.count(text, magnitude)
        return f"{spoken}{self.of(noun)}{noun.many}" if noun else spoken

    def of(self, noun: Noun) -> str:
        return " d'" if noun.many[0] in "aeiouy" else " de "

    def counted_noun(self, word: str, text: str) -> Noun | None:
        lower = word.lower()
        return Noun(word, "", "f") if lower in _FEMININE or lower.endswith(_FEMININE_ENDINGS) else None

    def square(self, noun: Noun, power: str) -> Noun:
        name = "carré" if power in "²2" else "cube"
        return Noun(f"{noun.one} {name}", f"{noun.many} {name}s", noun.gender)

    def degrees(self, text: str, scale: str) -> str:
        return self.count(text, self.degree) + (" Fahrenheit" if scale == "F" else "")

    def date(self, day: int, month: int, year: str, before: str) -> str:
        spoken = f"{'premier' if day == 1 else self.cardinal(day)} {self.months[month - 1]}"
        if year:
            spoken += f" {self.year(int(year))}"
        return spoken

    def time_span(self, first: str, last: str) -> str:
        return f"de {first} à {last}"

    def clock(self, hour: int, minute: int, unit: str) -> str:
        spoken = f"{self.cardinal(hour, 'f', True)} {'heure' if hour < 2 else 'heures'}"
        return f"{spoken} {self.cardinal(minute)}" if minute else spoken

    def phone_words(self, text: str) -> str:
        groups = re.findall("[0-9]+", text)
        spoken = (
            self.digits(group) if group[0] == "0" else self.cardinal(int(group)) for group in groups if len(group) < 4
        )
        if any(len(group) > 3 for group in groups):
            return super().phone_words(text)
        return (f"{self.plus} " if text.startswith("+") else "") + ", ".join(spoken)

    def roman(self, value: int, before: str, after: str, dot: str) -> str | None:
        if dot:
            return self.ordinal(value, "f" if dot == "re" else "m") if dot != "er" or value == 1 else None
        if value > 1 and re.search(r"\b[A-ZÀ-Ý][^\W0-9_]{2,} $", before):
            return self.cardinal(value)
        return (
            self.cardinal(value)
            if re.search(r"\b(?:chapitre|tome|acte|partie|volume|livre) $", before, re.IGNORECASE)
            else None
        )


GRAMMAR = FrenchGrammar()
_RULES = Rules()


@_RULES(
    "ordinal",
    LEFT
    + r"(\d{1,4})(?:(?P<first>er|ers|re|res|ère|ères)|(?:e|ème|ième|nd|nde)s?)(?!\w)"
    + rf"(?! (?:{'|'.join(FrenchGrammar.months)}))",
)
def _ordinal(match: re.Match[str]) -> str:
    feminine = (match["first"] or "").startswith(("r", "è"))
    return GRAMMAR.ordinal(int(match[1]), "f" if feminine else "m")


@_RULES("time", LEFT + r"(\d{1,2}) ?h ?(\d\d)? ?[-–] ?(\d{1,2}) ?h ?(\d\d)?(?!\w)")
def _hours(match: re.Match[str]) -> str:
    first, last = (GRAMMAR.clock(int(match[i]), int(match[i + 1] or 0), "h") for i in (1, 3))
    return f"{first} à {last}"


@_RULES("measure", LEFT + r"(\d),(\d\d) ?m(?!\w)(?=[ ,;.)]|$)")
def _height(match: re.Match[str]) -> str | None:
    if match[2][0] == "0":
        return None
    return f"{GRAMMAR.count(match[1], GRAMMAR.units['m'])} {GRAMMAR.cardinal(int(match[2]))}"


@_RULES("measure", LEFT + rf"(?P<number>{NUM}) ?km/h(?!\w)")
def _speed(match: re.Match[str]) -> str:
    return f"{GRAMMAR.count(match['number'], GRAMMAR.units['km'])}-heure"


LANGUAGE = build_language(GRAMMAR, _RULES)
