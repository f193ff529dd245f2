# SPDX-License-Identifier: Apache-2.0
"""The talker of Qwen3-TTS, which has its own table of text embeddings."""

from typing import cast

from torch import Tensor, nn

from polyvox.models.layers.talker import BaseTalker
from polyvox.models.qwen3_tts.config import ModelConfig


class Talker(BaseTalker):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.talker, config.predictor)
        self.model.text_embedding = nn.Embedding(config.talker.text_vocab_size, config.talker.text_hidden_size)

    @property
    def text_embedding(self) -> nn.Embedding:
        return cast(nn.Embedding, self.model.text_embedding)

    @property
    def text_table(self) -> Tensor:
        return self.text_embedding.weight
