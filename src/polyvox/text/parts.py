# SPDX-License-Identifier: Apache-2.0
"""The output of text normalisation: words, pauses, speaking rates and notes."""

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


@dataclass(frozen=True, slots=True)
class Rate:
    """The speaking rate from here on; 1 is the normal rate."""

    value: float


Part = Words | Pause | Rate


@dataclass(frozen=True, slots=True)
class Note:
    """A piece of the text that was changed or left out: its kind, and the original text.

    Kinds: code, comment, emoji, image, language, left out, link, malformed, number, pause, phonemes, repeated, tag,
    thought, unspeakable, url.
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
        elif isinstance(part, Rate) and isinstance(last, Rate):
            joined[-1] = part
        elif not isinstance(part, Words) or part.text:
            joined.append(part)
    return joined


def format_parts(parts: Iterable[Part]) -> str:
    """Format parts as one line. Normalising it again gives the same parts."""
    return " ".join(map(_format, merge_parts(parts)))


def _format(part: Part) -> str:
    match part:
        case Words(text):
            return text
        case Pause(seconds):
            return f"[pause:{seconds:g}s]"
        case Rate(value):
            return f'<prosody rate="{value:g}">' if value != 1.0 else "</prosody>"
