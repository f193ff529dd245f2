# SPDX-License-Identifier: Apache-2.0
"""SSML documents in streamed text: checks their XML and reduces them to the tags that text normalisation reads."""

import html
from xml.parsers import expat

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.text.position_map import PositionMap

MAX_DEPTH = 64  # of nested elements
MAX_ELEMENT = (
    240  # characters of a tag that is read, with the content of <sub>, <say-as> or <phoneme>; < split_points.MAX_SPAN
)
MAX_PROLOG = 512  # characters before <speak>
MAX_LEADING_SPACE = 100  # characters before a text that are kept; they are buffered until the text begins
MAX_TAG = 4096  # characters from < to the next >
_ROOT, _XML, _DOCTYPE = "<speak", "<?xml", "<!DOCTYPE speak"
# Elements that are read as a whole, and elements without content of their own, with the attributes that are kept.
_CONTENT_ELEMENTS = {"sub": ("alias",), "say-as": ("interpret-as", "format"), "phoneme": ("ph", "alphabet")}
_MARKERS = {"break": ("time", "strength"), "prosody": ("rate",)}
# Other names for elements that mean something else in HTML: <s> is struck text.
_RENAMED = {"s": "sentence", "p": "paragraph", "sentence": "sentence", "paragraph": "paragraph"}
_HIDDEN = {"metadata", "meta", "desc", "title", "lexicon", "lookup"}
# White space is not significant. < and > become full-width, as in `markup.unescape`, so that they do not open a tag.
_CHARACTERS = str.maketrans(dict.fromkeys("\n\r\t\x0b\x0c\x85\u2028\u2029", " ")) | str.maketrans(
    {"<": "＜", ">": "＞", "&": "&amp;"}
)


class SsmlReader:
    """Passes plain text through. A document that starts with <speak> is parsed as XML.

    The result has <break>, <prosody>, <sub>, <say-as>, <phoneme>, <sentence> and <paragraph> in one form; other tags
    are removed. Text after </speak> may be another document. The result does not depend on the fragmentation.
    positions: records where the characters of the text went. enabled: False passes documents through too.
    """

    def __init__(self, positions: PositionMap | None, enabled: bool) -> None:
        self._positions, self._enabled = positions, enabled
        self._pending = ""  # text that may be the start of a document
        self._num_dropped = 0  # characters of white space before it that are not kept
        self._is_plain, self._has_failed = not enabled, False
        self._document: _Document | None = None

    @property
    def num_pending(self) -> int:
        return len(self._pending) + (self._document.num_pending if self._document else 0)

    def append(self, piece: str) -> str:
        """The text that is complete after this piece; raises InvalidRequest with the position of an error, once."""
        if self._is_plain:
            self._copy(piece)
            return piece
        if self._has_failed:
            return ""
        try:
            return self._read(piece)
        except InvalidRequest:
            self._has_failed, self._document = True, None
            raise

    def flush(self) -> str:
        """The pending text. A document may continue; other text may start one."""
        text, self._pending, self._is_plain = self._pending, "", not self._enabled
        self._copy(text)
        return text

    def finish(self) -> str:
        """The pending text; raises InvalidRequest if a document is not complete."""
        document, self._document = self._document, None
        if document is not None:
            self._has_failed = True
            raise document.unclosed()
        return self.flush()

    def _read(self, piece: str) -> str:
        found: list[str] = []
        text, self._pending = self._pending + piece, ""
        while text:
            if self._document is None:
                rest = _without_space(text)
                num_space = len(text) - len(rest)
                self._num_dropped += max(0, num_space - MAX_LEADING_SPACE)
                text = text[: min(num_space, MAX_LEADING_SPACE)] + rest
                is_document = _starts_document(text)
                if is_document is None:
                    self._pending = text
                    break
                if not is_document:
                    self._is_plain = True
                    self._copy(text)
                    found.append(text)
                    break
                document = _without_space(text)
                if self._positions is not None:
                    self._positions.replace(len(text) - len(document) + self._num_dropped, 0)
                self._num_dropped = 0
                self._document, text = _Document(self._positions), document
            text = self._document.feed(text)
            found.append(self._document.take())
            if self._document.is_complete:
                self._document = None
                found.append(" ")  # text that follows is not joined to it
                if self._positions is not None:
                    self._positions.replace(0, 1)
        return "".join(found)

    def _copy(self, text: str) -> None:
        if self._positions is not None:
            self._positions.replace(self._num_dropped, 0)
            self._positions.copy(len(text))
        self._num_dropped = 0


def _starts_document(text: str) -> bool | None:
    """Whether a text starts with <speak>; None if it depends on more text."""
    text = _without_space(text)
    if text.startswith(_XML) and len(text) < MAX_PROLOG:
        end = text.find("?>")
        return None if end < 0 else _starts_document(text[end + 2 :])
    for start in (_ROOT, _DOCTYPE):
        if text.startswith(start) and len(text) > len(start):
            return text[len(start)] in " \t\r\n>/["
    return None if any(start.startswith(text) for start in (_ROOT, _XML, _DOCTYPE)) else False


def _without_space(text: str) -> str:
    """The text without white space and byte order marks before it."""
    return text.lstrip("\ufeff").lstrip()


class _Document:
    """One <speak> element."""

    def __init__(self, positions: PositionMap | None) -> None:
        self._positions, self._num_content = positions, 0  # characters of the open content element so far
        self._parser = expat.ParserCreate()
        if hasattr(self._parser, "SetReparseDeferralEnabled"):  # Expat 2.6
            self._parser.SetReparseDeferralEnabled(False)
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._open: list[str] = []
        self._num_hidden = 0  # open elements that are not spoken
        self._content: list[str] = []  # of the open <sub>, <say-as> or <phoneme>, which starts with this tag
        self._content_tag, self._content_depth = "", 0
        self._out: list[str] = []
        self._num_out = 0  # characters in all
        self._buffered = ""  # the start of a tag, or half of a surrogate pair
        self.is_complete = False

    @property
    def num_pending(self) -> int:
        return len(self._buffered) + len(self._content_tag) + sum(map(len, self._content))

    def feed(self, text: str) -> str:
        """Parse up to the end of the document; the text after it."""
        text, self._buffered, at = self._buffered + text, "", 0
        while at < len(text) and not self.is_complete:
            stop = text.find(">", at) + 1
            if not stop:  # parse up to the start of a tag
                tag_start = text.rfind("<", at)
                stop = tag_start if tag_start >= 0 else len(text) - ("\ud800" <= text[-1] <= "\udbff")
                text, self._buffered = text[:stop], text[stop:]
            self._parse_piece(text[at:stop])
            at = stop
        if len(self._buffered) > MAX_TAG:
            raise self._error(f"must be SSML with tags of at most {MAX_TAG:,} characters")
        if self.is_complete:  # the handlers and this object refer to each other
            self._parser = expat.ParserCreate()
        return text[at:]

    def take(self) -> str:
        out, self._out = "".join(self._out), []
        return out

    def unclosed(self) -> InvalidRequest:
        return self._error(f"must be well-formed SSML: <{self._open[-1] if self._open else 'speak'}> is not closed")

    def _parse_piece(self, text: str) -> None:
        """Parses text and the tag at its end, and records where they went."""
        if self._positions is None:
            self._parse(text)
            return
        tag_start = text.find("<") if text.endswith(">") else len(text)
        for piece in (text[:tag_start], text[tag_start:]):
            num_before, was_content = self._num_out, bool(self._content_tag)
            self._parse(piece)
            num_out = self._num_out - num_before
            if was_content and self._content_tag:
                self._num_content += len(piece)
            elif was_content:  # the element is complete: its content becomes the whole of it
                self._positions.replace(self._num_content, num_out)
                self._positions.replace(len(piece), 0)
                self._num_content = 0
            else:
                self._positions.replace(len(piece), num_out)

    def _parse(self, text: str) -> None:
        try:
            self._parser.Parse(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), False)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise self._error(f"must be well-formed SSML: {reason}", error.lineno, error.offset) from None

    def _error(self, requirement: str, line: int | None = None, column: int | None = None) -> InvalidRequest:
        line = self._parser.CurrentLineNumber if line is None else line
        column = self._parser.CurrentColumnNumber if column is None else column
        return InvalidRequest("text", NOT_SHOWN, f"{requirement} (line {line}, column {column + 1})")

    def _doctype(self, *declaration: object) -> None:
        has_internal_subset = declaration[-1]
        if has_internal_subset:  # it could define entities that expand without end
            raise self._error("must be SSML without definitions in its document type")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) == MAX_DEPTH:
            raise self._error(f"must be SSML with at most {MAX_DEPTH} nested elements")
        self._open.append(name)
        self._num_hidden += name in _HIDDEN
        if self._content_tag or self._num_hidden:
            return
        if name in _CONTENT_ELEMENTS:
            self._content_tag = _tag(name, attributes, _CONTENT_ELEMENTS[name])
            self._content, self._content_depth = [], len(self._open)
            self._check_size(name, self._content_tag)
        elif name in _MARKERS:
            tag = _tag(name, attributes, _MARKERS[name])
            self._check_size(name, tag)
            self._write(tag)
        elif name in _RENAMED:
            self._write(f"<{_RENAMED[name]}>")

    def _end(self, name: str) -> None:
        if self._content_tag and len(self._open) == self._content_depth:
            self._write(f"{self._content_tag}{' '.join(''.join(self._content).split())}</{name}>")
            self._content_tag, self._content = "", []
        elif not (self._content_tag or self._num_hidden) and (name == "prosody" or name in _RENAMED):
            self._write(f"</{_RENAMED.get(name, name)}>")
        self._num_hidden -= name in _HIDDEN
        self._open.pop()
        self.is_complete = not self._open

    def _characters(self, text: str) -> None:
        if self._num_hidden:
            return
        cleaned = text.translate(_CHARACTERS)
        if not self._content_tag:
            self._write(cleaned)
        else:
            self._content.append(cleaned)
            self._check_size(self._open[self._content_depth - 1], self._content_tag, *self._content)

    def _write(self, text: str) -> None:
        self._out.append(text)
        self._num_out += len(text)

    def _check_size(self, name: str, *pieces: str) -> None:
        if sum(map(len, pieces)) > MAX_ELEMENT:
            raise self._error(f"must be SSML in which <{name}> has at most {MAX_ELEMENT} characters")


def _tag(name: str, attributes: dict[str, str], kept: tuple[str, ...]) -> str:
    values = ((key, html.escape(" ".join(attributes[key].split()))) for key in kept if key in attributes)
    return f"<{name}" + "".join(f' {key}="{value}"' for key, value in values) + ">"
