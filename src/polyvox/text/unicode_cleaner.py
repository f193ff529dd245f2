# SPDX-License-Identifier: Apache-2.0
"""Unicode clean-up of streamed text, one grapheme cluster at a time."""

import re
import unicodedata

from polyvox.text.parts import Note
from polyvox.text.position_map import PositionMap

ZWJ = "\u200d"
MAX_CLUSTER = 32  # characters; longer clusters are split. Unicode's stream-safe format allows 30 marks

_TABLE = str.maketrans(
    dict.fromkeys("‘’‚‛ʼ´", "'")
    | dict.fromkeys("“”„‟", '"')
    | dict.fromkeys("\u2010\u2011\ufe63", "-")
    | dict.fromkeys("\u2012\ufe58", "–")
    | dict.fromkeys("⁄∕／", "/")
    | {"―": "—", "⸺": "—", "\x0b": "\n", "\x0c": "\n\n", "\x85": "\n", "\u2028": "\n", "\u2029": "\n\n", "\t": " "}
    | {"\u00b5": "\u03bc", "％": "%", "＄": "$", "＋": "+", "＝": "=", "＠": "@", "＃": "#", "＆": "&", "＊": "*"}
)
# Primes are feet and inches after a number; elsewhere they are quotation marks.
PRIMES = str.maketrans({"′": "'", "″": '"'})
_PLAIN = re.compile(r"[ -~\n\u00a1-\u00ac\u00ae-\u00b3\u00b6-\u02bb]+")
_PAIR = re.compile("([\ud800-\udbff])([\udc00-\udfff])")
# Compatibility forms of letters and digits: full width, ligatures, mathematical, subscripts, Roman numerals, ℃, ①, ㎞.
_COMPATIBILITY = re.compile(
    "[０-９Ａ-Ｚａ-ｚﬀ-ﬆ\U0001d400-\U0001d7ff\u2080-\u209c\u2160-\u217f℀-℁℃℉\u2460-\u24ea\u3300-\u33ff\U0001f100-\U0001f16c]"
)
PICTOGRAM = "[\u2300-\u24ff\u25a0-\u27bf\u2900-\u2bff\U0001f000-\U0001f0ff\U0001f18e-\U0001faff]"
_EMOJI = ((0x1F000, 0x1F0FF), (0x1F18E, 0x1FAFF))
_TONES = range(0x1F3FB, 0x1F400)


def is_emoji(char: str) -> bool:
    """Whether a character is a pictogram that is spoken by its name."""
    code = ord(char)
    if code < 0x2300 or 0x2500 <= code < 0x25A0 or 0x2800 <= code < 0x2900:  # box drawing, Braille
        return False
    return any(first <= code <= last for first, last in _EMOJI) or (
        unicodedata.category(char) == "So" and (code < 0x2E80 or code > 0x1F000)
    )


def _joins(char: str, before: str) -> bool:
    """Whether a character may combine with the one before it under NFC or in an emoji."""
    code = ord(char)
    if code < 0x300:
        return before == "\r" and char == "\n"
    if char == ZWJ or before == ZWJ or code in _TONES or 0xDC00 <= code < 0xE000:
        return True
    return unicodedata.category(char)[0] == "M" or 0x1160 <= code < 0x1200 or 0x16D63 <= code < 0x16D6B


class UnicodeCleaner:
    """Cleans streamed text. It buffers the characters that the next one may still change.

    positions: records where the characters of the text went.
    """

    def __init__(self, positions: PositionMap | None = None) -> None:
        self.notes: list[Note] = []
        self._positions = positions
        self._pending = ""

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def append(self, piece: str, end: bool = False) -> str:
        text = self._pending + piece
        done: list[str] = []
        at = 0
        while at < len(text):
            plain = _PLAIN.match(text, at)
            if plain and plain.end() > at + 1:  # a plain character does not combine with the one before it
                done.append(text[at : plain.end() - 1].translate(_TABLE))
                if self._positions is not None:
                    self._positions.copy(plain.end() - 1 - at)
                at = plain.end() - 1
            after = at + 1
            while after < len(text) and after - at < MAX_CLUSTER and _joins(text[after], text[after - 1]):
                after += 1
            if after == len(text) and after - at < MAX_CLUSTER and not end:
                break
            done.append(self._cluster(text[at:after]))
            if self._positions is not None:
                self._positions.replace(after - at, len(done[-1]))
            at = after
        self._pending = text[at:]
        return "".join(done)

    def _cluster(self, source: str) -> str:
        cluster = _PAIR.sub(
            lambda pair: "".join(pair.groups()).encode("utf-16", "surrogatepass").decode("utf-16"), source
        )
        cluster = cluster.replace("\r\n", "\n").replace("\r", "\n")
        cluster = unicodedata.normalize("NFC", cluster)
        is_pictogram = is_emoji(cluster[0])
        cleaned = []
        for char in cluster.translate(_TABLE):
            kind = unicodedata.category(char)
            if kind in ("Co", "Cs", "Cn"):
                self.notes.append(Note("unspeakable", char))
            elif kind == "Zs":
                cleaned.append(" ")
            elif char == "\n" or (char == ZWJ and is_pictogram):
                cleaned.append(char)
            elif kind not in ("Cc", "Cf", "Me") and not "\ufe00" <= char <= "\ufe0f":
                cleaned.append(unicodedata.normalize("NFKC", char) if _COMPATIBILITY.match(char) else char)
        return "".join(cleaned)
