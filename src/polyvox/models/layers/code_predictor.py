# SPDX-License-Identifier: Apache-2.0
"""The code predictor: the codes of a frame after the first, from the talker's hidden state and the first code."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.fused_linear import is_faster_for_few_outputs
from polyvox.kernels.pre_norm import Norm, PreNorm
from polyvox.models.layers.linear import Linear, StackedEmbedding, StackedLinear
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.layers.transformer import Transformer
from polyvox.models.layers.transformer_config import CodePredictorConfig, TransformerConfig
from polyvox.models.paged_kv import PagedKVView
from polyvox.models.protocol import Attend

# draw(index of a codebook after the first, from 0; logits [B, vocab]) -> codes [B]
Draw = Callable[[int, Tensor], Tensor]
# The same with a table of embeddings and a norm -> codes [B], and table[codes] before the norm
DrawEmbedded = Callable[[int, Tensor, Tensor, Norm], tuple[Tensor, PreNorm]]


class FrameKVCache:
    """Keys and values of the rows of one frame; allocated for each frame."""

    def __init__(self, shape: TransformerConfig, batch: int, capacity: int, like: Tensor) -> None:
        self.keys = like.new_empty(shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        self.values = torch.empty_like(self.keys)

    def view(self, start: int, stop: int) -> Attend:
        """Attention for the rows from start to stop: each sees the rows before it and itself."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]
            keys[:, :, start:] = k.transpose(1, 2)
            values[:, :, start:] = v.transpose(1, 2)
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, is_causal=start == 0, enable_gqa=True
            ).transpose(1, 2)

        return attend


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndices:
    """The slots and positions of the rows of a frame; a batch of fewer streams has the first ones.

    They are the same in every frame: kernels read them before they wait for the launch before (launch_overlap.py).
    """

    streams: Tensor  # [streams]: stream i is slot i
    positions: Tensor  # [capacity, streams]: row p is position p of every stream
    pair_streams: Tensor  # [2 · streams]: those of the first pass, which has positions 0 and 1 of each stream
    pair_positions: Tensor  # the same

    @classmethod
    def of(cls, streams: int, capacity: int, device: torch.device) -> "FrameIndices":
        streams += streams % 2  # rows of 16 bytes: Triton compiles kernels for addresses of other alignment again
        indices, pair = torch.arange(streams, device=device), torch.arange(2, device=device)
        positions = torch.arange(capacity, device=device)[:, None].expand(-1, streams).contiguous()
        return cls(indices, positions, indices.repeat_interleave(2), pair.repeat(streams))


class PagedFrameKVCache:
    """The same for kernels: one page per stream stores all rows of its frame."""

    def __init__(
        self, shape: TransformerConfig, batch: int, capacity: int, like: Tensor, indices: FrameIndices
    ) -> None:
        assert batch <= len(indices.streams), (batch, len(indices.streams))
        # By head, as in the KV cache of a GPU.
        pools = like.new_empty(2, shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        self.keys, self.values = pools.transpose(3, 4)
        self._batch, self._indices = batch, indices

    def view(self, start: int, stop: int) -> Attend:
        """The rows from start to stop of each stream, those of one stream next to each other."""
        batch, indices = self._batch, self._indices
        streams = indices.streams[:batch]
        if stop - start == 1:
            slots, positions = streams, indices.positions[start, :batch]
        else:
            assert (start, stop) == (0, 2), (start, stop)
            slots, positions = indices.pair_streams[: 2 * batch], indices.pair_positions[: 2 * batch]
        return PagedKVView(
            self.keys, self.values, streams[:, None], slots, positions, decode_only=stop - start == 1,
            is_first_pair=start == 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PrecomputedRows:
    """What is the same in every frame."""

    rotary: RotaryEmbedding
    rows: Tensor  # [codebooks - 1, vocab, hidden]: each code but the first as the projected input row of the predictor
    first_rows: Tensor  # [vocab, hidden]: the same of the first code
    indices: FrameIndices


class PredictorTransformer(Transformer):
    """The layers, and the embeddings of all codes but the first, which have the talker's width."""

    def __init__(self, config: CodePredictorConfig, input_size: int, num_codebooks: int) -> None:
        super().__init__(config.transformer)
        self.codec_embedding = StackedEmbedding(num_codebooks, config.vocab_size, input_size)


class CodePredictor(nn.Module):
    """input_size: the talker's width. num_codebooks: codes that it predicts, one per frame less than the frame has."""

    def __init__(self, config: CodePredictorConfig, input_size: int, num_codebooks: int) -> None:
        super().__init__()
        size = config.transformer.hidden_size
        self.config, self.num_codebooks = config, num_codebooks
        self.model = PredictorTransformer(config, input_size, num_codebooks)
        self.lm_head = StackedLinear(num_codebooks, config.vocab_size, size)
        # Checkpoints with equal widths (0.6B) have no projection.
        self.small_to_mtp_projection = Linear(input_size, size, bias=True) if input_size != size else nn.Identity()
        self.precomputed: PrecomputedRows | None = None

    def quantize(self, dtype: torch.dtype) -> None:
        """Stores the matrices of layers and heads in this type; the projection of the inputs keeps its own."""
        self.model.quantize(dtype)
        self.lm_head.quantize(dtype)

    @torch.no_grad()
    def precompute(self, first_embedding: Tensor, max_batch: int) -> None:
        """Computes what is the same in every frame, once the weights are loaded; required for frames with kernels.

        first_embedding: [vocab, input_size], of the first code. max_batch: streams of a frame.
        """
        tables: Tensor = self.model.codec_embedding.weight
        rotary = self._rotary(tables)
        if isinstance(self.small_to_mtp_projection, Linear):
            tables = torch.stack([self.small_to_mtp_projection(table) for table in tables])
        first_rows = self.small_to_mtp_projection(first_embedding)
        indices = FrameIndices.of(max_batch, self.num_codebooks + 1, tables.device)
        self.precomputed = PrecomputedRows(rotary, tables, first_rows, indices)

    def inputs(self, hidden: Tensor, first: Tensor) -> Tensor:
        """Rows [B, 2, size] of the first pass: hidden state and embedding of the first code, each [B, input_size]."""
        return self.small_to_mtp_projection(torch.stack([hidden, first], dim=1))

    def fuses_final_norm(self, hidden: Tensor) -> bool:
        """Whether `first_pass_inputs` is faster from hidden states before the talker's final norm."""
        projection = self.small_to_mtp_projection
        return isinstance(projection, Linear) and is_faster_for_few_outputs(hidden, projection.matrix)

    def first_pass_inputs(self, hidden: Tensor | PreNorm, first: Tensor) -> Tensor | PreNorm:
        """The same rows by kernels, from first codes [B] and hidden states after or before the talker's final norm."""
        assert self.precomputed is not None, "call precompute() before frames with kernels"
        projection, bias = self.small_to_mtp_projection, None
        if isinstance(hidden, PreNorm):
            assert isinstance(projection, Linear)
            rows, bias = projection.fused(hidden), projection.bias
        else:
            rows = projection(hidden)
        return self.model.embed_pairs(rows, bias, self.precomputed.first_rows, first)

    def forward(self, x: Tensor | PreNorm, draw: Draw, draw_embedded: DrawEmbedded | None = None) -> list[Tensor]:
        """Rows [B, 2, size] of the first pass to the codes [B] after the first one.

        One pass per code: the first over two rows, the others over one, with a KV cache for this frame.
        draw_embedded: with kernels, in place of draw where the next pass reads what it returns.
        """
        precomputed, like = self.precomputed, x.rows if isinstance(x, PreNorm) else x
        size = self.config.transformer, len(like), self.num_codebooks + 1, like
        cache: FrameKVCache | PagedFrameKVCache
        if precomputed is not None and kernels.active(like):
            cache = PagedFrameKVCache(*size, precomputed.indices)
        else:
            cache = FrameKVCache(*size)
        rotary = self._rotary(like) if precomputed is None else precomputed.rotary
        codes: list[Tensor] = []
        for book in range(self.num_codebooks):
            start, stop = (book + 1, book + 2) if book else (0, 2)
            logits = self.model.logits(x, rotary.rows(start, stop), cache.view(start, stop), self.lm_head[book])
            if book == self.num_codebooks - 1:
                codes.append(draw(book, logits))
            else:
                code, x = self._draw_and_embed(book, logits, draw, draw_embedded)
                codes.append(code)
        return codes

    def _draw_and_embed(
        self, book: int, logits: Tensor, draw: Draw, draw_embedded: DrawEmbedded | None
    ) -> tuple[Tensor, Tensor | PreNorm]:
        """Codes [B] and the rows [B, 1, size] of the next pass."""
        if self.precomputed is None:
            code = draw(book, logits)
            return code, self.small_to_mtp_projection(
                F.embedding(code[:, None], self.model.codec_embedding.weight[book])
            )
        table = self.precomputed.rows[book]
        if draw_embedded is not None and self.model.reads_pre_norm(table[0].expand(len(logits), 1, -1)):
            return draw_embedded(book, logits, table, self.model.first_norm)
        code = draw(book, logits)
        return code, F.embedding(code[:, None], table)

    def _rotary(self, like: Tensor) -> RotaryEmbedding:
        positions = torch.arange(self.num_codebooks + 1, device=like.device)[None]
        return RotaryEmbedding(positions, self.config.transformer, like.dtype)
