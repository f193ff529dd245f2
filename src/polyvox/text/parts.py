"""What text becomes on its way to speech, and what a caller may choose about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from polyvox.errors import InvalidRequest

ENGLISH = ("auto", "english")


@dataclass(frozen=True, slots=True)
class Words:
    """Text to be said."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence, in seconds."""

    seconds: float


Part = Words | Pause


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is not said as it stands: its kind, and the text as it was written.

    Kinds: code, comment, emoji, image, language, left out, link, malformed, number, pause, repeated, tag, thought,
    unspeakable, url.
    """

    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class TextRules:
    """How text is made speakable.

    language: "auto" and "english" have rules for numbers, dates and the like; in any other language only Unicode and
    markup are cleaned. lexicon: word to respelling; whole words, in any case, the longest first. enabled: False gives
    every text as it is.
    """

    language: str = "auto"
    lexicon: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True

    def __post_init__(self) -> None:
        for word, respelling in self.lexicon.items():
            if not word.strip() or not any(map(str.isalnum, word)) or "\n" in word:
                raise InvalidRequest("lexicon", word, "words must have a letter or digit and be on one line")
            if not respelling.strip():
                raise InvalidRequest("lexicon", f"{word} = {respelling}", "the respelling must not be empty")

    @property
    def english(self) -> bool:
        return self.language.strip().lower() in ENGLISH


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same parts with neighbouring words joined, so that it no longer shows where a stream was cut."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Words) and isinstance(last, Words):
            joined[-1] = Words(last.text + part.text)
        elif isinstance(part, Pause) or part.text:
            joined.append(part)
    return joined


def spoken(parts: Iterable[Part]) -> str:
    """Parts as one line to show; making it speakable again gives the same parts."""
    return " ".join(part.text if isinstance(part, Words) else f"[pause:{part.seconds:g}s]" for part in merged(parts))
