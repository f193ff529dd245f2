# SPDX-License-Identifier: Apache-2.0
"""The generator: talker and code predictor over slots, from prompt rows to frames of codes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.frame_end import FrameRecord, finish_frame
from polyvox.kernels.next_inputs import NextText, next_inputs
from polyvox.kernels.noise import keyed_noise
from polyvox.kernels.pre_norm import PreNorm
from polyvox.kernels.sampler import (
    DrawInputs,
    FirstCodeRules,
    draw,
    draw_embedded,
    draw_keyed,
    first_code_scores,
    is_greedy,
)
from polyvox.models import slot_values
from polyvox.models.layers.sampling import Noise, predictor_parameters, seed_words, talker_parameters
from polyvox.models.layers.talker import BaseTalker
from polyvox.models.layers.talker_config import CONTROL_IDS, TalkerShape
from polyvox.models.layers.text_table import TextTable
from polyvox.models.paged_kv import KVShape
from polyvox.models.protocol import (
    GIVEN_ROW,
    GeneratorPayload,
    PagedCache,
    PrefillMetadata,
    PreparedRequest,
    PromptRows,
)
from polyvox.models.request import Sampling
from polyvox.models.slot_values import SlotValues
from polyvox.models.talker_prompt import Prompt

# Past the expected length of its text, the logit of end of speech grows by this much with every frame.
END_PRESSURE = 0.05
# Speech takes about 0.9 frames per byte of UTF-8 in English and in Chinese. After the expected number of frames the end
# becomes more likely; at the maximum the stream ends. Numbers and abbreviations, which are short to write, stay below
# both.
EXPECTED_FRAMES, EXPECTED_FRAMES_PER_BYTE = 63, 2
MAX_FRAMES, MAX_FRAMES_PER_BYTE = 125, 4
DEFAULT_CONTEXT = 1024  # positions: more than a minute of speech
NEVER = 2**31  # a frame that no stream reaches
GIVEN_ROWS = 16  # text rows of a caller that a slot stores ahead of its frames: two steps of frames
MAX_OFFSET_ROWS = 4096  # first rows of a prompt whose rotary positions may differ by axis


def frame_limits(num_bytes: int) -> tuple[int, int]:
    """The expected and the maximum number of frames for a text of this length."""
    return EXPECTED_FRAMES + EXPECTED_FRAMES_PER_BYTE * num_bytes, MAX_FRAMES + MAX_FRAMES_PER_BYTE * num_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SamplingPayload(GeneratorPayload):
    """How the codes of a request are sampled."""

    seed: int
    segment: int
    sampling: Sampling
    expected_frames: int  # after which end of speech becomes more likely
    rotary_offsets: Tensor | None = None  # [rows, 3]: added to the rotary positions of the first rows, by axis


class TalkerGenerator:
    """Talker and code predictor of a checkpoint; see protocol.py."""

    def __init__(
        self,
        talker: BaseTalker,
        config: TalkerShape,
        text_pad_id: int,
        default_context: int = DEFAULT_CONTEXT,
    ) -> None:
        self.talker, self.config, self.text_pad_id = talker, config, text_pad_id
        shape = config.transformer
        self.device, self.dtype = talker.device, talker.dtype
        self.kv_dtype = self.weight_dtype = talker.dtype
        self.kv_shape = KVShape(shape.layers, shape.kv_heads, shape.head_dim)
        self.hidden_size, self.max_positions = shape.hidden_size, config.max_positions
        self.default_context, self.num_codebooks = default_context, config.code_groups
        self.nbytes = self._weight_bytes()
        self.text_table = TextTable(talker)
        self.text_table.require(np.array([text_pad_id]))
        self.text_table_nbytes, self.given_rows = self.text_table.nbytes, GIVEN_ROWS

    def parameters(self) -> Iterable[Tensor]:
        return self.talker.parameters()

    def quantize(self, dtype: torch.dtype) -> None:
        self.talker.quantize(dtype)
        self.weight_dtype, self.nbytes = dtype, self._weight_bytes()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the memory plan counts what is free

    def _weight_bytes(self) -> int:
        """The text embeddings may be outside of the talker, and on a GPU they stay on the host."""
        weights = {*self.talker.parameters(), self.talker.text_table}
        return sum(tensor.nbytes for tensor in weights if tensor.device == self.device)

    def new_state(self, num_slots: int, text_ids: int, ring_frames: int) -> "TalkerGeneratorState":
        return TalkerGeneratorState(self, num_slots, text_ids, ring_frames)

    def prompt_rows(self, prompt: Prompt) -> PromptRows:
        """The ids of a prompt. Without calls of torch, which take the GIL from the engine's thread."""
        ids = np.array((prompt.text, prompt.codec), np.int64)
        self.text_table.require(ids[0])
        return PromptRows(ids)

    def text_ids(self, ids: Sequence[int]) -> list[int]:
        """Ids that the talker may read from now on."""
        self.text_table.require(ids)
        return list(ids)

    def embed(self, ids: Tensor, given: Tensor | None = None) -> Tensor:
        """Prompt rows [N, hidden] of text and code ids [2, N], to which given [N, hidden] is added."""
        rows = _look_up(self.text_table.rows, ids[0]) + _look_up(self.talker.model.codec_embedding.weight, ids[1])
        return rows if given is None else rows + given

    def to_device(self, values: NDArray[np.generic]) -> Tensor:
        """Copies values without waiting for the device."""
        tensor = torch.from_numpy(values)
        return (tensor.pin_memory() if self.device.type == "cuda" else tensor).to(self.device, non_blocking=True)


def _look_up(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table; zeros for NO_ID."""
    return torch.where((ids >= 0)[:, None], F.embedding(ids.clamp(min=0), table), 0)


class TalkerGeneratorState:
    """The generator over a fixed number of slots; see protocol.py. Rows of free slots are undefined."""

    def __init__(self, generator: TalkerGenerator, num_slots: int, text_ids: int, ring_frames: int) -> None:
        self.generator = generator
        talker, device, dtype = generator.config, generator.device, generator.dtype
        hidden = generator.hidden_size
        generator.talker.precompute(num_slots)
        # A further state computes these again, and CUDA graphs of this one contain their addresses.
        self._precomputed = generator.talker.rotary, generator.talker.code_predictor.precomputed

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self.input = torch.zeros(num_slots, hidden, dtype=dtype, device=device)  # the talker's next input row
        # [S, ids]: a ring of text ids, one per frame; after text_end the talker reads padding.
        self.text = integers(num_slots, text_ids)
        self.given = torch.zeros(num_slots, GIVEN_ROWS, hidden, dtype=dtype, device=device)  # a ring of text rows
        # expected_frames: after which end of speech becomes more likely
        self._text_integers = integers(2, num_slots)
        self.text_end, self.expected_frames = self._text_integers
        # position: of the next input row in the cache. frame_index: frames generated. repeats: consecutive frames whose
        # first code repeats a recent one. min_frames: before end of speech may be sampled
        self._start_integers = integers(5, num_slots)
        self.position, self.frame_index, self.repeats, self.segment, self.min_frames = self._start_integers
        self.seen = torch.zeros(num_slots, talker.vocab_size, dtype=torch.bool, device=device)  # first codes so far
        self._params = torch.ones(2, num_slots, 4, device=device)
        self.talker_params, self.predictor_params = self._params
        self.key = integers(num_slots, 2)
        self.codes = integers(num_slots, ring_frames, talker.code_groups)
        self._axes: Tensor | None = None
        if talker.rotary_axes is not None:
            self._axes = torch.tensor(talker.rotary_axes, device=device)
            # [S, rows, axes]; rows beyond have the last one, which is always zero.
            wide = torch.promote_types(dtype, torch.float32)
            self.rotary_offsets = torch.zeros(num_slots, MAX_OFFSET_ROWS, 3, dtype=wide, device=device)
        self._values = SlotValues(num_slots, text_ids)
        self._given_inputs: dict[int, Tensor] = {}  # by slot: the given part of the last prompt row

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._tensors())

    def assign(self, slot: int, prepared: PreparedRequest) -> None:
        payload, rows = prepared.generator_payload, prepared.rows
        assert isinstance(payload, SamplingPayload)
        sampling = payload.sampling
        self._values.start(
            slot,
            prepared.text,
            payload.expected_frames,
            (len(rows) - 1, 0, 0, payload.segment, sampling.min_frames),
            seed_words(payload.seed),
            rows.ids[:, -1],
            [*talker_parameters(sampling), *predictor_parameters(sampling)],
        )
        self._given_inputs.pop(slot, None)
        if rows.given is not None and rows.given_at[-1] == len(rows) - 1:
            self._given_inputs[slot] = rows.given[-1]
        if self._axes is not None:
            self.rotary_offsets[slot].zero_()
            if payload.rotary_offsets is not None:
                self.rotary_offsets[slot, : len(payload.rotary_offsets)].copy_(payload.rotary_offsets)

    def write_text(self, slot: int, start: int, ids: Sequence[int], rows: Tensor | None) -> None:
        self._values.write_text(slot, start, ids)
        if rows is not None:
            frames = start + np.flatnonzero(np.array(ids) == GIVEN_ROW)
            self.given[slot, self.generator.to_device(frames % GIVEN_ROWS)] = rows.to(self.given)

    def close_text(self, slot: int, num_bytes: int) -> int:
        expected_frames, max_frames = frame_limits(num_bytes)
        self._values.limit(slot, expected_frames)
        return max_frames

    def upload(self) -> None:
        if not self._values:
            return
        rows, num_new = self._values.changed()
        sent = self.generator.to_device(rows)
        slots = sent[:, slot_values.SLOT]
        self._text_integers.index_copy_(1, slots, sent[:, slot_values.TEXT_INTEGERS].T)
        self.text.index_copy_(0, slots, sent[:, slot_values.TEXT :])
        if num_new:
            self._start(rows[:num_new, slot_values.SLOT], sent[:num_new])
        self._values.clear()

    def _start(self, host_slots: NDArray[np.int64], sent: Tensor) -> None:
        """Writes everything but the text to the slots of new streams."""
        slots = sent[:, slot_values.SLOT]
        self._start_integers.index_copy_(1, slots, sent[:, slot_values.START_INTEGERS].T)
        self.key.index_copy_(0, slots, sent[:, slot_values.KEY])
        params = (
            sent[:, slot_values.PARAMETERS].contiguous().view(torch.float32).view(len(sent), *self._params[:, 0].shape)
        )
        self._params.index_copy_(1, slots, params.transpose(0, 1))
        self.seen.index_fill_(0, slots, False)
        self.input.index_copy_(0, slots, self.generator.embed(sent[:, slot_values.LAST_IDS].T))
        for slot in host_slots.tolist():
            if (given := self._given_inputs.pop(slot, None)) is not None:
                self.input[slot] += given

    def prefill(
        self,
        ids: Tensor,
        given: Tensor | None,
        slots: Tensor,
        positions: Tensor,
        cache: PagedCache,
        max_context: int,
        metadata: PrefillMetadata | None,
    ) -> None:
        view = cache.view(slots, positions, max_context, metadata)
        rows = self.generator.embed(ids, given)
        self.generator.talker.prefill(rows[None], self._rotary_positions(slots, positions)[None], view)

    def _rotary_positions(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Positions [N] of prompt rows as they are, or [N, head_dim / 2] where they may differ by axis."""
        if self._axes is None:
            return positions
        offsets = self.rotary_offsets[slots, positions.clamp(max=MAX_OFFSET_ROWS - 1)]
        return positions[:, None] + offsets[:, self._axes]

    def frame(self, slots: Tensor, cache: PagedCache, max_context: int, noise: Noise = keyed_noise) -> Tensor:
        """A slot whose flag is FRAME_ENDED got no frame; a further frame of it writes nothing that is read."""
        talker, position = self.generator.talker, self.position[slots]
        view = cache.view(slots, position, max_context, decode_only=True)
        hidden = talker.frame(slots, self.input, position, view)
        if noise is keyed_noise and kernels.active(self.input):
            codes = self._draw_by_kernels(hidden, slots)
        else:
            codes = self._draw(hidden, slots, noise)
        first, others = talker.model.codec_embedding.weight, talker.code_predictor.model.codec_embedding.weight
        text = NextText(
            self.generator.text_table.rows, self.generator.text_pad_id, self.text, self.text_end, self.given
        )
        next_inputs(codes, first, others, slots, self.frame_index, text, self.input)
        record = FrameRecord(self.codes, self.seen, self.repeats, self.position, self.frame_index)
        return finish_frame(codes, slots, record, self.generator.config.eos_id)

    def reset_scratch(self, slot: int) -> None:
        self.position[slot].zero_()

    def poison(self, slot: int) -> None:
        self._values.discard(slot)
        for rows in self._tensors():
            rows[slot].fill_(torch.nan if rows.is_floating_point() else 1)

    def _rules(self) -> FirstCodeRules:
        config = self.generator.config
        controls = config.vocab_size - CONTROL_IDS
        return FirstCodeRules(self.seen, self.min_frames, self.expected_frames, END_PRESSURE, config.eos_id, controls)

    def _draw_by_kernels(self, hidden: Tensor | PreNorm, slots: Tensor) -> Tensor:
        """The codes [B, codebooks] of a frame after these hidden states; each launch writes to its column."""
        talker = self.generator.talker
        codes = self.codes.new_empty(len(slots), self.codes.shape[2])
        columns = codes.unbind(1)
        first_draws = DrawInputs(slots, self.talker_params, self.key, self.segment, self.frame_index)
        draws = replace(first_draws, params=self.predictor_params)
        first = draw_keyed(talker.logits(hidden), 0, first_draws, self._rules(), columns[0])
        talker.code_predictor(
            talker.predictor_inputs(hidden, first),
            lambda book, logits: draw_keyed(logits, book + 1, draws, out=columns[book + 1]),
            lambda book, logits, table, norm: draw_embedded(logits, book + 1, draws, table, norm, columns[book + 1]),
        )
        return codes

    def _draw(self, hidden: Tensor | PreNorm, slots: Tensor, noise: Noise) -> Tensor:
        """The same without these kernels, or with other noise."""
        talker, vocab_size = self.generator.talker, self.generator.config.vocab_size
        predictor = talker.code_predictor
        key, segment, frame = self.key[slots], self.segment[slots], self.frame_index[slots]
        first_params, params = self.talker_params[slots], self.predictor_params[slots]
        first_noise = noise(key, segment, frame, 0, 1, vocab_size)[:, 0]
        rest_noise: Tensor | None = None
        if noise is not keyed_noise or not is_greedy(params):
            rest_noise = noise(key, segment, frame, 1, predictor.num_codebooks, predictor.config.vocab_size)
        scores = first_code_scores(talker.logits(hidden), self._rules(), slots, frame, first_params)
        first = draw(scores, first_params, first_noise)
        rest = predictor(
            talker.predictor_inputs(hidden, first),
            lambda book, logits: draw(logits, params, None if rest_noise is None else rest_noise[:, book]),
        )
        return torch.stack([first, *rest], dim=1)

    def _tensors(self) -> list[Tensor]:
        """All state, by slot."""
        return [
            self.input, self.position, self.text, self.text_end, self.given, self.frame_index, self.seen,
            self.min_frames, self.expected_frames, self.repeats, self.talker_params, self.predictor_params, self.key,
            self.segment, self.codes, *([] if self._axes is None else [self.rotary_offsets]),
        ]  # fmt: skip
