# SPDX-License-Identifier: Apache-2.0
"""The identity of a checkpoint, which determines the cloned voices that it accepts."""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from polyvox.errors import CheckpointError
from polyvox.models.hub import shown_name
from polyvox.models.info import ModelIdentity
from polyvox.models.qwen3_tts.config import ModelConfig

# The weights that define speaker vectors and codes. The talker may have been trained further.
HASHED_WEIGHTS = (("", "speaker_encoder."), ("speech_tokenizer", "decoder.quantizer."))
HASH_DIGITS = 12


def read_identity(folder: Path, config: ModelConfig, name: str | Path) -> ModelIdentity:
    """The identity of a checkpoint folder that was requested by this name; weights are hashed as float32."""
    digest = hashlib.sha256()
    for part, prefix in HASHED_WEIGHTS:
        for path in sorted((folder / part).glob("model*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    for tensor in sorted(key for key in file.keys() if key.startswith(prefix)):  # noqa: SIM118
                        value = file.get_tensor(tensor).to(torch.float32).contiguous()
                        digest.update(f"{tensor} {list(value.shape)}\n".encode())
                        digest.update(value.numpy().data)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged or not safetensors: {error}") from None
    talker = config.talker
    numbers = f"{talker.transformer.hidden_size}-{talker.code_groups}x{config.predictor.vocab_size}"
    fingerprint = f"{config.kind}-{numbers}-{digest.hexdigest()[:HASH_DIGITS]}"
    return ModelIdentity(shown_name(folder, name), fingerprint, can_clone=config.encoders is not None)
