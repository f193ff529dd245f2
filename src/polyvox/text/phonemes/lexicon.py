# SPDX-License-Identifier: Apache-2.0
"""The pronunciation lexicon of American English: one compressed file, read once per process at its first use."""

import zlib
from functools import cache
from pathlib import Path

LEXICON_FILE = "lexicon.zlib"
# The form of a word at the end of a phrase: "what are you looking at?"
END = "END"


def write_lexicon(path: Path, entries: dict[str, str]) -> None:
    """Write words and entries in two columns, which compress better than lines."""
    words = sorted(entries)
    text = "\n".join(words) + "\n\n" + "\n".join(entries[word] for word in words)
    path.write_bytes(zlib.compress(text.encode(), 9))


@cache
def load_lexicon_entries() -> dict[str, str]:
    """Entries by word. An entry is the default pronunciation, then `FORM=phonemes` for other forms."""
    text = zlib.decompress(Path(__file__).with_name(LEXICON_FILE).read_bytes()).decode()
    words, _, entries = text.partition("\n\n")
    return dict(zip(words.split("\n"), entries.split("\n"), strict=True))
