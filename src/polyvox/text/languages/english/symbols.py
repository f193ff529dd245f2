# SPDX-License-Identifier: Apache-2.0
"""English rules for addresses, paths, abbreviations, signs and emoji."""

import re
import unicodedata

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.quantities import digit_runs
from polyvox.text.rules import LETTER, Rules, after, before
from polyvox.text.unicode_cleaner import PICTOGRAM, is_emoji

NAMES, SIGNS = Rules(), Rules()  # applied before and after the rules for numbers
_TRAILING = ".,;:!?)]}'\"*_~…"
_SPELLED = tables.SIGNS | {
    ".": "dot",
    "/": "slash",
    "-": "dash",
    "_": "underscore",
    ":": "colon",
    "~": "tilde",
    "*": "star",
}
_CODE = _SPELLED | {"_": "", "-": "minus", "*": "times"}
_OPERATORS = {"===": "=", "==": "=", "!=": "≠", ">=": "≥", "<=": "≤", "->": "→", "=>": "→"}
_SILENT = "()[]{};,'\"`!?"
_PIECE = re.compile(rf"(?:[0-9]|{LETTER})+|.", re.DOTALL)
_SCHEME = re.compile(r"^(?:[a-z]+://|mailto:)", re.IGNORECASE)
_HYPHEN = re.compile(rf"(?<=\w)-(?={LETTER})")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W0-9_A-Z]+|[0-9]+")
_STREETS = {"St": "Street", "Dr": "Drive"}
_CAPITAL_BEFORE = re.compile(r"\b(?:[A-Z][a-z]+|[0-9]+(?:st|nd|rd|th)) $")
_CAPITAL_AFTER = re.compile(r' ["(*_]*[A-Z]')
_SEQUENCE = rf"[\U0001f1e6-\U0001f1ff]{{1,2}}|{PICTOGRAM}(?:[\U0001f3fb-\U0001f3ff]|\u200d{PICTOGRAM}){{0,8}}"
_SHORT = "|".join(re.escape(name) for name in sorted(tables.ABBREVIATIONS, key=len, reverse=True))
_HOST = rf"(?:localhost|(?:[A-Za-z0-9-]{{1,63}}\.){{1,8}}(?:{'|'.join(tables.TOP_DOMAINS)}))"
_DOMAIN = _HOST + r"(?::\d{2,5})?(?:/[^\s<>\"`|]*)?(?![\w-])(?!\.\w)"
_COMPARED = {"<": "less than or equal to", ">": "greater than or equal to", "=": "equals", "!": "not equal to"}


def spell(text: str, names: dict[str, str] = _SPELLED) -> str:
    """Letters unchanged, digits and signs by name: for addresses and code."""
    spoken: list[str] = []
    for piece in _PIECE.findall(text):
        spoken += digit_runs(piece) or [names.get(piece, "" if piece in _SILENT else piece)]
    return " ".join(" ".join(spoken).split())


def code(text: str) -> str:
    """Inline code: names as words, operators by name, brackets and quotes skipped."""
    for operator, sign in _OPERATORS.items():
        text = text.replace(operator, sign)
    return spell(_HYPHEN.sub(" ", text), _CODE)


def link(address: str) -> str:
    """An address without scheme, query and fragment."""
    return spell(_SCHEME.sub("", re.split(r"[?#]", address)[0]).rstrip("/"))


@NAMES("path", r"(?<!\w)[A-Za-z]:\\[\w\\.@+-]+")
@NAMES("path", r"(?<![\w/.])(?:(?:~|\.{1,2})(?=/))?(?:/[\w.@+-]+){2,}/?|(?<![\w/.])(?:~|\.{1,2})/[\w.@+-]+")
@NAMES("url", rf"(?<![\w@.-]){_DOMAIN}", re.IGNORECASE)
@NAMES("email", r"(?<![\w.])(?:mailto:)?[\w.+-]{1,64}@(?:[\w-]+\.)+[A-Za-z]{2,}(?!\w)")
@NAMES("url", r"(?<!\w)(?:(?:https?|ftp)://|www\.)[^\s<>\"`|]+", re.IGNORECASE)
def _address(match: re.Match[str]) -> str | None:
    kept = match[0].rstrip(_TRAILING)
    return link(kept) + match[0][len(kept) :] or None


@NAMES("file", rf"(?<![\w.])[\w-]+(?:\.[\w-]+)*\.(?:{'|'.join(tables.FILE_ENDINGS)})(?!\w)(?!\.\w)")
def _file(match: re.Match[str]) -> str:
    return spell(match[0])


@NAMES("language", r"(?<!\w)([CFJ])(\+\+|#)(?!\w)")
def _language(match: re.Match[str]) -> str:
    return f"{match[1]} {'sharp' if match[2] == '#' else 'plus plus'}"


@NAMES("hashtag", rf"(?<![\w&])#({LETTER}\w*)")
def _hashtag(match: re.Match[str]) -> str:
    return "hashtag " + spell(" ".join(_CAMEL.findall(match[1])) or match[1])


@NAMES("mention", r"(?<![\w.])@(\w+)")
def _mention(match: re.Match[str]) -> str:
    return f"at {spell(match[1], _CODE)}"


NAMES.words("heart", r"(?<!\S)<3(?!\w)", "heart")
NAMES.words("about", r"(?<!\S)~(?=[$€£]?\.?\d)", "about")


@SIGNS("short", r"(?<!\w)w/(o(?!\w))?")
def _with(match: re.Match[str]) -> str:
    return "without" if match[1] else "with"


@SIGNS("short", rf"(?<![\w.])({_SHORT})\.(?!\w)")
def _abbreviation(match: re.Match[str]) -> str | None:
    spoken, follows = tables.ABBREVIATIONS[match[1]]
    capital, ends = _CAPITAL_AFTER.match(after(match)), not after(match).strip(" \"')]*_")
    if match[1] in _STREETS and _CAPITAL_BEFORE.search(before(match)) and (not capital or match[1] == "St"):
        spoken, follows = _STREETS[match[1]], "end"
    if follows == "name":
        return spoken if capital else None
    if follows == "number":
        return spoken if re.match(r" ?[0-9IVX]", after(match)) else None
    return spoken + ("." if follows == "end" and (ends or capital) else "")


@SIGNS("fraction", "((?<=[0-9]) ?)?([¼½¾⅐-⅞])")
def _vulgar(match: re.Match[str]) -> str:
    spoken = unicodedata.name(match[2]).removeprefix("VULGAR FRACTION ").lower()
    return spoken if match[1] is None else "and " + spoken.replace("one ", "a ", 1)


def _name(picture: str) -> str:
    return unicodedata.name(picture, "picture").removeprefix("BLACK ").removeprefix("WHITE ").lower().replace("-", " ")


@SIGNS("emoji", rf"({_SEQUENCE})\1{{0,16}}")
def _emoji(match: re.Match[str]) -> str | None:
    """An emoji or emoji sequence by name. Repetitions are spoken once; skin tones are skipped."""
    flag = [chr(ord(char) - 0x1F1E6 + ord("A")) for char in match[1] if "\U0001f1e6" <= char <= "\U0001f1ff"]
    if flag:
        return " ".join(flag) + " flag"
    pictures = [c for c in match[1] if is_emoji(c) and not "\U0001f3fb" <= c <= "\U0001f3ff" and c not in "♂♀"]
    names = [tables.EMOJI.get(c) or _name(c) for c in pictures]
    return " ".join(dict.fromkeys(names)) or None


@SIGNS("compare", r"[<>]=|[=!]={1,2}|<>")
def _compare(match: re.Match[str]) -> str:
    return _COMPARED[match[0][0]] if match[0] != "<>" else _COMPARED["!"]


SIGNS.words("mathematics", r"\${2}", "")
SIGNS.words("hashes", "#{2,}", "")
SIGNS.words("and/or", r"(?<=\band)/(?=or\b)", "")
SIGNS.words("slash", r"(?<=[\w°%)])/(?=[\w(\[$€£-])|(?<= )/(?= )", "slash")
SIGNS.words("arrow", r"<?[-=]{1,2}>", "to")
SIGNS.words("arrow", r"<-{1,2}(?= )", "from")
SIGNS.words("minus", r"(?<=[\w)] )[-−](?= \d)|(?<=\d )[-−](?= [\w(])", "minus")
SIGNS.words("times", r"(?<=[\d)])\*(?=[\d(])|(?<=[\w)] )\*(?= [\w(])".replace(r"[\d", "[0-9"), "times")


@SIGNS("sign", "[" + re.escape("".join(tables.SIGNS)) + "]")
def sign(match: re.Match[str]) -> str:
    return tables.SIGNS[match[0]]
