# SPDX-License-Identifier: Apache-2.0
"""The generator: talker and code predictor over slots, from prompt rows to frames of codes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.frame_end import FrameRecord, finish_frame
from polyvox.kernels.next_inputs import next_inputs
from polyvox.kernels.noise import keyed_noise
from polyvox.kernels.sampler import DrawInputs, FirstCodeRules, draw, draw_keyed, first_code_scores, is_greedy
from polyvox.models.layers.code_predictor import Draw
from polyvox.models.layers.sampling import Noise, predictor_parameters, seed_words, talker_parameters
from polyvox.models.layers.talker import BaseTalker
from polyvox.models.layers.talker_config import CONTROL_IDS, TalkerShape
from polyvox.models.paged_kv import KVShape
from polyvox.models.protocol import GeneratorPayload, PagedCache, PrefillMetadata, PreparedRequest
from polyvox.models.request import Sampling
from polyvox.models.talker_prompt import NO_CODE, Prompt

# Past the expected length of its text, the logit of end of speech grows by this much with every frame.
END_PRESSURE = 0.05
# Speech takes about 0.9 frames per byte of UTF-8 in English and in Chinese. After the expected number of frames the end
# becomes more likely; at the maximum the stream ends. Numbers and abbreviations, which are short to write, stay below
# both.
EXPECTED_FRAMES, EXPECTED_FRAMES_PER_BYTE = 63, 2
MAX_FRAMES, MAX_FRAMES_PER_BYTE = 125, 4
DEFAULT_CONTEXT = 1024  # positions: more than a minute of speech
NEVER = 2**31  # a frame that no stream reaches
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
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.talker, self.config, self.text_pad_id = talker, config, text_pad_id
        weight, shape = talker.codec_head.weight, config.transformer
        self.device, self.dtype = weight.device, weight.dtype
        self.kv_dtype = kv_dtype or weight.dtype
        self.kv_shape = KVShape(shape.layers, shape.kv_heads, shape.head_dim)
        self.hidden_size, self.max_positions = shape.hidden_size, config.max_positions
        self.default_context, self.num_codebooks = default_context, config.code_groups
        # The text table may be outside of the talker, and on a GPU it stays on the host.
        weights = {*talker.parameters(), talker.text_table}
        self.nbytes = sum(tensor.nbytes for tensor in weights if tensor.device == self.device)

    def parameters(self) -> Iterable[Tensor]:
        return self.talker.parameters()

    def new_state(self, num_slots: int, text_rows: int, ring_frames: int) -> "TalkerGeneratorState":
        return TalkerGeneratorState(self, num_slots, text_rows, ring_frames)

    def embed(
        self, prompt: Prompt, text: Sequence[int] = (), vector: Tensor | None = None, frames: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A prompt as prefill rows [T, hidden], and the rows of the text after it.

        vector and frames are the parts of a cloned voice. Uses few torch calls, because each takes the GIL from the
        engine's thread and hundreds of requests may arrive at once.
        """
        begin = next((row for row, id in enumerate(prompt.codec) if id != NO_CODE), len(prompt))
        ids = prompt.codec[begin:]
        both = self.text_rows([*prompt.text, *text])
        rows, after = both[: len(prompt)], both[len(prompt) :]
        codes = self.talker.model.codec_embedding(self.to_device([max(id, 0) for id in ids], torch.int64))
        if NO_CODE in ids:
            codes = torch.where(self.to_device([id != NO_CODE for id in ids], torch.bool)[:, None], codes, 0)
        rows[begin:] += codes
        if prompt.vector_row is not None:
            assert vector is not None
            rows[prompt.vector_row] += vector.to(rows)
        if prompt.frames_row is not None:
            assert frames is not None
            reference = self.talker.frame_rows(frames.to(self.device))
            rows[prompt.frames_row : prompt.frames_row + len(frames)] += reference
        return rows, after

    def text_rows(self, ids: Sequence[int]) -> Tensor:
        """Text ids as rows of the talker's width."""
        return self.talker.text_rows(torch.tensor(ids, dtype=torch.int64))

    def to_device(self, values: list[int] | list[float] | list[bool], dtype: torch.dtype) -> Tensor:
        """Copies values without waiting for the device."""
        return torch.tensor(values, dtype=dtype, pin_memory=self.device.type == "cuda").to(
            self.device, non_blocking=True
        )


# The integers of a slot, each a tensor of its own.
INTEGERS = ("position", "text_end", "frame_index", "repeats", "segment", "expected_frames", "min_frames")


@dataclass(frozen=True, slots=True, eq=False)
class _SlotViews:
    """Everything of a slot that is written when a stream starts, as views that are created once."""

    integers: list[Tensor]
    params: list[Tensor]
    input: Tensor
    text: Tensor
    seen: Tensor


class TalkerGeneratorState:
    """The generator over a fixed number of slots; see protocol.py. Rows of free slots are undefined."""

    def __init__(self, generator: TalkerGenerator, num_slots: int, text_rows: int, ring_frames: int) -> None:
        self.generator = generator
        talker, device, dtype = generator.config, generator.device, generator.dtype
        hidden = generator.hidden_size
        if device.type != "cpu":
            generator.talker.precompute()

        def integers(*shape: int) -> Tensor:
            return torch.zeros(num_slots, *shape, dtype=torch.int64, device=device)

        self.input = torch.zeros(num_slots, hidden, dtype=dtype, device=device)  # the talker's next input row
        self.position = integers()  # of that row in the cache
        # [S, rows, hidden]: a ring of text rows, one per frame; after text_end the talker reads padding.
        self.text = torch.zeros(num_slots, text_rows, hidden, dtype=dtype, device=device)
        self.text_end = integers()
        self.frame_index = integers()  # frames generated
        self.seen = torch.zeros(num_slots, talker.vocab_size, dtype=torch.bool, device=device)  # first codes so far
        self.min_frames = integers()  # before end of speech may be sampled
        self.expected_frames = integers()  # after which end of speech becomes more likely
        self.repeats = integers()  # consecutive frames whose first code repeats a recent one
        self.talker_params = torch.ones(num_slots, 4, device=device)
        self.predictor_params = torch.ones(num_slots, 4, device=device)
        self.key = integers(2)
        self.segment = integers()
        self.codes = integers(ring_frames, talker.code_groups)
        self._pad = generator.text_rows([generator.text_pad_id])[0]
        self._axes: Tensor | None = None
        if talker.rotary_axes is not None:
            self._axes = torch.tensor(talker.rotary_axes, device=device)
            # [S, rows, axes]; rows beyond have the last one, which is always zero.
            wide = torch.promote_types(dtype, torch.float32)
            self.rotary_offsets = torch.zeros(num_slots, MAX_OFFSET_ROWS, 3, dtype=wide, device=device)
        self._views: list[_SlotViews | None] = [None] * num_slots

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._tensors())

    def assign(self, slot: int, prepared: PreparedRequest) -> None:
        """Uses few torch calls: each costs tens of microseconds of host time on a GPU."""
        views, payload = self._views[slot] or self._new_views(slot), prepared.generator_payload
        assert isinstance(payload, SamplingPayload)
        text = prepared.text[: len(views.text)]
        integers = {
            "position": len(prepared.rows) - 1,
            "text_end": len(text),
            "frame_index": 0,
            "repeats": 0,
            "segment": payload.segment,
            "expected_frames": payload.expected_frames,
            "min_frames": payload.sampling.min_frames,
        }
        self._write(views.integers, [*(integers[name] for name in INTEGERS), *seed_words(payload.seed)], torch.int64)
        params = [*talker_parameters(payload.sampling), *predictor_parameters(payload.sampling)]
        self._write(views.params, params, self.talker_params.dtype)
        views.input.copy_(prepared.rows[-1])
        views.seen.zero_()
        views.text[: len(text)].copy_(text)
        if self._axes is not None:
            self.rotary_offsets[slot].zero_()
            if payload.rotary_offsets is not None:
                self.rotary_offsets[slot, : len(payload.rotary_offsets)].copy_(payload.rotary_offsets)

    def write_text(self, slot: int, start: int, rows: Tensor) -> None:
        ring = self.text.shape[1]
        first = start % ring
        count = min(len(rows), ring - first)
        self.text[slot, first : first + count].copy_(rows[:count])
        if count < len(rows):
            self.text[slot, : len(rows) - count].copy_(rows[count:])
        self.text_end[slot] = start + len(rows)

    def close_text(self, slot: int, num_bytes: int) -> int:
        self.expected_frames[slot], max_frames = frame_limits(num_bytes)
        return max_frames

    def prefill(
        self,
        rows: Tensor,
        slots: Tensor,
        positions: Tensor,
        cache: PagedCache,
        max_context: int,
        metadata: PrefillMetadata | None,
    ) -> None:
        view = cache.view(slots, positions, max_context, metadata)
        self.generator.talker(rows[None], self._rotary_positions(slots, positions)[None], view)

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
        hidden = talker(self.input[slots][:, None], position[:, None], view)[:, 0]
        draw_code = self._draws(slots, noise)
        code = draw_code(0, talker.logits(hidden))
        rest = talker.code_predictor(
            hidden, talker.model.codec_embedding(code), lambda book, logits: draw_code(book + 1, logits)
        )
        codes = torch.cat([code[:, None], rest], dim=1)
        first, others = talker.model.codec_embedding.weight, talker.code_predictor.model.codec_embedding.weight
        next_inputs(codes, first, others, slots, self.text, self.text_end, self.frame_index, self._pad, self.input)
        record = FrameRecord(self.codes, self.seen, self.repeats, self.position, self.frame_index)
        return finish_frame(codes, slots, record, self.generator.config.eos_id)

    def reset_scratch(self, slot: int) -> None:
        self.position[slot].zero_()

    def poison(self, slot: int) -> None:
        for rows in self._tensors():
            rows[slot].fill_(torch.nan if rows.is_floating_point() else 1)

    def _draws(self, slots: Tensor, noise: Noise) -> Draw:
        """How the codes of one frame are sampled: draw(codebook from 0, logits)."""
        talker, predictor = self.generator.config, self.generator.talker.code_predictor
        controls = talker.vocab_size - CONTROL_IDS
        rules = FirstCodeRules(self.seen, self.min_frames, self.expected_frames, END_PRESSURE, talker.eos_id, controls)
        if noise is keyed_noise and kernels.active(self.input):
            first_draws = DrawInputs(slots, self.talker_params, self.key, self.segment, self.frame_index)
            rest_draws = replace(first_draws, params=self.predictor_params)
            return lambda book, logits: (
                draw_keyed(logits, book, rest_draws) if book else draw_keyed(logits, 0, first_draws, rules)
            )
        key, segment, frame = self.key[slots], self.segment[slots], self.frame_index[slots]
        first_params, params = self.talker_params[slots], self.predictor_params[slots]
        first_noise = noise(key, segment, frame, 0, 1, talker.vocab_size)[:, 0]
        rest_noise = None
        if noise is not keyed_noise or not is_greedy(params):
            rest_noise = noise(key, segment, frame, 1, predictor.num_codebooks, predictor.config.vocab_size)

        def draw_code(book: int, logits: Tensor) -> Tensor:
            if book:
                return draw(logits, params, None if rest_noise is None else rest_noise[:, book - 1])
            return draw(first_code_scores(logits, rules, slots, frame, first_params), first_params, first_noise)

        return draw_code

    def _write(self, targets: list[Tensor], values: list[int] | list[float], dtype: torch.dtype) -> None:
        """Writes all values with one copy to the device, without waiting for it."""
        sent = self.generator.to_device(values, dtype)
        torch._foreach_copy_(targets, [*sent.split([len(target) for target in targets])])

    def _new_views(self, slot: int) -> _SlotViews:
        integers = [getattr(self, name)[slot : slot + 1] for name in INTEGERS]
        views = self._views[slot] = _SlotViews(
            [*integers, self.key[slot]],
            [self.talker_params[slot], self.predictor_params[slot]],
            self.input[slot],
            self.text[slot],
            self.seen[slot],
        )
        return views

    def _tensors(self) -> list[Tensor]:
        return [
            self.input, self.position, self.text, self.text_end, self.frame_index, self.seen, self.min_frames,
            self.expected_frames, self.repeats, self.talker_params, self.predictor_params, self.key, self.segment,
            self.codes, *([] if self._axes is None else [self.rotary_offsets]),
        ]  # fmt: skip
