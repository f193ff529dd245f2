# SPDX-License-Identifier: Apache-2.0
"""The text tokenizer: Qwen2's byte-level BPE with its regex, from the checkpoint's files."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from polyvox.errors import NO_TEXT, CheckpointError, InvalidRequest
from polyvox.models.layers.talker_config import TalkerShape
from polyvox.text.phonemes import load_pronunciations, phonemize

# Qwen2's pre-token pattern. The reference implementation may replace it with Mistral's when it loads a large vocabulary
# from a local folder; the models were trained with this one.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

NO_WORDS = "must have at least one word in Latin letters, because this model speaks English only"
MAX_KNOWN, MAX_KNOWN_CHARS = 10_000, 16  # pre-tokens whose ids are kept, and their length
SILENT_PHONEMES = "…"  # of a text without words


class TokenizerConfig(Protocol):
    """What a tokenizer reads of a checkpoint's config."""

    @property
    def im_start_id(self) -> int: ...

    @property
    def im_end_id(self) -> int: ...

    @property
    def assistant_id(self) -> int: ...

    @property
    def phoneme_alphabet(self) -> str | None: ...

    @property
    def talker(self) -> TalkerShape: ...


class TextTokenizer:
    """Ids of text, role and instructions. Special tokens in a user's text are plain text.

    If the model's text is phonemes, `text` is English and its phonemes are tokenized.
    """

    takes_phonemes = False

    def __init__(self, folder: Path, config: TokenizerConfig) -> None:
        self._tokenizer = _load(folder)
        self._known: dict[str, tuple[int, ...]] = {}
        self.takes_phonemes = config.phoneme_alphabet is not None
        if self.takes_phonemes:
            load_pronunciations()
        self._im_start, self._im_end = [config.im_start_id], [config.im_end_id]
        self.role = self._im_start + self._encode("assistant\n")
        if len(self.role) != 3 or self.role[1] != config.assistant_id:
            raise CheckpointError(
                f"{folder}: the vocabulary gives {self.role[1:]} for 'assistant' and a line break; "
                f"supported is two ids, the first config.json's assistant_token_id {config.assistant_id}"
            )
        largest = max(self._tokenizer.get_vocab().values())
        if largest >= config.talker.text_vocab_size:
            raise CheckpointError(
                f"{folder}: the vocabulary has the id {largest}; supported are ids below config.json's "
                f"talker_config.text_vocab_size, {config.talker.text_vocab_size}"
            )

    def text(self, text: str, field: str = "text", needs_words: bool = True) -> list[int]:
        """The ids of a text without the whitespace around it.

        needs_words: reject a text that has no phonemes; otherwise it is a silent mark.
        """
        cleaned = _clean(text, field)
        if not self.takes_phonemes:
            return self._encode(cleaned)
        phonemes = phonemize(cleaned)
        if not phonemes and needs_words:
            raise InvalidRequest(field, text, NO_WORDS)
        return self._encode(phonemes or SILENT_PHONEMES)

    def is_silent(self, ids: list[int]) -> bool:
        """Whether these are the ids of a text without words."""
        return self.takes_phonemes and ids == self._encode(SILENT_PHONEMES)

    def pre_tokens(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each pre-token of a text in NFC; ids do not cross them."""
        assert self._tokenizer.pre_tokenizer is not None
        return [span for _, span in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def pieces(self, text: str, spans: Iterable[tuple[int, int]] | None = None) -> list[int]:
        """The ids of a text in NFC, or of these of its pre-tokens."""
        ids: list[int] = []
        for start, end in self.pre_tokens(text) if spans is None else spans:
            ids += self._pre_token_ids(text[start:end])
        return ids

    def _pre_token_ids(self, pre_token: str) -> Sequence[int]:
        """The ids of a pre-token: live text has few different ones, so most are found."""
        if (ids := self._known.get(pre_token)) is None:
            ids = tuple(self._encode(pre_token))
            if len(pre_token) <= MAX_KNOWN_CHARS:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()  # the frequent ones soon return
                self._known[pre_token] = ids
        return ids

    def instructions(self, text: str) -> list[int]:
        """The ids of instructions as a user turn of a chat."""
        turn = self._encode("user\n" + _clean(text, "instructions"))
        return self._im_start + turn + self._im_end + self._encode("\n")

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _clean(text: str, field: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise InvalidRequest(field, text, NO_TEXT)
    try:
        stripped.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, text, f"must be valid Unicode (lone surrogate at {error.start})") from None
    return stripped


def _load(folder: Path) -> Tokenizer:
    try:
        vocab, merges, added = _read_vocabulary(folder)
        tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
        tokenizer.normalizer = NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.add_special_tokens([AddedToken(added[key], normalized=False, special=True) for key in sorted(added)])
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename} is missing; a checkpoint must have it") from None
    except Exception as error:  # tokenizers raises Exception for a merge that is not in its vocabulary
        raise CheckpointError(f"{folder}: the vocabulary cannot be read: {error}") from None
    for key, value in added.items():
        if tokenizer.token_to_id(value) != key:
            raise CheckpointError(
                f"{folder}: the added token {value} has id {key}; "
                f"supported is the next one after the vocabulary, {tokenizer.token_to_id(value)}"
            )
    # A user's text never contains control tokens.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _read_vocabulary(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]], dict[int, str]]:
    """Vocabulary, merges and added tokens: from vocab.json, merges.txt and tokenizer_config.json, or, if the first two
    are missing, from tokenizer.json."""
    combined = folder / "tokenizer.json"
    if combined.is_file() and not ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()):
        found = json.loads(combined.read_text(encoding="utf-8"))
        if found["model"]["type"] != "BPE":
            raise ValueError(f"{combined.name} has a {found['model']['type']} model; supported is BPE")
        # A merge is a pair, or, before version 0.20 of tokenizers, two tokens with a space between them.
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in found["model"]["merges"])
        added = {int(token["id"]): str(token["content"]) for token in found.get("added_tokens", [])}
        vocab = {token: index for token, index in found["model"]["vocab"].items() if index not in added}
        return vocab, [(first, second) for first, second in pairs], added
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(" ") for line in lines if line and not line.startswith("#version"))
    merges = [(first, second) for first, second in pairs]
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    decoder = settings.get("added_tokens_decoder", {})
    return vocab, merges, {int(key): str(value["content"]) for key, value in decoder.items()}
