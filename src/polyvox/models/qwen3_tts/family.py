# SPDX-License-Identifier: Apache-2.0
"""The Qwen3-TTS family for the model registry."""

from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import torch

from polyvox.models.hashing_tokenizer import HashingTokenizer
from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.models.qwen3_tts.config import read_config
from polyvox.models.qwen3_tts.identity import read_identity
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel, model_info
from polyvox.models.qwen3_tts.synthetic import Size, published_files, random_model
from polyvox.models.registry import LoadOptions
from polyvox.models.tokenizer import TextTokenizer


class Qwen3TTSFamily:
    """Loads Qwen3-TTS checkpoints at 12.5 frames per second: CustomVoice, VoiceDesign and Base, of any size."""

    sizes: tuple[str, ...] = get_args(Size)

    def needs_tensor(self, _name: str, /) -> bool:
        return True

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
