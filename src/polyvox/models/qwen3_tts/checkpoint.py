# SPDX-License-Identifier: Apache-2.0
"""Loads the tensors of a checkpoint into the model's memory, all of them or none."""

from contextlib import ExitStack
from pathlib import Path

import torch

from polyvox.errors import CheckpointError
from polyvox.models.meta_device import allocate, meta_device
from polyvox.models.qwen3_tts.config import ModelConfig, read_config
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.weight_files import fill, open_weights

# Prefixes of the encoders' tensors. Every codec file has a codec encoder, but only Base models can clone, so only they
# load it (250 MB): at once and not on first use, when memory may be short and the files may have changed.
ENCODERS = ("speaker_encoder.", "encoder.")


def load_weights(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    vocoder_device: torch.device | None = None,
) -> Qwen3TTS:
    """Loads a checkpoint folder; raises CheckpointError that names a missing, unknown or misshapen tensor.

    Names and shapes are compared before memory is allocated.
    """
    config = read_config(folder)
    with ExitStack() as stack:
        skipped = () if config.encoders else ENCODERS
        files = [
            open_weights(part, stack, device, lambda name: not name.startswith(skipped))
            for part in (folder, folder / "speech_tokenizer")
        ]
        with meta_device():
            expected = Qwen3TTS(config).files()
        for found, wanted in zip(files, expected, strict=True):
            found.compare(wanted, "Qwen3-TTS")
        try:
            model = empty_model(config, device, dtype, vocoder_device)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"{folder}: not enough memory on {device} for this model: {error}") from None
        fill(zip(files, model.files(), strict=True))
    return model


def empty_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, vocoder_device: torch.device | None = None
) -> Qwen3TTS:
    """A model with uninitialised weights. Codec and encoders keep at least float32, the type of their file.

    On a GPU with a 16-bit dtype the codec's layers are float16, which loses 18 dB less than bfloat16. On a GPU the text
    embedding, of which a request needs a few rows and which is a third of the 0.6B model, stays on the host.
    """
    vocoder_device = vocoder_device or device
    with meta_device():
        model = Qwen3TTS(config)
    model.talker.to(dtype)
    for part in (model.codec, model.encoders):
        if part is not None:
            part.to(torch.promote_types(dtype, torch.float32))
    if vocoder_device.type != "cpu" and dtype.itemsize < torch.float32.itemsize:
        model.codec.narrow(torch.float16)
    allocate(model, device)
    if vocoder_device != device:
        model.codec.to_empty(device=vocoder_device)
    if device.type == "cuda":
        model.talker.text_embedding.to_empty(device="cpu")
    return model.eval().requires_grad_(False)
