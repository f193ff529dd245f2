"""The code predictor: given the talker's hidden state and code 0, the other codes of the frame in order."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.paged_kv import PagedKVView
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.config import ModelConfig, PredictorConfig
from polyvox.models.qwen3_tts.transformer import Rotation, Stacked, Transformer

# draw(codebook from 0, here the first of the residual ones, logits [B, vocab]) -> codes [B]
Draw = Callable[[int, Tensor], Tensor]


class FrameCache:
    """Keys and values of one frame's few rows; it lives no longer than the frame."""

    def __init__(self, config: PredictorConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = config.transformer
        self.keys = like.new_empty(shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        self.values = torch.empty_like(self.keys)

    def at(self, start: int, stop: int) -> Attend:
        """Attention for the rows from start to stop: each sees the rows before it and itself."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]
            keys[:, :, start:] = k.transpose(1, 2)
            values[:, :, start:] = v.transpose(1, 2)
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, is_causal=start == 0, enable_gqa=True
            ).transpose(1, 2)

        return attend


class FramePages:
    """The same for kernels: one page a stream holds all of its frame."""

    def __init__(self, config: PredictorConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = config.transformer
        self.keys = like.new_empty(shape.layers, batch, capacity, shape.kv_heads, shape.head_dim)
        self.values = torch.empty_like(self.keys)
        self.streams = torch.arange(batch, device=like.device)
        # [capacity, batch]: a row of it is the position of every stream's row of one pass.
        self.positions = torch.arange(capacity, device=like.device)[:, None].expand(-1, batch).contiguous()

    def at(self, start: int, stop: int) -> Attend:
        """PagedKVView for the rows from start to stop of each stream, the rows of a stream behind one another."""
        slots, positions = self.streams, self.positions[start]
        if stop - start > 1:
            slots = slots[:, None].expand(-1, stop - start).flatten().contiguous()  # one stream: else a view
            positions = self.positions[start:stop].T.flatten()
        return PagedKVView(
            self.keys, self.values, self.streams[:, None], slots, positions, decode_only=stop - start == 1
        )


@dataclass(frozen=True, slots=True, eq=False)
class PrecomputedWeights:
    """What is the same for every frame."""

    rotation: Rotation
    rows: Tensor  # [groups - 1, vocab, hidden]: each code as the row that the predictor reads, projected


class PredictorTransformer(Transformer):
    """The layers and the embeddings of codes 1 and up, which have the talker's width."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.predictor.transformer)
        self.codec_embedding = Stacked(
            config.talker.code_groups - 1, config.predictor.vocab_size, config.talker.transformer.hidden_size
        )


class Predictor(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        talker_size, size = config.talker.transformer.hidden_size, config.predictor.transformer.hidden_size
        self.config = config.predictor
        self.residuals = config.talker.code_groups - 1
        self.model = PredictorTransformer(config)
        self.lm_head = Stacked(self.residuals, config.predictor.vocab_size, size)
        # Where both widths are equal (0.6B) the checkpoint has no projection.
        self.small_to_mtp_projection = nn.Linear(talker_size, size) if talker_size != size else nn.Identity()
        self.settled: PrecomputedWeights | None = None

    @torch.no_grad()
    def settle(self) -> None:
        """Works out once what is the same for every frame; frames by kernels need it."""
        tables: Tensor = self.model.codec_embedding.weight
        rotation = self._rotation(tables)
        if isinstance(self.small_to_mtp_projection, nn.Linear):
            tables = torch.stack([self.small_to_mtp_projection(table) for table in tables])
        self.settled = PrecomputedWeights(rotation, tables)

    def forward(self, hidden: Tensor, first: Tensor, draw: Draw) -> Tensor:
        """Hidden state and embedding of code 0, each [B, talker width], to codes 1 and up, [B, groups - 1].

        One pass a code: the first over two rows, the others over one, with the frame's own cache.
        """
        settled = self.settled if kernels.active(hidden) else None
        kind = FrameCache if settled is None else FramePages
        cache = kind(self.config, len(hidden), self.residuals + 1, like=hidden)
        rotation = self._rotation(hidden) if settled is None else settled.rotation
        x = self.small_to_mtp_projection(torch.stack([hidden, first], dim=1))
        codes: list[Tensor] = []
        for book in range(self.residuals):
            start, stop = (book + 1, book + 2) if book else (0, 2)
            logits = self.model.read(x, rotation.rows(start, stop), cache.at(start, stop), self.lm_head.weight[book])
            code = draw(book, logits)
            codes.append(code)
            if settled is None:
                x = self.small_to_mtp_projection(F.embedding(code[:, None], self.model.codec_embedding.weight[book]))
            else:
                x = F.embedding(code[:, None], settled.rows[book])
        return torch.stack(codes, dim=1)

    def _rotation(self, like: Tensor) -> Rotation:
        positions = torch.arange(self.residuals + 1, device=like.device)[None]
        return Rotation(positions, self.config.transformer, like.dtype)
