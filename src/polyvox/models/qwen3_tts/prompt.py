# SPDX-License-Identifier: Apache-2.0
"""The prompt of a request as rows of ids: a pure function without tensors."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.request import AUTO, Layout
from polyvox.models.talker_prompt import NO_CODE, Prompt


@dataclass(frozen=True, slots=True)
class Reference:
    """The recording that in-context cloning continues: the ids of its transcript and its length in frames."""

    text: Sequence[int]
    frames: int


def languages(config: ModelConfig) -> list[str]:
    """The values of `language`. Dialects belong to speakers and are not included."""
    return [AUTO, *(name for name in config.talker.languages if "dialect" not in name)]


def build_prompt(
    config: ModelConfig,
    role: Sequence[int],
    text: Sequence[int],
    layout: Layout,
    language: str = AUTO,
    speaker: str | None = None,
    vector: bool = False,
    reference: Reference | None = None,
    instructions: Sequence[int] = (),
) -> Prompt:
    """The prompt of one utterance.

    role, text and instructions are token ids (see tokenizer.py). The voice is a built-in speaker, or a speaker vector
    with or without a reference recording, or neither (a designed voice).
    """
    talker = config.talker
    pad, bos, eos = config.tts_pad_id, config.tts_bos_id, config.tts_eos_id
    control = [*_language_control(config, language, speaker)]
    vector_row = None
    if speaker is not None:
        control.append(talker.speakers[_known("voice", speaker, talker.speakers)])
    elif vector:
        vector_row = len(instructions) + len(role) + len(control)
        control.append(NO_CODE)

    # Both parts of each row.
    ids = [*instructions, *role, *[pad] * len(control), bos]
    codes = [*[NO_CODE] * (len(instructions) + len(role)), *control, talker.pad_id]
    trailing: Sequence[int] = [pad]
    frames_row = None
    if reference is not None:
        text_ids = [*reference.text, *text, eos]
        reference_codes = [talker.bos_id, *[NO_CODE] * reference.frames]
        if layout == "whole":
            ids += text_ids
            codes += [talker.pad_id] * len(text_ids)
            text_ids = []
        frames_row = len(ids) + 1
        ids += (text_ids + [pad] * (len(reference_codes) - len(text_ids)))[: len(reference_codes)]
        codes += reference_codes
        trailing = text_ids[len(reference_codes) :] or trailing
    elif layout == "whole":
        ids += [*text, eos, pad]
        codes += [talker.pad_id] * (len(text) + 1) + [talker.bos_id]
    else:
        ids.append(text[0])
        codes.append(talker.bos_id)
        trailing = [*text[1:], eos]
    return Prompt(tuple(ids), tuple(codes), tuple(trailing), vector_row, frames_row)


def _language_control(config: ModelConfig, language: str, speaker: str | None) -> list[int]:
    talker = config.talker
    language = _known("language", language, languages(config))
    if language in (AUTO, "chinese") and speaker is not None:
        # A speaker with a dialect speaks it under auto and Chinese.
        language = talker.dialects.get(speaker.lower(), language)
    if language == AUTO:
        return [talker.nothink_id, talker.think_bos_id, talker.think_eos_id]
    return [talker.think_id, talker.think_bos_id, talker.languages[language], talker.think_eos_id]


def _known(field: str, name: str, names: Collection[str]) -> str:
    if name.lower() not in names:
        raise InvalidRequest(field, name, names)
    return name.lower()
