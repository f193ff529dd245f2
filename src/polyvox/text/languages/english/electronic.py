# SPDX-License-Identifier: Apache-2.0
"""English rules for URLs, e-mail addresses, paths, files, hashtags and inline code."""

import re

from polyvox.text.languages.english import word_tables as tables
from polyvox.text.languages.english.numbers import digit_runs
from polyvox.text.rules import LETTER, Rules

ELECTRONIC = Rules()
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
_OPERATORS = {"===": "=", "==": "=", "!=": "≠", ">=": "≥", "<=": "≤", "->": "→", "=>": "→", "&&": "&"}
_SILENT = "()[]{};,'\"`!?"
_PIECE = re.compile(rf"(?:[0-9]|{LETTER})+|.", re.DOTALL)
_SCHEME = re.compile(r"^(?:[a-z]+://|mailto:)", re.IGNORECASE)
_HYPHEN = re.compile(rf"(?<=\w)-(?={LETTER})")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W0-9_A-Z]+|[0-9]+")
_LABELS = r"(?:[A-Za-z0-9-]{1,63}\.){1,8}"
_HOST = rf"(?:localhost|youtu\.be|{_LABELS}(?:{'|'.join(tables.TOP_DOMAINS)})|{_LABELS}[a-z]{{2}}(?=/\w))"
_DOMAIN = _HOST + r"(?::\d{2,5})?(?:/[^\s<>\"`|]*)?(?![\w-])(?!\.\w)"


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


@ELECTRONIC("path", r"(?<!\w)[A-Za-z]:\\[\w\\.@+-]+")
@ELECTRONIC("path", r"(?<![\w/.])(?:(?:~|\.{1,2})(?=/))?(?:/[\w.@+-]+){2,}/?|(?<![\w/.])(?:~|\.{1,2})/[\w.@+-]+")
@ELECTRONIC("url", rf"(?<![\w@.-]){_DOMAIN}", re.IGNORECASE)
@ELECTRONIC("url", rf"(?<![\w@./-])\d{{1,3}}/\d{{1,3}}\.(?:{'|'.join(tables.TOP_DOMAINS)})(?![\w-])(?!\.\w)")
@ELECTRONIC("email", r"(?<![\w.])(?:mailto:)?[\w.+-]{1,64}@(?:[\w-]+\.)+[A-Za-z]{2,}(?!\w)")
@ELECTRONIC("url", r"(?<!\w)(?:(?:https?|ftp)://|www\.)[^\s<>\"`|]+", re.IGNORECASE)
def _address(match: re.Match[str]) -> str | None:
    kept = match[0].rstrip(_TRAILING)
    return link(kept) + match[0][len(kept) :] or None


@ELECTRONIC("file", rf"(?<![\w.])[\w-]+(?:\.[\w-]+)*\.(?:{'|'.join(tables.FILE_ENDINGS)})(?!\w)(?!\.\w)")
def _file(match: re.Match[str]) -> str:
    return spell(match[0])


@ELECTRONIC("language", r"(?<!\w)([CFJ])(\+\+|#)(?!\w)")
def _language(match: re.Match[str]) -> str:
    return f"{match[1]} {'sharp' if match[2] == '#' else 'plus plus'}"


@ELECTRONIC("hashtag", rf"(?<![\w&])#({LETTER}\w*)")
def _hashtag(match: re.Match[str]) -> str:
    return "hashtag " + spell(" ".join(_CAMEL.findall(match[1])) or match[1])


@ELECTRONIC("mention", r"(?<![\w.])@(\w+)")
def _mention(match: re.Match[str]) -> str:
    return f"at {spell(match[1], _CODE)}"
