# SPDX-License-Identifier: Apache-2.0
"""Random weights for benchmarks and tests, and checkpoint files of them."""

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

# bounds(name, tensor) -> the range of a tensor's uniform random numbers
Bounds = Callable[[str, Tensor], tuple[float, float]]


def fill_seeded(tensors: Mapping[str, Tensor], bounds: Bounds, seed: int, device: torch.device) -> None:
    """Fills tensors; the numbers depend on their device. Those of the host come from a GPU, which takes less time."""
    devices = {tensor.device for tensor in tensors.values()} | {device}
    generators = {each: torch.Generator(each).manual_seed(seed) for each in devices}
    for name, tensor in tensors.items():
        low, high = bounds(name, tensor)
        if tensor.device.type == "cpu" and device.type == "cuda":
            tensor.copy_(torch.empty_like(tensor, device=device).uniform_(low, high, generator=generators[device]))
        else:
            tensor.uniform_(low, high, generator=generators[tensor.device])


def fill_keyed(tensors: Mapping[str, Tensor], bounds: Bounds, seed: int) -> None:
    """Fills tensors with numbers keyed by name: exact on every machine, and independent of other tensors."""
    for name, tensor in tensors.items():
        low, high = bounds(name, tensor)
        numbers = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())])).random(tuple(tensor.shape))
        tensor.copy_(torch.from_numpy((low + (high - low) * numbers).astype(np.float32)))


def save_shards(tensors: Mapping[str, Tensor], folder: Path, shards: int = 1) -> None:
    """Writes safetensors files and, for several shards, their index, as published checkpoints have them."""
    names = list(tensors)
    size = -(-len(names) // shards)
    index: dict[str, str] = {}
    for shard in range(shards):
        part = names[shard * size : (shard + 1) * size]
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        index |= dict.fromkeys(part, file)
        save_file({name: tensors[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
    if shards > 1:
        content = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
