# SPDX-License-Identifier: Apache-2.0
"""Pool entries as input rows of the talker, in both text layouts, built on the device.

The rows equal those of polyvox.models.qwen3_tts.prompt; a test compares the two.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.prompt import build_prompt
from polyvox.models.talker_prompt import NO_CODE
from training.layout import SPEAKERS
from training.pool import Pool

IGNORED = -100
LIVE_LEAD = 1  # extra silent frames in the live layout, so that the first token is read before speech starts
NEWLINE = 198
END_OF_TEXT = 2**30  # in place of a byte of the text


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [B,L]: inputs and targets."""

    text: Tensor  # [B,L] ids
    control: Tensor  # [B,L] ids of the codec side, NO_CODE where there is none
    frames: Tensor  # [B,L,NUM_CODEBOOKS] codes, NO_CODE where the row is no frame
    target: Tensor  # [B,L] code 0 or end of speech, IGNORED elsewhere
    following: Tensor  # [B,L,NUM_CODEBOOKS] the frame that comes next, NO_CODE where there is none
    spoken_row: Tensor  # [B,L] earlier row with the text token of that frame, or end of text; IGNORED where none

    def __getitem__(self, entries: Tensor) -> "Batch":
        return Batch(*(getattr(self, name)[entries] for name in self.__slots__))


class Batches:
    def __init__(self, pool: Pool, config: ModelConfig, device: torch.device) -> None:
        self.config = config
        self.tokens = torch.from_numpy(pool.tokens.astype(np.int64)).to(device)
        self.token_ends = torch.from_numpy(pool.token_ends.astype(np.int64)).to(device)
        self.codes = torch.from_numpy(pool.codes.astype(np.int64)).to(device)
        self.positions = torch.from_numpy(pool.positions.astype(np.int64)).to(device)
        columns = (pool.first_token, pool.token_count, pool.first_frame, pool.frame_count, pool.speaker)
        self.entries = torch.from_numpy(np.stack(columns, 1).astype(np.int64)).to(device)
        role = [config.im_start_id, config.assistant_id, NEWLINE]
        prompts = [
            build_prompt(config, role, [0], "streaming", language, name)
            for language in ("english", "auto")
            for name in SPEAKERS
        ]
        self.longest = max(len(prompt) for prompt in prompts) - 1
        # For each language and speaker: the rows before the text and their number.
        self.prefix_text = torch.tensor([_padded(p.text[:-1], self.longest) for p in prompts], device=device)
        self.prefix_codec = torch.tensor([_padded(p.codec[:-1], self.longest) for p in prompts], device=device)
        self.prefix_length = torch.tensor([len(p) - 1 for p in prompts], device=device)

    def rows(self, entry: Tensor, live: Tensor, auto: Tensor, length: int) -> Batch:
        """Rows of a fixed length for entries [B], each with its layout and with or without a language."""
        config, talker = self.config, self.config.talker
        first_token, tokens, first_frame, frames, speaker = (c[:, None] for c in self.entries[entry].unbind(1))
        live = live[:, None]
        frames = frames + LIVE_LEAD * live
        prompt = 2 * auto.long() + speaker[:, 0]
        prefix = self.prefix_length[prompt][:, None]
        row = torch.arange(length, device=entry.device)[None]
        column = row.clamp(max=self.longest - 1).expand(len(entry), -1)

        begin = torch.where(live, prefix + 1, prefix + tokens + 2)  # row of the first frame
        frame = row - begin
        word = torch.where(live & (frame >= 0), frame + 1, row - prefix)  # index of the text token of this row
        spelled = self.tokens[(first_token + word.clamp(min=0)).clamp(max=len(self.tokens) - 1)]
        in_prefix = row < prefix

        text = torch.where(word < tokens, spelled, torch.where(word == tokens, config.tts_eos_id, config.tts_pad_id))
        text = torch.where(~live & (frame >= 0), config.tts_pad_id, text)
        text = torch.where(in_prefix, self.prefix_text[prompt].gather(1, column), text)
        control = torch.where(row == begin - 1, talker.bos_id, talker.pad_id)
        control = torch.where(frame >= 0, NO_CODE, control)
        control = torch.where(in_prefix, self.prefix_codec[prompt].gather(1, column), control)

        def position(frame: Tensor) -> Tensor:
            return (first_frame + (frame - LIVE_LEAD * live).clamp(min=0)).clamp(max=len(self.codes) - 1)

        def codes_at(frame: Tensor) -> Tensor:
            inside = (frame >= 0) & (frame < frames)
            return torch.where(inside[..., None], self.codes[position(frame)], NO_CODE)

        following = codes_at(frame + 1)
        end = frame + 1 == frames
        target = torch.where(following[..., 0] >= 0, following[..., 0], IGNORED)
        target = torch.where(end, talker.eos_id, target)

        # Token i is in row prefix + i, in both layouts; the end of text follows the last token.
        token = row - prefix
        ends = self.token_ends[(first_token + token).clamp(min=0, max=len(self.tokens) - 1)]
        ends = torch.where(token < tokens, torch.where(token < 0, -1, ends), END_OF_TEXT + 1)
        byte = torch.where(end, END_OF_TEXT, self.positions[position(frame + 1)])
        spoken_row = torch.searchsorted(ends, byte, right=True)
        spoken_row = torch.where((target != IGNORED) & (spoken_row <= row), spoken_row, IGNORED)
        return Batch(text, control, codes_at(frame), target, following, spoken_row)


def row_count(pool: Pool) -> np.ndarray:
    """Rows of each entry in its longer layout."""
    return 9 + 2 + pool.token_count + pool.frame_count + LIVE_LEAD


def _padded(values: tuple[int, ...], length: int) -> list[int]:
    return [*values, *[0] * (length - len(values))]
