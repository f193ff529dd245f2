# SPDX-License-Identifier: Apache-2.0
"""Loads the speech side of a checkpoint; the thinker's other tensors are not read."""

from contextlib import ExitStack
from pathlib import Path

import torch

from polyvox.errors import CheckpointError
from polyvox.models.meta_device import allocate, meta_device
from polyvox.models.qwen3_omni.config import OmniConfig, read_config
from polyvox.models.qwen3_omni.model import PREFIXES, Qwen3Omni
from polyvox.models.weight_files import fill, open_weights


def load_weights(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    vocoder_device: torch.device | None = None,
) -> Qwen3Omni:
    """Loads a checkpoint folder; raises CheckpointError that names a missing, unknown or misshapen tensor."""
    config = read_config(folder)
    with ExitStack() as stack:
        found = open_weights(folder, stack, device, lambda name: name.startswith(PREFIXES))
        with meta_device():
            expected = Qwen3Omni(config).files()
        found.compare(expected, "Qwen3-Omni")
        try:
            model = empty_model(config, device, dtype, vocoder_device)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"{folder}: not enough memory on {device} for this model: {error}") from None
        fill([(found, model.files())])
    return model


def empty_model(
    config: OmniConfig, device: torch.device, dtype: torch.dtype, vocoder_device: torch.device | None = None
) -> Qwen3Omni:
    """A model with uninitialised weights. Code2wav keeps at least float32, or float16 on a GPU with a 16-bit dtype.

    On a GPU the text embedding, of which a request needs a few rows, stays on the host.
    """
    vocoder_device = vocoder_device or device
    with meta_device():
        model = Qwen3Omni(config)
    model.text_embedding.to(dtype)
    model.talker.to(dtype)
    model.code2wav.to(torch.promote_types(dtype, torch.float32))
    if vocoder_device.type != "cpu" and dtype.itemsize < torch.float32.itemsize:
        model.code2wav.narrow(torch.float16)
    allocate(model, device)
    if vocoder_device != device:
        model.code2wav.to_empty(device=vocoder_device)
    if device.type == "cuda":
        model.text_embedding.to_empty(device="cpu")
    return model.eval().requires_grad_(False)
