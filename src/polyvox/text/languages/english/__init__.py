# SPDX-License-Identifier: Apache-2.0
"""English text rules."""

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.abbreviations import SHORT_FORMS
from polyvox.text.languages.english.dates import DATES
from polyvox.text.languages.english.electronic import ELECTRONIC, code, link
from polyvox.text.languages.english.formulas import FORMULAS
from polyvox.text.languages.english.joining import joins_next
from polyvox.text.languages.english.measures import MEASURES
from polyvox.text.languages.english.money import MONEY_RULES
from polyvox.text.languages.english.number_words import cardinal
from polyvox.text.languages.english.numbers import NUMBERS
from polyvox.text.languages.english.phones import PHONES
from polyvox.text.languages.english.roman import ROMAN
from polyvox.text.languages.english.say_as import say_as
from polyvox.text.languages.english.signs import FIRST_SIGNS, SIGNS
from polyvox.text.languages.english.times import TIMES
from polyvox.text.languages.language_rules import Announcements, LanguageRules

# In the order in which they are tried. Formulas are tried before all other markup.
RULES = [
    *ELECTRONIC,
    *FIRST_SIGNS,
    *DATES,
    *TIMES,
    *PHONES,
    *MONEY_RULES,
    *MEASURES,
    *ROMAN,
    *NUMBERS,
    *SHORT_FORMS,
    *SIGNS,
]

# Words at which a rule may start; all others are spoken as they are. Roman numerals are found by their letters.
SPECIAL_WORDS = {name.split(".")[0] for name in tables.ABBREVIATIONS} | {"ed", *tables.COUNTRIES, *"CFJRHwxcbN"}
SPECIAL_WORDS |= {sign for sign in tables.MONEY if len(sign) == 3} | set(tables.GREEK)
SPECIAL_WORDS |= {name[:size] for name in (*tables.MONTHS, *tables.WEEKDAYS) for size in (3, 4, 5, 9)}


def _code_block(num_lines: int) -> str:
    return f"Code block, {cardinal(str(num_lines))} {'line' if num_lines == 1 else 'lines'}, left out."


LANGUAGE = LanguageRules(
    "english",
    RULES,
    frozenset(SPECIAL_WORDS),
    joins_next,
    FORMULAS,
    cardinal,
    tables.SIGNS,
    link,
    code,
    say_as,
    Announcements(_code_block, "image", "to do:", "done:"),
    names_emoji=True,
    keeps_foreign_numbers=True,
)
