# SPDX-License-Identifier: Apache-2.0
"""Splits text into segments, each of which is one stream of the engine. The text may still be arriving."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from polyvox.errors import NO_TEXT, InvalidRequest
from polyvox.long_form import CLAUSE_PAUSE, PARAGRAPH_PAUSE, SENTENCE_ENDS, SENTENCE_PAUSE
from polyvox.models.request import ClonedVoice, ThinkerPrompt
from polyvox.text import Part, Pause, Rate, SentenceSplitter, TextNormalizer, TextRules, Words
from polyvox.text.phonemes import unmark_phonemes
from polyvox.text.segment_text import SegmentLocator, SegmentText

# The unit of a segment: a sentence, a clause, or a sentence that starts with its first words.
Granularity = Literal["sentence", "clause", "token"]

_PARAGRAPH = re.compile(r"\n\s*\n")


class StreamingSegment:
    """The text of a segment that is already being synthesised, for one reader."""

    def __init__(self, text: str) -> None:
        self._text, self._num_read = text, len(text)
        self._is_open = True
        self._changed = asyncio.Event()

    def extend(self, text: str, last: bool = False) -> None:
        """text: the whole text that is known so far."""
        self._text = max(self._text, text, key=len)
        self._is_open = self._is_open and not last
        self._changed.set()

    async def remaining_text(self) -> AsyncGenerator[str]:
        while True:
            if added := self._text[self._num_read :]:
                self._num_read = len(self._text)
                yield added
            elif not self._is_open:
                return
            else:
                self._changed.clear()
                await self._changed.wait()


class StreamingTokens:
    """The tokens of a thinker's answer while it is synthesised, for one reader."""

    def __init__(self, prompt: ThinkerPrompt) -> None:
        self.prompt = prompt
        self._ids: list[int] = []
        self._is_open = True
        self._changed = asyncio.Event()

    def extend(self, ids: Sequence[int], last: bool = False) -> None:
        self._ids += ids
        self._is_open = self._is_open and not last
        self._changed.set()

    async def remaining_ids(self) -> AsyncGenerator[list[int]]:
        while True:
            if self._ids:
                ids, self._ids = self._ids, []
                yield ids
            elif not self._is_open:
                return
            else:
                self._changed.clear()
                await self._changed.wait()


@dataclass(frozen=True, slots=True)
class Segment:
    """Text that is synthesised as one stream. With `streaming`, text is only its first words, or empty for tokens."""

    text: str
    silence: float = 0.0  # seconds before the segment
    rate: float = 1.0  # of speaking, relative to the utterance
    streaming: StreamingSegment | StreamingTokens | None = None
    voice: str | ClonedVoice | None = None  # of a dialogue; None is the voice of the utterance
    source: SegmentText | None = None  # with the positions of the client's text, if they are tracked

    @property
    def written_text(self) -> str:
        """The text without phonemes and the space after it."""
        return unmark_phonemes(self.text.rstrip())


class SegmentQueue:
    """The segments of a text in order, for one reader. Text can be appended until `finish`.

    track_positions: segments have the text that the client wrote for them.
    """

    def __init__(self, rules: TextRules, granularity: Granularity = "sentence", track_positions: bool = False) -> None:
        self._rules, self._granularity = rules, granularity
        self._spoken, self._sentences = TextNormalizer(rules, track_positions), self._new_splitter()
        self._locator = SegmentLocator(self._spoken) if track_positions else None
        self._source: SegmentText | None = None  # of the streaming segment
        self._trailing_space = ""  # may turn out to be a paragraph break
        self._ready: deque[Segment] = deque()
        self.num_ready_bytes = 0  # of text in the segments that are ready
        self._streaming: StreamingSegment | None = None
        self._answer: StreamingTokens | None = None
        self._has_tokens = False
        self._is_open = True
        self._changed = asyncio.Event()
        # Silence before the next segment: requested by the text, and the default where nothing is requested.
        self._requested_silence, self._default_silence = 0.0, 0.0
        self._rate = 1.0  # of the next segment
        self._voice: str | ClonedVoice | None = None
        self._is_mid_sentence = False  # the last segment has no punctuation at its end
        self.characters = 0

    @classmethod
    def from_text(cls, text: str, rules: TextRules, track_positions: bool = False) -> "SegmentQueue":
        """A complete text; raises InvalidRequest if there is nothing to say."""
        queue = cls(rules, track_positions=track_positions)
        queue.append(text)
        queue.finish()
        if not queue._ready:
            raise InvalidRequest("text", text, NO_TEXT)
        return queue

    @classmethod
    def from_turns(
        cls, turns: Iterable[tuple[str, str | ClonedVoice | None]], rules: TextRules, track_positions: bool = False
    ) -> "SegmentQueue":
        """A dialogue of texts and their voices; raises InvalidRequest if a text has nothing to say."""
        queue = cls(rules, track_positions=track_positions)
        for text, voice in turns:
            queue._voice, num_ready = voice, len(queue._ready)
            queue.append(text)
            queue.flush()
            if len(queue._ready) == num_ready:
                raise InvalidRequest("text", text, NO_TEXT)
            queue._default_silence = PARAGRAPH_PAUSE
        queue.finish()
        return queue

    @property
    def languages(self) -> list[str]:
        """The languages of the text so far, in the order of their first sentences."""
        return list(self._spoken.languages)

    @property
    def trailing_silence(self) -> float:
        """Seconds of silence that the text requests at its end."""
        return self._requested_silence

    def append(self, text: str) -> None:
        self.characters += len(text)
        if self._locator is not None:
            self._locator.append_written(text)
        self._add_parts(self._spoken.append(text))

    def start_answer(self, prompt: ThinkerPrompt) -> None:
        """Begins the only segment of an answer by tokens; it is ready with its first token."""
        self._answer = StreamingTokens(prompt)

    def append_tokens(self, ids: Sequence[int]) -> None:
        assert self._answer is not None
        if ids and not self._has_tokens:
            self._has_tokens = True
            self._put(Segment("", streaming=self._answer))
        self._answer.extend(ids)

    def flush(self) -> None:
        """Ends the current segment. Text that follows starts a new sentence."""
        if self._is_open:
            self._add_parts(self._spoken.flush())
            self._end_sentence()
            self._trailing_space = ""

    def finish(self) -> None:
        """Marks the text as complete; raises InvalidRequest if an SSML document is not. Idempotent."""
        if self._answer is not None:
            self._answer.extend((), last=True)
        if self._is_open:
            try:
                self._add_parts(self._spoken.finish())
                self._end_sentence()
            finally:
                self.close()

    def rest_of_text(self) -> SegmentText | None:
        """The client's text after the last segment, if positions are tracked."""
        return None if self._locator is None else self._locator.rest()

    def close(self) -> None:
        """Accepts no more text; text that is not complete is dropped. Idempotent."""
        self._is_open = False
        self._changed.set()

    def next_ready(self) -> Segment | None:
        """The next segment, if it is complete."""
        if not self._ready:
            return None
        segment = self._ready.popleft()
        self.num_ready_bytes -= len(segment.text.encode(errors="surrogatepass"))
        return segment

    async def next(self) -> Segment | None:
        """The next segment; None after the last one."""
        while not self._ready and self._is_open:
            self._changed.clear()
            await self._changed.wait()
        return self.next_ready()

    def _new_splitter(self) -> SentenceSplitter:
        return SentenceSplitter(clauses=self._granularity == "clause")

    def _add_parts(self, parts: list[Part]) -> None:
        for part in parts:
            match part:
                case Words(text):
                    if self._locator is not None:
                        self._locator.append_words(text)
                    self._add_text(text)
                case Pause(seconds):
                    self._end_sentence()
                    self._trailing_space = ""
                    self._requested_silence += seconds
                    self._default_silence = 0.0
                case Rate(value):
                    self._end_sentence()
                    self._trailing_space = ""
                    self._rate = value
                    if self._is_mid_sentence and self._default_silence:
                        self._default_silence = CLAUSE_PAUSE

    def _add_text(self, text: str) -> None:
        text = self._trailing_space + text
        length = len(text.rstrip())
        self._trailing_space = text[length:]
        *paragraphs, last = _PARAGRAPH.split(text[:length])
        for paragraph in paragraphs:
            self._add_sentences(self._sentences.append(paragraph))
            self._end_sentence()
            if self._default_silence:
                self._default_silence = PARAGRAPH_PAUSE
        self._add_sentences(self._sentences.append(last))
        if self._granularity == "token" and (known := self._sentences.certain):
            is_all = len(known) == self._sentences.num_pending
            # With the space after it, the last word is complete for the tokenizer too.
            self._extend_streaming(known + " " if is_all and self._spoken.is_word_complete else known)

    def _end_sentence(self) -> None:
        self._add_sentences(self._sentences.finish())
        self._sentences = self._new_splitter()

    def _add_sentences(self, sentences: list[str]) -> None:
        for sentence in sentences:
            if self._streaming is not None:
                self._streaming.extend(sentence, last=True)
                self._locate(self._source, sentence, complete=True)
                self._streaming = self._source = None
            else:
                source = self._locate(None, sentence, complete=True)
                silence = self._requested_silence or self._default_silence
                self._put(Segment(sentence, silence, self._rate, voice=self._voice, source=source))
            self._is_mid_sentence = sentence[-1] not in SENTENCE_ENDS
            is_clause = self._granularity == "clause" and self._is_mid_sentence
            self._default_silence = CLAUSE_PAUSE if is_clause else SENTENCE_PAUSE

    def _extend_streaming(self, known: str) -> None:
        if self._streaming is not None:
            self._streaming.extend(known)
            self._locate(self._source, known.rstrip(), complete=False)
        elif any(map(str.isalnum, known)):
            self._streaming = StreamingSegment(known)
            self._source = self._locate(None, known.rstrip(), complete=False)
            silence = self._requested_silence or self._default_silence
            self._put(Segment(known, silence, self._rate, self._streaming, source=self._source))

    def _locate(self, source: SegmentText | None, spoken: str, complete: bool) -> SegmentText | None:
        """Finds the client's text of the next segment, or more of a segment's."""
        if self._locator is None:
            return None
        source = source or self._locator.begin()
        self._locator.extend(source, max(source.spoken, spoken, key=len), complete)
        return source

    def _put(self, segment: Segment) -> None:
        self._ready.append(segment)
        self.num_ready_bytes += len(segment.text.encode(errors="surrogatepass"))
        self._requested_silence = 0.0
        self._changed.set()
