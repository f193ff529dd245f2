"""The talker: prompt rows and finished frames in, a hidden state and the logits of code 0 out."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.kernels.paged_kv import PagedKVView
from polyvox.kernels.small_batch_linear import is_small_batch, project
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.predictor import Predictor
from polyvox.models.qwen3_tts.transformer import Rotation, Transformer


class TextProjection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inputs, inputs)
        self.linear_fc2 = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


def look_up(table: Tensor, ids: Tensor, out: Tensor) -> Tensor:
    """Rows [N] of a table, all on the host, by one thread.

    Few rows are copied sooner so than by all of torch's, of which every thread that asks would have its own.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(table):
        raise IndexError(f"ids from {int(ids.min())} to {int(ids.max())} in a table of {len(table)}")
    places, rows = table.view(torch.uint8).numpy(), out.view(torch.uint8).numpy()
    np.take(places, ids.numpy(), axis=0, out=rows, mode="clip")  # other modes would write to a copy first
    return out


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
        self.max_positions = talker.max_positions
        self.rotation: Rotation | None = None

    def settle(self) -> None:
        """Works out once, from the weights that are loaded, what passes by kernels need every time."""
        weight = self.codec_head.weight
        positions = torch.arange(self.max_positions, device=weight.device)[None]
        self.rotation = Rotation(positions, self.config, weight.dtype)
        self.code_predictor.settle()

    def text_rows(self, ids: Tensor) -> Tensor:
        """Text ids as rows of the talker's width."""
        table, device = self.model.text_embedding.weight, self.codec_head.weight.device
        if table.device == device:
            return self.text_projection(F.embedding(ids.to(device), table))
        # On a GPU the table stays with the host; unpinned, the copy to the device would wait for the step.
        rows = torch.empty(len(ids), table.shape[1], dtype=table.dtype, pin_memory=True)
        return self.text_projection(look_up(table, ids, rows).to(device, non_blocking=True))

    def frame_rows(self, codes: Tensor) -> Tensor:
        """Whole frames [..., groups] as rows: the sum of their embeddings, rounded once."""
        first = self.model.codec_embedding(codes[..., :1])
        rest = self.code_predictor.model.codec_embedding.lookup(codes[..., 1:])
        return torch.cat([first, rest], dim=-2).sum(-2)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of code 0, for hidden states after the last norm."""
        return project(hidden, self.codec_head.weight) if is_small_batch(hidden) else self.codec_head(hidden)

    def forward(self, rows: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Rows [B,T,hidden] at positions [B,T] to hidden states after the last norm."""
        if isinstance(attend, PagedKVView):
            assert self.rotation is not None, "settle() comes before passes over pages"
            return self.model.run(rows, self.rotation, attend)
        return self.model.run(rows, Rotation(positions, self.config, rows.dtype), attend)
