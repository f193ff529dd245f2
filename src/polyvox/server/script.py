"""What an utterance says, sentence by sentence: known at once, or still growing."""

import asyncio
from collections import deque
from dataclasses import dataclass

from polyvox.reading import SENTENCE_SECONDS, lines_of
from polyvox.text import Part, Pause, SentenceStream, SpokenText, TextRules, Words


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is said in one go, and the silence before it."""

    text: str
    silence: float = 0.0  # seconds


class Script:
    """Sentences in their order, for one reader. One that grows is open until `finish`."""

    def __init__(self, rules: TextRules) -> None:
        self._words, self._sentences = SpokenText(rules), SentenceStream()
        self._waiting: deque[Sentence] = deque()
        self._open = True
        self._news = asyncio.Event()
        self._silence, self._natural = 0.0, 0.0  # before the next sentence: asked for, and ours where nothing is
        self.characters = 0

    @classmethod
    def whole(cls, text: str, rules: TextRules) -> "Script":
        """A text that is all there; raises InvalidRequest where there is nothing in it to say."""
        script = cls(rules)
        lines, _ = lines_of(text, rules)
        for line in lines:
            if line.text:
                script._waiting.append(Sentence(line.text, script._silence))
                script._silence = 0.0
            script._silence += line.pause
        script._open, script.characters = False, len(text)
        return script

    @property
    def ending(self) -> float:
        """Seconds of silence that the text asks for at its end."""
        return self._silence

    def append(self, text: str) -> None:
        self.characters += len(text)
        self._take(self._words.append(text))

    def finish(self) -> None:
        """No more text will come; any number of times."""
        if self._open:
            self._take(self._words.finish())
            self._say(self._sentences.finish())
            self._open = False
            self._news.set()

    def ready(self) -> Sentence | None:
        """The next sentence, where it is there already."""
        return self._waiting.popleft() if self._waiting else None

    async def next(self) -> Sentence | None:
        """The next sentence; None after the last one."""
        while not self._waiting and self._open:
            self._news.clear()
            await self._news.wait()
        return self.ready()

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            match part:
                case Words(text):
                    self._say(self._sentences.append(text))
                case Pause(seconds):
                    self._say(self._sentences.finish())
                    self._sentences = SentenceStream()
                    self._silence += seconds
                    self._natural = 0.0

    def _say(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._waiting.append(Sentence(sentence, self._silence or self._natural))
            self._silence, self._natural = 0.0, SENTENCE_SECONDS
        if sentences:
            self._news.set()
