"""The talker: prompt rows and finished frames in, a hidden state and the logits of code 0 out."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.qwen3_tts.config import ModelConfig, TransformerConfig
from polyvox.models.qwen3_tts.predictor import Predictor
from polyvox.models.qwen3_tts.transformer import Attend, Rotation, Transformer


class KVCache:
    """Keys and values of a batch, one row a stream: [layers, batch, kv_heads, capacity, head_dim].

    It grows as needed. A row may be written ahead of its true length: a query sees the keys up to its own
    position only, and whatever lies beyond is overwritten before any query reaches it.
    """

    def __init__(self, config: TransformerConfig, batch: int, capacity: int, like: Tensor) -> None:
        self.keys = like.new_zeros(config.layers, batch, config.kv_heads, capacity, config.head_dim)
        self.values = torch.zeros_like(self.keys)
        self.row = torch.arange(batch, device=like.device)[:, None]

    def at(self, positions: Tensor, span: int) -> Attend:
        """Attention for rows at these positions [B,T]; span is the host's bound on the last of them, plus one."""
        capacity = self.keys.shape[3]
        if span > capacity:
            room = (0, 0, 0, max(span, 2 * capacity) - capacity)
            self.keys, self.values = F.pad(self.keys, room), F.pad(self.values, room)
        seen = torch.arange(span, device=positions.device) <= positions[:, None, :, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[self.row, :, positions] = k
            values[self.row, :, positions] = v
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), keys[:, :, :span], values[:, :, :span], attn_mask=seen, enable_gqa=True
            ).transpose(1, 2)

        return attend


class TextProjection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inputs, inputs)
        self.linear_fc2 = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class TalkerTransformer(Transformer):
    """The layers and the two embedding tables, which a checkpoint keeps beside them."""

    def __init__(self, config: ModelConfig) -> None:
        talker = config.talker
        super().__init__(talker.transformer)
        self.text_embedding = nn.Embedding(talker.text_vocab_size, talker.text_hidden_size)
        self.codec_embedding = nn.Embedding(talker.vocab_size, talker.transformer.hidden_size)


class Talker(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        talker = config.talker
        self.config = talker.transformer
        self.model = TalkerTransformer(config)
        self.text_projection = TextProjection(talker.text_hidden_size, talker.transformer.hidden_size)
        self.codec_head = nn.Linear(talker.transformer.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = Predictor(config)

    def text_rows(self, ids: Tensor) -> Tensor:
        """Text ids as rows of the talker's width."""
        return self.text_projection(self.model.text_embedding(ids))

    def frame_rows(self, codes: Tensor) -> Tensor:
        """Whole frames [..., groups] as rows: the sum of their embeddings, rounded once."""
        first = self.model.codec_embedding(codes[..., :1])
        rest = self.code_predictor.model.codec_embedding.lookup(codes[..., 1:])
        return torch.cat([first, rest], dim=-2).sum(-2)

    def forward(self, rows: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Rows [B,T,hidden] at positions [B,T] to hidden states after the last norm."""
        return self.model.run(rows, Rotation(positions, self.config, rows.dtype), attend)
