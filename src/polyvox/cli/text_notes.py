# SPDX-License-Identifier: Apache-2.0
"""What normalisation changed or left out of a text, in words."""

from collections.abc import Iterable

from polyvox.text import Note
from polyvox.text.markup import MAX_PAUSE, MAX_SILENCE

MAX_PASSAGES = 3  # of each sentence
MAX_PASSAGE = 40  # characters
LEFT_OUT = "Left out of the text"
# By kind of note; others are left out.
ACTIONS = {
    "image": "Read without its address",
    "language": "No rules for the language",
    "link": "Read without its address",
    "number": "Left as written",
    "pause": f"Shortened, because a pause has at most {MAX_PAUSE:g} s and all between two words {MAX_SILENCE:g} s",
    "phonemes": "Read as written, because the model takes no phonemes",
    "repeated": "Read once",
    "url": "Read as words",
}
# Reasons for malformed passages, by their beginning.
REASONS = {
    "[pause": "not a valid pause; write [pause:0.5s]",
    "<break": 'not a valid pause; write <break time="0.5s"/>',
    "<prosody": 'not a valid rate; write <prosody rate="slow">',
}


def describe_notes(notes: Iterable[Note]) -> str:
    """One sentence for each thing that was done to passages, with the first ones; empty without notes."""
    passages: dict[str, dict[str, None]] = {}  # by action, each once
    for note in sorted(notes, key=lambda note: note.kind != "malformed"):
        passages.setdefault(_action(note), {})[_passage(note)] = None
    return " ".join(f"{action}: {_join(list(found)).removesuffix('.')}." for action, found in passages.items())


def _action(note: Note) -> str:
    if note.kind == "link" and note.source.startswith(("[^", "]")):  # a footnote, or the end of a link
        return LEFT_OUT
    return ACTIONS.get(note.kind, LEFT_OUT)


def _passage(note: Note) -> str:
    if note.kind == "unspeakable":
        return f"U+{ord(note.source):04X}"
    text = " ".join(note.source.split())
    shown = text if len(text) <= MAX_PASSAGE else text[: MAX_PASSAGE - 1] + "…"
    reason = next((reason for start, reason in REASONS.items() if text.lower().startswith(start)), None)
    return f"{shown} ({reason})" if note.kind == "malformed" and reason else shown


def _join(passages: list[str]) -> str:
    shown, rest = passages[:MAX_PASSAGES], len(passages) - MAX_PASSAGES
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
