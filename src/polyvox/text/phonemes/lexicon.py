# SPDX-License-Identifier: Apache-2.0
"""The pronunciation lexicon of American English: one compressed file, read once per process at its first use."""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

LEXICON_FILE = "lexicon.zlib"
# The form of a word at the end of a phrase: "what are you looking at?"
END = "END"
_NEW_LINE = ord("\n")


class PronunciationLexicon:
    """Entries by word. An entry is the default pronunciation, then `FORM=phonemes` for other forms.

    The text of the file stays in memory as bytes, and words are found by bisection: a dict would take eight times the
    memory.
    """

    def __init__(self, words: bytes, entries: bytes) -> None:
        self._words, self._entries = words, entries
        self._word_ends, self._entry_ends = _line_ends(words), _line_ends(entries)

    def __len__(self) -> int:
        return len(self._word_ends)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words.decode().split("\n"))

    def __contains__(self, word: str) -> bool:
        return self.get(word) is not None

    def items(self) -> Iterator[tuple[str, str]]:
        return zip(self, self._entries.decode().split("\n"), strict=True)

    def get(self, word: str) -> str | None:
        """The entry of exactly this word."""
        if not word.isascii():
            return None
        key = word.encode()
        index = bisect_left(range(len(self)), key, key=self._word)
        if index == len(self) or self._word(index) != key:
            return None
        start = self._entry_ends[index - 1] + 1 if index else 0
        return self._entries[start : self._entry_ends[index]].decode()

    def _word(self, index: int) -> bytes:
        return self._words[self._word_ends[index - 1] + 1 if index else 0 : self._word_ends[index]]


def write_lexicon(path: Path, entries: dict[str, str]) -> None:
    """Write words and entries in two columns, which compress better than lines."""
    words = sorted(entries)
    text = "\n".join(words) + "\n\n" + "\n".join(entries[word] for word in words)
    path.write_bytes(zlib.compress(text.encode(), 9))


@cache
def load_lexicon_entries() -> PronunciationLexicon:
    words, _, entries = zlib.decompress(Path(__file__).with_name(LEXICON_FILE).read_bytes()).partition(b"\n\n")
    return PronunciationLexicon(words, entries)


def _line_ends(text: bytes) -> "array[int]":
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEW_LINE)
    return array("I", np.append(ends, len(text)).astype(np.uint32).tobytes())
