# SPDX-License-Identifier: Apache-2.0
"""The weights of a checkpoint's speech side, and their names in its files."""

from torch import Tensor, nn

from polyvox.models.layers.linear import checkpoint_tensors
from polyvox.models.layers.talker import BaseTalker, TextProjection
from polyvox.models.qwen3_omni.code2wav import Code2Wav
from polyvox.models.qwen3_omni.config import OmniConfig

TEXT_TABLE = "thinker.model.embed_tokens.weight"
PREFIXES = ("talker.", "code2wav.", TEXT_TABLE)


class OmniTalker(BaseTalker):
    """Reads the thinker's text embeddings, and projections of its hidden rows for audio, images and video."""

    def __init__(self, config: OmniConfig, text_embedding: nn.Embedding) -> None:
        shape = config.talker
        super().__init__(shape, config.predictor)
        self.hidden_projection = TextProjection(
            shape.text_hidden_size, shape.projection_size, shape.transformer.hidden_size
        )
        self._text_embedding = (text_embedding,)  # not a part of the talker in a checkpoint

    @property
    def text_table(self) -> Tensor:
        return self._text_embedding[0].weight


class Qwen3Omni(nn.Module):
    """Talker, code predictor, code2wav, and the thinker's table of text embeddings."""

    def __init__(self, config: OmniConfig) -> None:
        super().__init__()
        self.config = config
        self.text_embedding = nn.Embedding(config.talker.text_vocab_size, config.talker.text_hidden_size)
        self.talker = OmniTalker(config, self.text_embedding)
        self.code2wav = Code2Wav(config.code2wav)

    def files(self) -> dict[str, Tensor]:
        """The tensors by their names in a checkpoint, as views of the parameters that store them."""
        tensors = checkpoint_tensors(self.talker, "talker.") | checkpoint_tensors(self.code2wav, "code2wav.")
        return tensors | {TEXT_TABLE: self.text_embedding.weight.detach()}
