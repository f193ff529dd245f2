# SPDX-License-Identifier: Apache-2.0
"""English rules for amounts of money."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.context import is_adjective
from polyvox.text.languages.english.measures import per_unit
from polyvox.text.languages.english.number_words import cardinal, number
from polyvox.text.rules import LEFT, NUM, SIGN, TO, Rules

MONEY_RULES = Rules()
_SIGNS = "".join(sign for sign in tables.MONEY if len(sign) == 1)
_CODES = "|".join(sign for sign in tables.MONEY if len(sign) == 3)
_LARGE = r"(?: ?(?P<large>(?:hundred|thousand|million|billion|trillion)\b|(?:[kKMBbTm]|bn|mn|tn)(?!\w)))?"
_PER = r"(?:/(?P<per>[A-Za-z]+)\.?)?"
_PLUS = r"(?P<plus>\+(?![\w ]))?"
_SINGULAR_COINS = {"cents": "cent", "pence": "penny", "centavos": "centavo", "centimes": "centime", "kopecks": "kopeck"}


@MONEY_RULES(
    "money",
    rf"(?P<minus>{SIGN})(?:(?<!\w)(?P<country>{'|'.join(tables.COUNTRIES)}))?"
    rf"(?P<sign>(?<!\w)R\$|[{_SIGNS}]|(?<!\w)(?:{_CODES})(?= ?\d)) ?(?P<amount>{NUM})"
    rf"(?:(?: (?P<first_large>million|billion|trillion))?{TO}[{_SIGNS}]?(?P<until>{NUM}))?{_LARGE}{_PLUS}{_PER}",
)
@MONEY_RULES(
    "money",
    rf"{LEFT}(?P<minus>{SIGN})(?P<country>)(?P<first_large>)(?P<amount>{NUM})(?:{TO}(?P<until>{NUM}))?{_LARGE}"
    rf"(?P<plus>) ?(?P<sign>[{_SIGNS.replace('$', '')}]|(?:{_CODES}|kr)(?!\w)){_PER}",
)
def _money(match: re.Match[str]) -> str:
    one, many, *coins = tables.MONEY[match["sign"]]
    country = tables.COUNTRIES.get(match["country"] or "", "")
    one, many = f"{country} {one}".strip(), f"{country} {many}".strip()
    if is_adjective(match):
        many = one
    amount, large = match["amount"], match["large"] or ""
    whole, _, decimals = amount.partition(".")
    plus = " plus" if match["plus"] else ""
    if large or match["until"] or len(decimals) != 2 or not coins:
        spoken = number(amount) + (f" {match['first_large']}" if match["first_large"] else "")
        spoken += f" to {number(match['until'])}" if match["until"] else ""
        spoken += f" {tables.MAGNITUDES.get(large, large)}" if large else ""
        spoken += f"{plus} {one if spoken == 'one' else many}"
    else:
        kept = [f"{number(whole)} {one if whole == '1' else many}"] if whole.strip("0,") else []
        if int(decimals) or not kept:
            coin = coins[0] if decimals != "01" else _SINGULAR_COINS.get(coins[0], coins[0])
            kept.append(f"{cardinal(str(int(decimals)))} {coin}")
        spoken = " and ".join(kept) + plus
    return ("minus " if match["minus"] else "") + spoken + per_unit(match["per"])


@MONEY_RULES("money", rf"{LEFT}({SIGN}{NUM}) ?¢")
def _cents(match: re.Match[str]) -> str:
    return f"{number(match[1])} {'cent' if match[1] == '1' or is_adjective(match) else 'cents'}"
