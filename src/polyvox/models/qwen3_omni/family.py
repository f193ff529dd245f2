# SPDX-License-Identifier: Apache-2.0
"""The Qwen3-Omni family for the model registry."""

from dataclasses import replace
from pathlib import Path

import torch

from polyvox.models.hashing_tokenizer import HashingTokenizer
from polyvox.models.hub import shown_name
from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.qwen3_omni.checkpoint import load_weights
from polyvox.models.qwen3_omni.config import OmniConfig, read_config
from polyvox.models.qwen3_omni.model import PREFIXES
from polyvox.models.qwen3_omni.speech_model import Qwen3OmniModel, model_info
from polyvox.models.qwen3_omni.synthetic import published_config, random_model
from polyvox.models.registry import LoadOptions
from polyvox.models.tokenizer import TextTokenizer

SIZE = "omni"  # the only published one
TOKENIZER_FILES = ("vocab.json", "tokenizer.json")  # a checkpoint with a tokenizer has one of them


def identity_of(config: OmniConfig, name: str) -> ModelIdentity:
    talker = config.talker
    numbers = f"{talker.transformer.hidden_size}-{talker.code_groups}x{config.predictor.vocab_size}"
    return ModelIdentity(name, f"omni-{numbers}")


def has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in TOKENIZER_FILES)


class Qwen3OmniFamily:
    """Loads the speech side of Qwen3-Omni checkpoints; the thinker runs elsewhere."""

    sizes: tuple[str, ...] = (SIZE,)

    def needs_tensor(self, name: str, /) -> bool:
        return name.startswith(PREFIXES)

    def read_info(self, folder: Path, name: str | Path) -> ModelInfo:
        config = read_config(folder)
        return model_info(config, identity_of(config, shown_name(folder, name)), has_tokenizer(folder))

    def load(self, folder: Path, name: str | Path, options: LoadOptions) -> Qwen3OmniModel:
        weights = load_weights(folder, options.device, options.dtype, options.vocoder_device)
        tokenizer = TextTokenizer(folder, weights.config) if has_tokenizer(folder) else None
        return Qwen3OmniModel(weights, tokenizer, identity_of(weights.config, shown_name(folder, name)))

    def random_model(
        self,
        size: str,
        device: torch.device,
        dtype: torch.dtype,
        num_tokens: int | None = None,
        frames: int | None = None,
        vocoder_device: torch.device | None = None,
    ) -> Qwen3OmniModel:
        weights = random_model(published_config(), device, dtype, vocoder_device=vocoder_device)
        if frames is not None:
            sampling = replace(weights.config.sampling, min_frames=frames)
            weights.config = replace(weights.config, sampling=sampling, max_frames=frames)
        tokenizer = HashingTokenizer(weights.config, num_tokens)
        return Qwen3OmniModel(weights, tokenizer, identity_of(weights.config, f"random-{size}"))


FAMILY = Qwen3OmniFamily()
