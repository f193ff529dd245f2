# SPDX-License-Identifier: Apache-2.0
"""The talker's prompt of a conversation: a pure function of the thinker's token ids.

The talker reads every user turn, then nine rows of the answer: the role, controls with the voice, and the first token
of the answer. System prompts and earlier answers are skipped. Later tokens are read one per frame; the thinker's end of
turn is not among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_omni.config import OmniConfig
from polyvox.models.talker_prompt import NO_CODE, Prompt

ROLE_ROWS = 3  # <|im_start|>, role, line break


@dataclass(frozen=True, slots=True)
class OmniPrompt:
    """The rows of a prompt; media: (row, index into the conversation) of audio, image and video tokens."""

    rows: Prompt
    media: tuple[tuple[int, int], ...]


def build_prompt(
    config: OmniConfig, conversation: Sequence[int], answer: Sequence[int], speaker: str, closed: bool
) -> OmniPrompt:
    """The prompt for the answer so far, of which at least one token is known.

    conversation: the thinker's prompt, which ends with the start of the assistant's turn. closed: the answer is
    complete.
    """
    talker = config.talker
    if speaker.lower() not in talker.speakers:
        raise InvalidRequest("voice", speaker, talker.speakers)
    media_ids = (config.audio_id, config.image_id, config.video_id)
    starts = [index for index, token in enumerate(conversation) if token == config.im_start_id]
    if not starts or tuple(conversation[starts[-1] + 1 : starts[-1] + 2]) != (config.assistant_id,):
        raise InvalidRequest("prompt", "", "must end with the start of the assistant's turn")
    kept = [
        index
        for start, stop in pairwise(starts)
        if conversation[start + 1] == config.user_id
        for index in range(start, stop)
    ]
    text = [conversation[index] for index in kept]
    media = tuple((row, index) for row, index in enumerate(kept) if conversation[index] in media_ids)
    role = conversation[starts[-1] : starts[-1] + ROLE_ROWS]
    if len(role) < ROLE_ROWS:
        raise InvalidRequest("prompt", "", "must end with a line break after the assistant's role")
    control = [talker.nothink_id, talker.think_bos_id, talker.think_eos_id, talker.speakers[speaker.lower()]]
    codec = [NO_CODE] * (len(text) + ROLE_ROWS) + [*control, talker.pad_id, talker.bos_id]
    text += [*role, *[config.tts_pad_id] * len(control), config.tts_bos_id, answer[0]]
    trailing = [*answer[1:], *([config.tts_eos_id] if closed else [])]
    return OmniPrompt(Prompt(tuple(text), tuple(codec), tuple(trailing), None, None), media)
