# SPDX-License-Identifier: Apache-2.0
"""The tokens of a thinker's answer, as they arrive."""

from collections.abc import Sequence

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.qwen3_omni.config import OmniConfig


class AnswerTokens:
    """Checks the ids of an answer and drops the end of its turn, which is not spoken; see `StreamingTokenizer`."""

    begun = False  # no rows of another model can follow

    def __init__(self, config: OmniConfig) -> None:
        self._end, self._vocab_size = config.im_end_id, config.talker.text_vocab_size
        self._end_of_text = config.tts_eos_id

    def append(self, piece: str) -> list[int]:
        if piece:
            requirement = "is not supported with a thinker's prompt: append token ids"
            raise InvalidRequest("append", NOT_SHOWN, requirement)
        return []

    def append_tokens(self, ids: Sequence[int], /) -> list[int]:
        check_ids("append_tokens", ids, self._vocab_size)
        return [id for id in ids if id != self._end]

    def finish(self) -> list[int]:
        return [self._end_of_text]


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidRequest for an id that is not in the vocabulary."""
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab_size:
            raise InvalidRequest(field, id, f"must be token ids from 0 to {vocab_size - 1}")
