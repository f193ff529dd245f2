# SPDX-License-Identifier: Apache-2.0
"""The talker's prompt of a conversation: a pure function of the thinker's token ids.

The talker reads every user turn, then nine rows of the answer: the role, controls with the voice, and the first token
of the answer. System prompts and earlier answers are skipped. Later tokens are read one per frame; the thinker's end of
turn is not among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.qwen3_omni.config import OmniConfig
from polyvox.models.talker_prompt import NO_CODE, Prompt

ROLE_ROWS = 3  # <|im_start|>, role, line break
OPEN_TURN = "must end with the start of the assistant's turn: the role and a line break"


@dataclass(frozen=True, slots=True)
class OmniPrompt:
    """The rows of a prompt.

    media: (row, index) of the row of each audio, image or video token that is read; the index counts all such tokens
    of the conversation. tokens: the index in the conversation of each row before the controls.
    """

    rows: Prompt
    media: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...]


def media_tokens(config: OmniConfig, conversation: Sequence[int]) -> list[int]:
    """The indices of audio, image and video tokens."""
    ids = (config.audio_id, config.image_id, config.video_id)
    return [index for index, token in enumerate(conversation) if token in ids]


def build_prompt(
    config: OmniConfig, conversation: Sequence[int], answer: Sequence[int], speaker: str, closed: bool
) -> OmniPrompt:
    """The prompt for the answer so far, of which at least one token is known.

    conversation: the thinker's prompt, which ends with the start of the assistant's turn. closed: the answer is
    complete.
    """
    talker = config.talker
    tokens = read_tokens(config, conversation)
    text = [conversation[index] for index in tokens]
    row_of = {index: row for row, index in enumerate(tokens)}
    counted = enumerate(media_tokens(config, conversation))
    media = tuple((row_of[index], count) for count, index in counted if index in row_of)
    control = [talker.nothink_id, talker.think_bos_id, talker.think_eos_id, talker.speakers[speaker.lower()]]
    codec = [NO_CODE] * len(text) + [*control, talker.pad_id, talker.bos_id]
    text += [*[config.tts_pad_id] * len(control), config.tts_bos_id, answer[0]]
    trailing = [*answer[1:], *([config.tts_eos_id] if closed else [])]
    return OmniPrompt(Prompt(tuple(text), tuple(codec), tuple(trailing), None, None), media, tuple(tokens))


def read_tokens(config: OmniConfig, conversation: Sequence[int]) -> list[int]:
    """The indices of the tokens that the talker reads: all user turns, and the role of the answer."""
    starts = [index for index, token in enumerate(conversation) if token == config.im_start_id]
    if not starts or list(conversation[starts[-1] + 1 : starts[-1] + 2]) != [config.assistant_id]:
        raise InvalidRequest("thinker_prompt", NOT_SHOWN, OPEN_TURN)
    if len(conversation) < starts[-1] + ROLE_ROWS:
        raise InvalidRequest("thinker_prompt", NOT_SHOWN, OPEN_TURN)
    users = [(start, stop) for start, stop in pairwise(starts) if conversation[start + 1] == config.user_id]
    read = [*users, (starts[-1], starts[-1] + ROLE_ROWS)]
    return [index for start, stop in read for index in range(start, stop)]


def rotary_offsets(prompt: OmniPrompt, positions: NDArray[np.float32]) -> NDArray[np.float64]:
    """What is added to the index of the first rows to get their rotary positions, [rows, 3].

    positions: the thinker's, [3, tokens]. Turns that the talker skips are text and take as many positions as they have
    tokens. Attention depends on differences of positions only, so all are shifted until the last row has its index;
    rows from the last image or video on then have no offset.
    """
    # Of a skipped turn each token takes one position, so that both of these sequences miss the same ones.
    offsets = positions[:, prompt.tokens].T.astype(np.float64) - np.array(prompt.tokens)[:, None]
    offsets -= offsets[-1]
    changed = np.flatnonzero(offsets.any(axis=1))
    return offsets[: changed[-1] + 1 if len(changed) else 0]
