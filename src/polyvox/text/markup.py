# SPDX-License-Identifier: Apache-2.0
"""Markdown, HTML and SSML in text: spans, pauses and hidden content."""

import html
import re

from polyvox.text.parts import Note
from polyvox.text.position_map import PositionMap

MAX_PAUSE = 10.0  # seconds
MAX_SILENCE = 60.0  # seconds of the pauses between two words
STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.25, "medium": 0.5, "strong": 1.0, "x-strong": 1.5}
# Opening and closing tags of content that is never spoken.
HIDDEN = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<!--": "-->",
    "<script>": "</script>",
    "<style>": "</style>",
}

# HTML's attributes that stand without a value.
_BARE_ATTRIBUTES = (
    "allowfullscreen|alt|async|autofocus|autoplay|checked|controls|default|defer|disabled|download|formnovalidate|hidden"
    "|inert|ismap|itemscope|loop|multiple|muted|nomodule|novalidate|nowrap|open|playsinline|readonly|required|reversed"
    "|selected"
)
_ATTRIBUTES = (
    r"(?:[^\S\n]+(?:[a-z_:][\w:.-]*[^\S\n]*=[^\S\n]*(?:\"[^\"<>\n]*\"|'[^'<>\n]*'|[^\s\"'<>=]+)"
    rf"|(?:{_BARE_ATTRIBUTES})(?![\w:.-])))*[^\S\n]*/?"
)
# A tag has attributes after its name, other words are text: "a<b and c>d". A malformed pause or rate is never spoken.
SPAN = re.compile(
    r"`(?P<code>[^`\n]+)`(?!`)|``(?P<code2>[^\n]+?)``(?!`)"
    r"|(?P<image>!?)\[(?P<label>(?=(?P<pause>\s*pause\b)?)[^\[\]\n]*)\]"
    r"(?:\((?P<url>(?:[^()\n]|\([^()\n]*\))*)\)|(?(pause)(?!)|\[(?!\s*pause\b)(?P<reference>[^\[\]\n]*)\]))?"
    r"|<(?P<element>sub(?=\s+alias)|say-as|phoneme)(?P<attributes>\s[^<>\n]*)?>(?P<content>[^<>\n]*)</(?P=element)\s*>"
    r"|<(?P<link>(?:https?|mailto):[^<>\s]+|[^<>\s@]+@[^<>\s@]+)>"
    r"|<(?P<close>/?)(?!(?<=<)(?:sub\s+alias|say-as\b|phoneme\b))(?P<tag>[A-Za-z][A-Za-z0-9:-]*+)"
    rf"(?P<inside>{_ATTRIBUTES}|(?:(?<=[</]break)|(?<=[</]prosody))[^<>\n]*)>",
    re.IGNORECASE,
)
GROUP = r"\{((?:[^{}\n]|\{[^{}\n]*\})*)\}"  # an argument of a LaTeX command
FORMULA = re.compile(
    r"\$\$?(?P<dollars>[^\s$](?:[^$\n]{0,62}[^\s$])?)\$\$?(?![\w$])"
    r"|\\\((?P<round>[^\n]{1,200}?)\\\)|\\\[(?P<square>[^\n]{1,200}?)\\\]"
    rf"|\\[dt]?frac *{GROUP} *{GROUP}|\\sqrt *(?:\[[^\[\]\n]*\])? *{GROUP}"
)
OPENS_TAG = re.compile(r"<[A-Za-z/]")
STRAY = re.compile(r"\]\((?P<url>[^()\s]*)\)|<(?:sub\s+alias|say-as\b|phoneme\b)[^<>\n]*>|[\[\]`~_*{}|]+")
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
FENCE = re.compile(r" *(?P<fence>`{3,}|~{3,})[^`\n]*")
RULE_LINE = re.compile(r"[ |:*_=+~—–-]+")
PREFIX = re.compile(
    r" *(?:(?P<heading>#{1,6})(?= )|(?P<quote>>)|(?P<item>[-*•◦▪–](?= |$)|\+(?= ))(?: \[(?P<task>[ xX])\](?= |$))?"
    r"|(?P<number>[0-9]{1,3})[.)](?= )|(?P<row>\|))"
)
_PAUSE = re.compile(r"\s*pause\b[\s:=]*(?P<rest>.*)", re.IGNORECASE)
_TIME = re.compile(
    r"\s*\+?(?P<value>[0-9]{1,6}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})\s*(?P<unit>ms|s|sec|seconds?)?\s*", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"([A-Za-z][\w:-]*)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'/>]+))")
# Names of SSML's speaking rates.
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.75}
MIN_RATE, MAX_RATE = 0.25, 4.0
_RATE = re.compile(r"(?P<sign>[+-]?)(?P<value>[0-9]{1,4}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})(?P<percent>%?)")
BLOCK_TAGS = {"p", "paragraph", "div", "section", "article", "ul", "ol", "table", "blockquote"}
BLOCK_TAGS |= {"h1", "h2", "h3", "h4", "h5", "h6"}
LINE_TAGS = {"br", "li", "tr", "hr", "s", "dt", "dd"}


def parse_pause(text: str) -> float | None:
    """Seconds of "0.5s", "500ms" or "0.5"; None if it is not a time."""
    time = _TIME.fullmatch(text)
    return float(time["value"]) * (0.001 if (time["unit"] or "").lower() == "ms" else 1.0) if time else None


def bracket_pause(label: str) -> tuple[bool, float | None]:
    """Whether a bracket is a pause, and its duration in seconds."""
    pause = _PAUSE.fullmatch(label)
    return bool(pause), (
        parse_pause(pause["rest"]) if pause and pause["rest"].strip() else STRENGTHS["medium"] if pause else None
    )


def parse_attributes(inside: str) -> dict[str, str]:
    """The attributes of a tag."""
    found = ((match[1].lower(), match[2] or match[3] or match[4] or "") for match in _ATTRIBUTE.finditer(inside or ""))
    return {name: html.unescape(value).strip() for name, value in found}


def parse_rate(text: str) -> float | None:
    """The factor of a speaking rate: "slow", "80%", "+20%" or "1.5"; None if it is not a rate."""
    if text.lower() in RATES:
        return RATES[text.lower()]
    rate = _RATE.fullmatch(text)
    if not rate:
        return None
    value = float(rate["value"]) * (0.01 if rate["percent"] else 1.0)
    if rate["sign"]:
        value = 1.0 + value if rate["sign"] == "+" else 1.0 - value
    return min(max(value, MIN_RATE), MAX_RATE)


def break_pause(inside: str) -> float | None:
    """The duration of a <break> in seconds, from its attributes."""
    attributes = parse_attributes(inside)
    if "time" in attributes:
        return parse_pause(attributes["time"])
    return STRENGTHS.get(attributes.get("strength", "medium").lower())


def unescape(entity: str) -> str:
    """The character of an entity. < and > become full-width, so that they do not open a tag."""
    return html.unescape(entity).replace("<", "＜").replace(">", "＞")


class HiddenSpanFilter:
    """Removes hidden content from streamed text: the reasoning of a language model, comments, scripts.

    positions: records where the characters of the text went.
    """

    def __init__(self, positions: PositionMap | None) -> None:
        self.notes: list[Note] = []
        self._positions = positions
        self._pending = ""
        self._before = ""
        self._ends = ""
        self._source: list[str] = []

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def append(self, piece: str, end: bool = False) -> str:
        """The visible text. At most the beginning of a tag stays pending."""
        text, visible, at = self._pending + piece, [], 0
        lower = text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)
        while True:
            if self._ends:
                found = lower.find(self._ends, at)
                stop = found + len(self._ends) if found >= 0 else len(text)
                if found < 0 and not end:
                    stop -= _partial(lower, at, (self._ends,))
                self._hide(text[at:stop])
                at = stop
                if found < 0 and not end:
                    break
                kind = "thought" if "think" in self._ends else "comment" if self._ends == "-->" else "code"
                self.notes.append(Note(kind, "".join(self._source)))
                self._ends, self._source = "", []
                if found < 0:
                    break
            else:
                starts = [(start, tag) for tag in HIDDEN if (start := lower.find(tag, at)) >= 0]
                start, tag = (
                    min(starts) if starts else (len(text) - (0 if end else _partial(lower, at, tuple(HIDDEN))), "")
                )
                visible.append(self._show(text[at:start]))
                at = start + len(tag)
                if not tag:
                    break
                if self._before == "`":  # the text quotes the tag as code
                    visible.append(self._show(text[start:at]))
                else:
                    self._ends = HIDDEN[tag]
                    self._hide(text[start:at])
        self._pending = text[at:]
        return "".join(visible)

    def _show(self, text: str) -> str:
        self._before = text[-1:] or self._before
        if self._positions is not None:
            self._positions.copy(len(text))
        return text

    def _hide(self, text: str) -> None:
        self._source.append(text)
        if self._positions is not None:
            self._positions.replace(len(text), 0)


def _partial(text: str, at: int, tags: tuple[str, ...]) -> int:
    """The length of the suffix that may be the beginning of one of the tags."""
    size, first = min(max(map(len, tags)) - 1, len(text) - at), {tag[0] for tag in tags}
    for start in range(len(text) - size, len(text)):
        if text[start] in first and any(tag.startswith(text[start:]) for tag in tags):
            return len(text) - start
    return 0
