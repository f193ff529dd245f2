# SPDX-License-Identifier: Apache-2.0
"""English reading of LaTeX formulas."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.number_words import cardinal, fraction, number
from polyvox.text.markup import FORMULA, GROUP
from polyvox.text.rules import Rules

FORMULAS = Rules()
_TOKEN = re.compile(
    rf"\\[dt]?frac *{GROUP} *{GROUP}|\\sqrt *(?:\[(?P<root>[^\[\]\n]*)\])? *{GROUP}"
    rf"|\\(?:text|mathrm|mathbf|mathbb|mathcal|operatorname|vec|hat|bar) *{GROUP}"
    r"|(?P<command>\\[A-Za-z]+)|\^ *(?:\{(?P<power>[^{}\n]*)\}|(?P<exponent>\\[A-Za-z]+|\S))"
    r"|_ *(?:\{(?P<below>[^{}\n]*)\}|(?P<index>\\[A-Za-z]+|\S))"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<word>[^\W0-9_]+)|(?P<operator>[<>!]=)|\\(?P<escaped>[%$&#_{}])|(?P<char>\S)"
)
_MAX_DEPTH = 4  # of nested groups; deeper ones are read without structure
_SILENT = "\\{}()[],;:.$&|!'\"~`"


def formula(text: str, depth: int = 0) -> str:
    """The words of a formula: "\\frac{1}{2}" as "one half", "x_1^2" as "x one squared"."""
    spoken: list[str] = []
    for token in _TOKEN.finditer(text):
        spoken.append(_say_token(token, depth + 1) if depth < _MAX_DEPTH else re.sub(r"\W+", " ", token[0]))
    return " ".join(" ".join(spoken).split())


def _say_token(token: re.Match[str], depth: int) -> str:
    over, under, inside = token[1], token[2], token[4] if token[4] is not None else token[5]
    if over is not None:
        if over.strip().isdigit() and under.strip().isdigit() and under.strip(" 0"):
            return fraction(over.strip(), under.strip())
        return f"{formula(over, depth)} over {formula(under, depth)}"
    if token[4] is not None:
        root = {"3": "cube root of", "": "square root of"}.get(token["root"] or "")
        return f"{root or formula(token['root'], depth) + 'th root of'} {formula(inside, depth)}"
    if inside is not None:
        return formula(inside, depth)
    if (power := token["power"] or token["exponent"]) is not None:
        return {"2": "squared", "3": "cubed"}.get(power.strip()) or f"to the power of {formula(power, depth)}"
    if (index := token["below"] or token["index"]) is not None:
        return formula(index, depth)
    if token["command"]:
        return tables.LATEX.get(token["command"][1:], "")
    if token["number"]:
        return number(token["number"]) if "." in token[0] else cardinal(token[0])
    if token["word"]:
        return tables.GREEK.get(token[0], token[0])
    sign = token["operator"] or token["escaped"] or token["char"] or ""
    return {"<=": "less than or equal to", ">=": "greater than or equal to", "!=": "not equal to"}.get(sign) or (
        {"-": "minus", "/": "over", "*": "times"}.get(sign) or ("" if sign in _SILENT else tables.SIGNS.get(sign, sign))
    )


@FORMULAS("formula", FORMULA.pattern)
def _formula(match: re.Match[str]) -> str | None:
    inner = match["dollars"]
    if inner is None:
        return formula(match["round"] or match["square"] or match[0])
    if inner[0] in "0123456789":  # perhaps an amount of money
        return formula(inner) if inner.isdigit() or re.search(r"[\\^_=]", inner) else None
    return formula(inner) if len(inner) <= 2 or re.search(r"[\\^_=+<>*/(-]", inner) else None
