# SPDX-License-Identifier: Apache-2.0
"""The weights of one checkpoint."""

import torch
from torch import Tensor, nn

from polyvox.models.layers.linear import checkpoint_tensors
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.codec_encoder import CodecEncoder
from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.encoder_config import EncodersConfig
from polyvox.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from polyvox.models.qwen3_tts.talker import Talker


class Encoders(nn.Module):
    """The codec encoder and the speaker encoder, which turn a recording into a voice."""

    def __init__(self, config: EncodersConfig) -> None:
        super().__init__()
        self.codec = CodecEncoder(config.codec)
        self.speaker = SpeakerEncoder(config.speaker)


class Qwen3TTS(nn.Module):
    """Talker, code predictor and codec decoder, and the encoders of a Base model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config)
        self.codec = CodecDecoder(config.codec)
        self.encoders = Encoders(config.encoders) if config.encoders else None

    @property
    def device(self) -> torch.device:
        return self.talker.device

    @property
    def dtype(self) -> torch.dtype:
        return self.talker.dtype

    def files(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors of a checkpoint's two files by name, as views of the parameters that store them."""
        talker, codec = checkpoint_tensors(self.talker, "talker."), checkpoint_tensors(self.codec, "decoder.")
        if self.encoders is not None:
            talker |= checkpoint_tensors(self.encoders.speaker, "speaker_encoder.")
            codec |= checkpoint_tensors(self.encoders.codec, "encoder.")
        return talker, codec
