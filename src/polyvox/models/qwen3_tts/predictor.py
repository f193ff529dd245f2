"""The code predictor: given the talker's hidden state and code 0, the other codes of the frame in order."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.config import ModelConfig, PredictorConfig
from polyvox.models.qwen3_tts.transformer import Rotation, Stacked, Transformer

# draw(residual codebook from 0, logits [B, vocab]) -> codes [B]
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

    def forward(self, hidden: Tensor, first: Tensor, draw: Draw) -> Tensor:
        """Hidden state and embedding of code 0, each [B, talker width], to codes 1 and up, [B, groups - 1].

        One pass a code: the first over two rows, the others over one, with the frame's own cache.
        """
        rows = torch.stack([hidden, first], dim=1)
        cache = FrameCache(self.config, len(rows), self.residuals + 1, like=rows)
        positions = torch.arange(self.residuals + 1, device=rows.device)[None]
        rotation = Rotation(positions, self.config.transformer, rows.dtype)
        codes: list[Tensor] = []
        start = 0
        for book in range(self.residuals):
            stop = start + rows.shape[1]
            x = self.small_to_mtp_projection(rows)
            x = self.model.run(x, rotation.rows(start, stop), cache.at(start, stop))
            codes.append(draw(book, F.linear(x[:, -1], self.lm_head.weight[book])))
            rows = F.embedding(codes[-1], self.model.codec_embedding.weight[book])[:, None]
            start = stop
        return torch.stack(codes, dim=1)
