# SPDX-License-Identifier: Apache-2.0
"""The Qwen3-TTS family for the model registry."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import torch

from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.models.qwen3_tts.config import ModelConfig, read_config
from polyvox.models.qwen3_tts.identity import read_identity
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel, model_info
from polyvox.models.qwen3_tts.synthetic import Size, published_files, random_model
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer
from polyvox.models.registry import LoadOptions

MAX_PLAIN_ID = 1000  # ids below this are ordinary text in every published vocabulary
LINE_BREAK_ID = 198


class HashingTokenizer(TextTokenizer):
    """Replaces the tokenizer of a model that has none: each word, or each of num_tokens tokens, is a hash."""

    def __init__(self, config: ModelConfig, num_tokens: int | None) -> None:
        self.role = [config.im_start_id, config.assistant_id, LINE_BREAK_ID]
        self._num_tokens = num_tokens
        self._vocab_size = min(MAX_PLAIN_ID, config.talker.text_vocab_size // 2)

    def _encode(self, text: str) -> list[int]:
        words = text.split() if self._num_tokens is None else [f"{i}{text}" for i in range(self._num_tokens)]
        return [int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % self._vocab_size for word in words]


class Qwen3TTSFamily:
    """Loads Qwen3-TTS checkpoints at 12.5 frames per second: CustomVoice, VoiceDesign and Base, of any size."""

    sizes: tuple[str, ...] = get_args(Size)

    def read_info(self, folder: Path, name: str | Path) -> ModelInfo:
        config = read_config(folder)
        return model_info(config, read_identity(folder, config, name))

    def load(self, folder: Path, name: str | Path, options: LoadOptions) -> Qwen3TTSModel:
        weights = load_weights(folder, options.device, options.dtype, options.vocoder_device)
        identity = read_identity(folder, weights.config, name)
        return Qwen3TTSModel(weights, TextTokenizer(folder, weights.config), identity)

    def random_model(
        self,
        size: str,
        device: torch.device,
        dtype: torch.dtype,
        num_tokens: int | None = None,
        frames: int | None = None,
        vocoder_device: torch.device | None = None,
    ) -> Qwen3TTSModel:
        files = published_files(cast(Size, size), "custom_voice")
        weights = random_model(files, device, dtype, vocoder_device=vocoder_device)
        if frames is not None:
            sampling = replace(weights.config.sampling, min_frames=frames)
            weights.config = replace(weights.config, sampling=sampling, max_frames=frames)
        name = f"random-{size}"
        return Qwen3TTSModel(weights, HashingTokenizer(weights.config, num_tokens), ModelIdentity(name, name))


FAMILY = Qwen3TTSFamily()
