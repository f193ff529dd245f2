# SPDX-License-Identifier: Apache-2.0
"""Tokenizes text that arrives in pieces: returns tokens as soon as no later text can change them."""

import unicodedata
from collections.abc import Sequence

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.request_checks import MAX_TEXT
from polyvox.models.tokenizer import NO_WORDS, SILENT_PHONEMES, TextTokenizer
from polyvox.text.phonemes import PhonemeStream


class TextStreamTokenizer:
    """Returns the token ids of a text whose pieces may have any size, in order and as early as possible.

    Pending are the last pre-token, which more text may extend, trailing whitespace, which may join the next word, and
    characters before a combining mark. Whitespace around the whole text is not tokenized. If the model's text is
    phonemes, words whose phonemes depend on the next word are pending too.
    """

    def __init__(self, tokenizer: TextTokenizer, needs_words: bool = True) -> None:
        self._tokenizer, self._needs_words = tokenizer, needs_words
        self._phonemes = PhonemeStream() if tokenizer.takes_phonemes else None
        self._pending = ""
        self._length = 0
        self._begun = False

    @property
    def begun(self) -> bool:
        """Whether there is any text, even if all of it is pending."""
        words_pending = self._phonemes is not None and self._phonemes.has_pending
        return self._begun or words_pending or bool(self._pending.strip())

    def append_tokens(self, _ids: Sequence[int], /) -> list[int]:
        raise InvalidRequest("append_tokens", NOT_SHOWN, "requires a request with a thinker's prompt")

    def append(self, piece: str) -> list[int]:
        """The ids that this piece completes. An invalid piece raises and changes nothing."""
        if self._length + len(piece) > MAX_TEXT:
            raise InvalidRequest(
                "text", piece, f"must have at most {MAX_TEXT:,} characters in total", "Start another stream."
            )
        if not piece.isascii() and any("\ud800" <= character <= "\udfff" for character in piece):
            raise InvalidRequest("text", piece, "must be valid Unicode without lone surrogates")
        self._length += len(piece)
        if self._phonemes is not None:
            return self._complete(self._phonemes.append(piece))
        text = self._pending + piece
        text = unicodedata.normalize("NFC", text if self._begun else text.lstrip())
        spans = self._tokenizer.pre_tokens(text)
        visible = len(text.rstrip())
        while spans and not self._is_complete(text, spans[-1][1], visible):
            spans.pop()
        boundary = spans[-1][1] if spans else 0
        self._pending = text[boundary:]
        self._begun = self._begun or boundary > 0
        return self._tokenizer.pieces(text, spans)

    @staticmethod
    def _is_complete(text: str, end: int, visible: int) -> bool:
        """Whether no further text changes the pre-tokens up to this end. visible: length without trailing space."""
        return end <= visible and end < len(text) and not unicodedata.combining(text[end])

    def finish(self) -> list[int]:
        """The remaining ids; raises InvalidRequest if there was no text."""
        if self._phonemes is not None:
            ids = self._complete(self._phonemes.finish())
            if self._begun or not self._length:
                return ids if self._begun else self._tokenizer.text("")
            if self._needs_words:
                raise InvalidRequest("text", NOT_SHOWN, NO_WORDS)
            return self._complete(SILENT_PHONEMES)
        pending, self._pending = self._pending.rstrip(), ""
        return self._tokenizer.pieces(pending) if pending or self._begun else self._tokenizer.text("")

    def _complete(self, phonemes: str) -> list[int]:
        """The ids of phonemes. They end after a word or a mark, where a pre-token ends too."""
        self._begun = self._begun or bool(phonemes)
        return self._tokenizer.pieces(phonemes)
