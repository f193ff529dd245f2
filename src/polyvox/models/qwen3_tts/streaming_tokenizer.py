# SPDX-License-Identifier: Apache-2.0
"""Text that is still growing: its tokens as soon as nothing that follows can change them."""

import unicodedata

from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer

# Speech of the longest utterance a checkpoint allows, 8,191 frames or 11 minutes, is about as many characters.
MAX_TEXT = 10_000


class Qwen3StreamingTokenizer:
    """Takes text in pieces of any sizes and gives the token ids of the whole, in order, as early as is safe.

    Held back are the last pre-token, which more text may lengthen, white space at the end, which may join what
    comes, and what stands before a combining mark. The white space around the whole is not said.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""
        self._length = 0
        self._begun = False

    @property
    def begun(self) -> bool:
        """There is something to say, if only what is held back."""
        return self._begun or bool(self._held.strip())

    def append(self, piece: str) -> list[int]:
        """The ids that this piece makes certain; one that is refused changes nothing."""
        if self._length + len(piece) > MAX_TEXT:
            raise InvalidRequest(
                "text", piece, f"must have at most {MAX_TEXT:,} characters in total", "Start another stream."
            )
        if any("\ud800" <= character <= "\udfff" for character in piece):
            raise InvalidRequest("text", piece, "must be valid Unicode without lone surrogates")
        self._length += len(piece)
        text = self._held + piece
        text = unicodedata.normalize("NFC", text if self._begun else text.lstrip())
        ids, ends = self._tokenizer.pieces(text)
        borders = sorted({end for end in ends if end <= len(text.rstrip())})
        while borders and (borders[-1] == len(text) or unicodedata.combining(text[borders[-1]])):
            borders.pop()
        border = borders[-1] if borders else 0
        self._held = text[border:]
        self._begun = self._begun or border > 0
        return ids[: sum(end <= border for end in ends)]

    def finish(self) -> list[int]:
        """The ids that are left; raises InvalidRequest where there never was anything to say."""
        held, self._held = self._held.rstrip(), ""
        return self._tokenizer.pieces(held)[0] if held or self._begun else self._tokenizer.text("")
