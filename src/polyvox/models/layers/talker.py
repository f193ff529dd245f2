# SPDX-License-Identifier: Apache-2.0
"""The talker: prompt rows and generated frames to a hidden state and the logits of the first code."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels import small_batch_linear
from polyvox.kernels.pre_norm import PreNorm
from polyvox.models.layers.code_predictor import CodePredictor
from polyvox.models.layers.linear import Linear, arrange_matrices
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.layers.talker_config import TalkerShape
from polyvox.models.layers.transformer import Transformer
from polyvox.models.layers.transformer_config import CodePredictorConfig
from polyvox.models.paged_kv import PagedKVView
from polyvox.models.protocol import Attend


class TextProjection(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1 = Linear(inputs, inner, bias=True)
        self.linear_fc2 = Linear(inner, outputs, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class TalkerTransformer(Transformer):
    """The layers and the embeddings of the first code, which are next to them in a checkpoint."""

    def __init__(self, shape: TalkerShape) -> None:
        super().__init__(shape.transformer)
        self.codec_embedding = nn.Embedding(shape.vocab_size, shape.transformer.hidden_size)


class BaseTalker(nn.Module, ABC):
    """A model family adds its table of text embeddings."""

    def __init__(self, shape: TalkerShape, predictor: CodePredictorConfig) -> None:
        super().__init__()
        hidden_size = shape.transformer.hidden_size
        self.config = shape.transformer
        self.model = TalkerTransformer(shape)
        self.text_projection = TextProjection(shape.text_hidden_size, shape.projection_size, hidden_size)
        self.codec_head = Linear(hidden_size, shape.vocab_size)
        self.code_predictor = CodePredictor(predictor, hidden_size, shape.code_groups - 1)
        self.max_positions = shape.max_positions
        self.rotary: RotaryEmbedding | None = None

    @property
    @abstractmethod
    def text_table(self) -> Tensor:
        """Text embeddings [text_vocab_size, text_hidden_size]; on a GPU model they may be on the host."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows; that of the weights unless they are quantised."""
        return self.model.codec_embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.codec_head.weight.device

    def quantize(self, dtype: torch.dtype) -> None:
        """Stores the matrices of layers and heads in this type; embeddings and projections of inputs keep theirs."""
        self.model.quantize(dtype)
        self.codec_head.quantize(dtype)
        self.code_predictor.quantize(dtype)

    def precompute(self, max_batch: int) -> None:
        """Computes from the loaded weights what every pass needs; max_batch: streams of a frame."""
        has_kernels = self.device.type != "cpu" or kernels.active(self.codec_head.weight)
        arrange_matrices(self, by_column=not has_kernels)
        if has_kernels:
            positions = torch.arange(self.max_positions, device=self.device)[None]
            self.rotary = RotaryEmbedding(positions, self.config, self.dtype)
        self.code_predictor.precompute(self.model.codec_embedding.weight, max_batch)

    def text_rows(self, ids: Tensor) -> Tensor:
        """Text ids as rows of the talker's width; the table must be on its device."""
        return self.text_projection(F.embedding(ids, self.text_table))

    def frame_rows(self, codes: Tensor) -> Tensor:
        """Frames [..., codebooks] as rows: the sum of their embeddings, rounded once."""
        first = self.model.codec_embedding(codes[..., :1])
        rest = self.code_predictor.model.codec_embedding.lookup(codes[..., 1:])
        return torch.cat([first, rest], dim=-2).sum(-2)

    def frame(self, ids: Tensor, table: Tensor, positions: Tensor, attend: Attend) -> Tensor | PreNorm:
        """Rows table[ids] of ids [B] at positions [B] to hidden states [B,hidden].

        They are before the final norm (PreNorm) if the head and the predictor's projection apply it themselves.
        """
        x = self.model.embed(ids[:, None], table)
        last = self.model.run_last(x, self._rotary(table, positions[:, None], attend), attend)
        if not isinstance(last, PreNorm):
            return last
        hidden = last.gained
        fused = small_batch_linear.supports(hidden, self.codec_head.matrix) and self.code_predictor.fuses_final_norm(
            hidden
        )
        return last if fused else self.model.norm(last.rows)

    def logits(self, hidden: Tensor | PreNorm) -> Tensor:
        """Logits of the first code for hidden states of `frame`."""
        # Without a norm, gate or residual only small batches gain from a fused projection.
        if isinstance(hidden, PreNorm) or small_batch_linear.supports(hidden, self.codec_head.matrix):
            return self.codec_head.fused(hidden)
        return self.codec_head(hidden)

    def predictor_inputs(self, hidden: Tensor | PreNorm, first: Tensor) -> Tensor | PreNorm:
        """What the code predictor reads: hidden states of `frame` and first codes [B]."""
        if isinstance(hidden, PreNorm) or kernels.active(hidden):
            return self.code_predictor.first_pass_inputs(hidden, first)
        return self.code_predictor.inputs(hidden, self.model.codec_embedding(first))

    def forward(self, rows: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Rows [B,T,hidden] at positions [B,T], or [B,T,head_dim / 2], to hidden states after the final norm."""
        return self.model.run(rows, self._rotary(rows, positions, attend), attend)

    def prefill(self, rows: Tensor, positions: Tensor, attend: Attend) -> None:
        """Stores the keys and values of the same rows, and computes no hidden states."""
        self.model.store(rows, self._rotary(rows, positions, attend), attend)

    def _rotary(self, rows: Tensor, positions: Tensor, attend: Attend) -> RotaryEmbedding:
        by_row = positions.dim() == 3
        if isinstance(attend, PagedKVView) and not by_row:
            assert self.rotary is not None, "call precompute() before passes over a PagedKVView"
            return self.rotary
        return RotaryEmbedding(positions, self.config, rows.dtype, by_row)
