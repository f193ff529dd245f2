# SPDX-License-Identifier: Apache-2.0
"""Pronunciation lexicon files: one `word = respelling` per line."""

from pathlib import Path

from polyvox.errors import InvalidRequest

MAX_ENTRIES = 10_000  # more would make the regular expression slow to build


def load_lexicon(path: str | Path) -> dict[str, str]:
    """Read a lexicon file. `#` at the start of a line or after white space starts a comment.

    Raises InvalidRequest with the line number for invalid lines and duplicate words.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("lexicon", str(path), f"must be a readable UTF-8 text file: {error}") from error
    entries: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        content = f" {line}".partition(" #")[0].strip()
        if not content:
            continue
        word, equals, respelling = (piece.strip() for piece in content.partition("="))
        where = f"lexicon {path}, line {number}"
        if not (equals and respelling and any(map(str.isalnum, word))):
            raise InvalidRequest(where, line.strip(), "must be word = respelling")
        if word.lower() in seen:
            raise InvalidRequest(where, word, f"is already defined on line {seen[word.lower()]}")
        if len(entries) == MAX_ENTRIES:
            raise InvalidRequest(where, word, f"must have at most {MAX_ENTRIES} entries")
        entries[word], seen[word.lower()] = respelling, number
    return entries
