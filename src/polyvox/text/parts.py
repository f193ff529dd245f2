# SPDX-License-Identifier: Apache-2.0
"""The output of text normalisation: words, pauses and notes."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """Text to speak."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence, in seconds."""

    seconds: float


Part = Words | Pause


@dataclass(frozen=True, slots=True)
class Note:
    """A piece of the text that was changed or left out: its kind, and the original text.

    Kinds: code, comment, emoji, image, language, left out, link, malformed, number, pause, repeated, tag, thought,
    unspeakable, url.
    """

    kind: str
    source: str


def merge_parts(parts: Iterable[Part]) -> list[Part]:
    """Join adjacent Words, so that the result does not depend on the chunks of a stream."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Words) and isinstance(last, Words):
            joined[-1] = Words(last.text + part.text)
        elif isinstance(part, Pause) or part.text:
            joined.append(part)
    return joined


def format_parts(parts: Iterable[Part]) -> str:
    """Format parts as one line. Normalising it again gives the same parts."""
    return " ".join(
        part.text if isinstance(part, Words) else f"[pause:{part.seconds:g}s]" for part in merge_parts(parts)
    )
