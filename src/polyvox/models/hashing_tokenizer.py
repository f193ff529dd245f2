# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of models with random weights, which have no vocabulary."""

import hashlib
import re

from polyvox.models.tokenizer import TextTokenizer, TokenizerConfig

MAX_PLAIN_ID = 1000  # ids below this are ordinary text in every published vocabulary
LINE_BREAK_ID = 198
_TOKEN = re.compile(r"\s*(?:'?\w+|[^\s\w]+)")  # of live text: a word or a mark, with the space before it


class HashingTokenizer(TextTokenizer):
    """Each word, or each of num_tokens tokens, is a hash. Live text has a token per word and mark."""

    def __init__(self, config: TokenizerConfig, num_tokens: int | None) -> None:
        self.role = [config.im_start_id, config.assistant_id, LINE_BREAK_ID]
        self._num_tokens = num_tokens
        self._vocab_size = min(MAX_PLAIN_ID, config.talker.text_vocab_size // 2)

    def pre_tokens(self, text: str) -> list[tuple[int, int]]:
        return [token.span() for token in _TOKEN.finditer(text)]

    def _pre_token_ids(self, pre_token: str) -> list[int]:
        return [self._id(pre_token.strip())]

    def _encode(self, text: str) -> list[int]:
        words = text.split() if self._num_tokens is None else [f"{i}{text}" for i in range(self._num_tokens)]
        return list(map(self._id, words))

    def _id(self, word: str) -> int:
        return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % self._vocab_size
