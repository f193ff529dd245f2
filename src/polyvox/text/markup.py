"""Markdown, HTML and SSML as they stand in text: where a span begins and ends, and what it means."""

import html
import re

from polyvox.text.parts import Note

LONGEST_PAUSE = 10.0  # seconds
STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.25, "medium": 0.5, "strong": 1.0, "x-strong": 1.5}
# What begins here is not said up to its end, wherever that is.
HIDDEN = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<!--": "-->",
    "<script>": "</script>",
    "<style>": "</style>",
}

SPAN = re.compile(
    r"`(?P<code>[^`\n]+)`(?!`)|``(?P<code2>[^\n]+?)``(?!`)"
    r"|(?P<image>!?)\[(?P<label>[^\[\]\n]*)\](?:\((?P<url>(?:[^()\n]|\([^()\n]*\))*)\)|\[(?P<reference>[^\[\]\n]*)\])?"
    r"|<sub\s+alias\s*=\s*(?P<quote>[\"'])(?P<alias>[^\"'<>\n]*)(?P=quote)\s*>(?P<aliased>[^<>\n]*)</sub\s*>"
    r"|<(?P<link>(?:https?|mailto):[^<>\s]+|[^<>\s@]+@[^<>\s@]+)>"
    r"|<(?P<close>/?)(?!sub\s+alias)(?P<tag>[A-Za-z][A-Za-z0-9:-]*)(?P<inside>[^<>\n]*)>",
    re.IGNORECASE,
)
OPENS_TAG = re.compile(r"<[A-Za-z/]")
STRAY = re.compile(r"\]\((?P<url>[^()\s]*)\)|<sub\s+alias[^<>\n]*>|[\[\]`~_*{}|]+")
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
FENCE = re.compile(r" *(?P<fence>`{3,}|~{3,})[^`\n]*")
RULE_LINE = re.compile(r"[ |:*_=+~—–-]+")
PREFIX = re.compile(
    r" *(?:(?P<heading>#{1,6})(?= |$)|(?P<quote>>)|(?P<item>[-*+•◦▪–])(?= |$)(?: \[(?P<task>[ xX])\](?= |$))?"
    r"|(?P<number>[0-9]{1,3})[.)](?= )|(?P<row>\|))"
)
_PAUSE = re.compile(r"\s*pause\b[\s:=]*(?P<rest>.*)", re.IGNORECASE)
_TIME = re.compile(
    r"\s*\+?(?P<value>[0-9]{1,6}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})\s*(?P<unit>ms|s|sec|seconds?)?\s*", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"(time|strength)\s*=\s*[\"']?([^\"'/>]*)", re.IGNORECASE)
BLOCK_TAGS = {"p", "div", "section", "article", "ul", "ol", "table", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6"}
LINE_TAGS = {"br", "li", "tr", "hr", "s", "dt", "dd"}


def pause_of(text: str) -> float | None:
    """Seconds of "0.5s", "500ms" or "0.5"; None where it is no time."""
    time = _TIME.fullmatch(text)
    return float(time["value"]) * (0.001 if (time["unit"] or "").lower() == "ms" else 1.0) if time else None


def bracket_pause(label: str) -> tuple[bool, float | None]:
    """Whether a bracket asks for a pause, and how long."""
    asked = _PAUSE.fullmatch(label)
    return bool(asked), (
        pause_of(asked["rest"]) if asked and asked["rest"].strip() else STRENGTHS["medium"] if asked else None
    )


def break_pause(inside: str) -> float | None:
    """Seconds of the attributes of a <break>."""
    attributes = {name.lower(): value.strip() for name, value in _ATTRIBUTE.findall(inside)}
    if "time" in attributes:
        return pause_of(attributes["time"])
    return STRENGTHS.get(attributes.get("strength", "medium").lower())


def unescape(entity: str) -> str:
    """The character of an entity; those that would open a tag become signs that do not."""
    return html.unescape(entity).replace("<", "＜").replace(">", "＞")


class Hidden:
    """Takes out of a stream what is never said: thoughts of a model, comments, scripts."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._held = ""
        self._before = ""
        self._ends = ""
        self._source: list[str] = []

    @property
    def held(self) -> int:
        return len(self._held)

    def append(self, piece: str, end: bool = False) -> str:
        """What is not hidden. At most a beginning of a tag is held back."""
        text, said, at = self._held + piece, [], 0
        lower = text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)
        while True:
            if self._ends:
                found = lower.find(self._ends, at)
                stop = found + len(self._ends) if found >= 0 else len(text)
                if found < 0 and not end:
                    stop -= _partial(lower, at, (self._ends,))
                self._source.append(text[at:stop])
                at = stop
                if found < 0 and not end:
                    break
                kind = "thought" if "think" in self._ends else "comment" if self._ends == "-->" else "code"
                self.notes.append(Note(kind, "".join(self._source)))
                self._ends, self._source = "", []
                if found < 0:
                    break
            else:
                starts = [(place, tag) for tag in HIDDEN if (place := lower.find(tag, at)) >= 0]
                place, tag = (
                    min(starts) if starts else (len(text) - (0 if end else _partial(lower, at, tuple(HIDDEN))), "")
                )
                shown = text[at:place]
                said.append(shown)
                self._before = shown[-1:] or self._before
                at = place + len(tag)
                if not tag:
                    break
                if self._before == "`":  # it is spoken about
                    said.append(text[place:at])
                    self._before = ">"
                else:
                    self._ends, self._source = HIDDEN[tag], [text[place:at]]
        self._held = text[at:]
        return "".join(said)


def _partial(text: str, at: int, tags: tuple[str, ...]) -> int:
    """How many characters at the end may be the beginning of one of the tags."""
    for size in range(min(max(map(len, tags)) - 1, len(text) - at), 0, -1):
        if any(tag.startswith(text[-size:]) for tag in tags):
            return size
    return 0
