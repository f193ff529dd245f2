"""What an utterance says, sentence by sentence: known at once, or still growing."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from polyvox.errors import InvalidRequest
from polyvox.long_form import PARAGRAPH_PAUSE, SENTENCE_PAUSE
from polyvox.text import Part, Pause, SentenceSplitter, TextNormalizer, TextRules, Words

# What is said in one go: a sentence, a clause, or a sentence that is begun with its first words.
Granularity = Literal["sentence", "clause", "token"]

CLAUSE_SECONDS = 0.1  # of silence after a clause that is said for itself
_PARAGRAPH = re.compile(r"\n\s*\n")
_STOPS = ".!?…。！？｡\"'”’)]」』"


class StreamingSegment:
    """The rest of a sentence that is being said already, for one reader."""

    def __init__(self, text: str) -> None:
        self._text, self._given = text, len(text)
        self._open = True
        self._news = asyncio.Event()

    def grow(self, text: str, last: bool = False) -> None:
        """text: all of it that is known, of which more may be known than before."""
        self._text = max(self._text, text, key=len)
        self._open = self._open and not last
        self._news.set()

    async def rest(self) -> AsyncGenerator[str]:
        while True:
            if piece := self._text[self._given :]:
                self._given = len(self._text)
                yield piece
            elif not self._open:
                return
            else:
                self._news.clear()
                await self._news.wait()


@dataclass(frozen=True, slots=True)
class Segment:
    """What is said in one go, and the silence before it. What grows has its first words as text."""

    text: str
    silence: float = 0.0  # seconds
    growing: StreamingSegment | None = None


class SegmentQueue:
    """Sentences in their order, for one reader. One that grows is open until `finish`."""

    def __init__(self, rules: TextRules, granularity: Granularity = "sentence") -> None:
        self._rules, self._granularity = rules, granularity
        self._words, self._sentences = TextNormalizer(rules), self._new_sentences()
        self._gap = ""  # white space that may become the border of a paragraph
        self._waiting: deque[Segment] = deque()
        self._growing: StreamingSegment | None = None
        self._open = True
        self._news = asyncio.Event()
        self._silence, self._natural = 0.0, 0.0  # before the next sentence: asked for, and ours where nothing is
        self.characters = 0

    @classmethod
    def whole(cls, text: str, rules: TextRules) -> "SegmentQueue":
        """A text that is all there; raises InvalidRequest where there is nothing in it to say."""
        script = cls(rules)
        script.append(text)
        script.finish()
        if not script._waiting:
            raise InvalidRequest("text", text, "must have something to say")
        return script

    @property
    def ending(self) -> float:
        """Seconds of silence that the text asks for at its end."""
        return self._silence

    def append(self, text: str) -> None:
        self.characters += len(text)
        self._take(self._words.append(text))

    def flush(self) -> None:
        """Says what is there as if it were the end; what comes then begins a sentence."""
        if self._open:
            self._take(self._words.finish())
            self._end_sentence()
            self._words, self._gap = TextNormalizer(self._rules), ""

    def finish(self) -> None:
        """No more text will come; any number of times."""
        if self._open:
            self.flush()
            self._open = False
            self._news.set()

    def ready(self) -> Segment | None:
        """The next sentence, where it is there already."""
        return self._waiting.popleft() if self._waiting else None

    async def next(self) -> Segment | None:
        """The next sentence; None after the last one."""
        while not self._waiting and self._open:
            self._news.clear()
            await self._news.wait()
        return self.ready()

    def _new_sentences(self) -> SentenceSplitter:
        return SentenceSplitter(clauses=self._granularity == "clause")

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            match part:
                case Words(text):
                    self._write(text)
                case Pause(seconds):
                    self._end_sentence()
                    self._gap = ""
                    self._silence += seconds
                    self._natural = 0.0

    def _write(self, text: str) -> None:
        text = self._gap + text
        kept = len(text.rstrip())
        self._gap = text[kept:]
        *paragraphs, last = _PARAGRAPH.split(text[:kept])
        for paragraph in paragraphs:
            self._say(self._sentences.append(paragraph))
            self._end_sentence()
            if self._natural:
                self._natural = PARAGRAPH_PAUSE
        self._say(self._sentences.append(last))
        if self._granularity == "token" and (known := self._sentences.certain):
            self._grow(known)

    def _end_sentence(self) -> None:
        self._say(self._sentences.finish())
        self._sentences = self._new_sentences()

    def _say(self, sentences: list[str]) -> None:
        for sentence in sentences:
            if self._growing is not None:
                self._growing.grow(sentence, last=True)
                self._growing = None
            else:
                self._put(Segment(sentence, self._silence or self._natural))
            clause = self._granularity == "clause" and sentence[-1] not in _STOPS
            self._natural = CLAUSE_SECONDS if clause else SENTENCE_PAUSE

    def _grow(self, known: str) -> None:
        if self._growing is not None:
            self._growing.grow(known)
        elif any(map(str.isalnum, known)):
            self._growing = StreamingSegment(known)
            self._put(Segment(known, self._silence or self._natural, self._growing))

    def _put(self, sentence: Segment) -> None:
        self._waiting.append(sentence)
        self._silence = 0.0
        self._news.set()
