# SPDX-License-Identifier: Apache-2.0
"""From what is asked to the rows that the talker reads: a pure function over ids, no tensors.

A prefill row is the sum of a text part and a codec part. The text part is always an id; the codec part is an
id, the vector of a cloned voice, a frame of the reference recording, or nothing. Text that is not in the
prefill comes as one id a frame (`trailing`); after its end every frame gets the text pad.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.request import AUTO, Layout

NO_CODE = -1


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of all rows, and where the parts that are not ids are added."""

    text: tuple[int, ...]
    codec: tuple[int, ...]  # NO_CODE where the codec part is not an id
    trailing: tuple[int, ...]
    vector_row: int | None  # the row of the cloned voice's vector
    frames_row: int | None  # the first row of the reference recording's frames

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Reference:
    """The recording that in-context cloning continues: its transcript's ids and its length in frames."""

    text: Sequence[int]
    frames: int


def languages(config: ModelConfig) -> list[str]:
    """What `language` may be; dialects come with their speakers and are not in it."""
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

    role, text and instructions are token ids (see tokenizer.py). The voice is a speaker of the checkpoint, or
    a vector, with or without a reference recording, or neither (a designed voice).
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

    rows = [(token, NO_CODE) for token in [*instructions, *role]]
    rows += [(pad, entry) for entry in control]
    rows.append((bos, talker.pad_id))
    trailing: Sequence[int] = [pad]
    frames_row = None
    if reference is not None:
        spoken = [*reference.text, *text, eos]
        heard = [talker.bos_id, *[NO_CODE] * reference.frames]
        if layout == "whole":
            rows += [(token, talker.pad_id) for token in spoken]
            spoken = []
        frames_row = len(rows) + 1
        rows += zip(spoken + [pad] * (len(heard) - len(spoken)), heard, strict=False)
        trailing = spoken[len(heard) :] or trailing
    elif layout == "whole":
        rows += [(token, talker.pad_id) for token in [*text, eos]]
        rows.append((pad, talker.bos_id))
    else:
        rows.append((text[0], talker.bos_id))
        trailing = [*text[1:], eos]
    return Prompt(
        text=tuple(token for token, _ in rows),
        codec=tuple(code for _, code in rows),
        trailing=tuple(trailing),
        vector_row=vector_row,
        frames_row=frames_row,
    )


def _language_control(config: ModelConfig, language: str, speaker: str | None) -> list[int]:
    talker = config.talker
    language = _known("language", language, languages(config))
    if language in (AUTO, "chinese") and speaker is not None:
        # A speaker of a dialect speaks it, also where Chinese is named.
        language = talker.dialects.get(speaker.lower(), language)
    if language == AUTO:
        return [talker.nothink_id, talker.think_bos_id, talker.think_eos_id]
    return [talker.think_id, talker.think_bos_id, talker.languages[language], talker.think_eos_id]


def _known(field: str, name: str, names: Collection[str]) -> str:
    if name.lower() not in names:
        raise InvalidRequest(field, name, names)
    return name.lower()
