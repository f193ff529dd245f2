# SPDX-License-Identifier: Apache-2.0
"""Model families by the `model_type` of a checkpoint's config.json.

A family is one object that reads, loads and synthesises checkpoints of its type. To add one, implement `ModelFamily`
and register it here; no other package names a family.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import torch

from polyvox import kernels
from polyvox.errors import InvalidRequest
from polyvox.models.config_fields import ConfigFields, read_json
from polyvox.models.hub import ALL_WEIGHTS, find_checkpoint
from polyvox.models.info import ModelInfo
from polyvox.models.protocol import SpeechModel

CONFIG_FILE, INDEX_FILE = "config.json", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where a model is loaded, and in which types.

    vocoder_device: by default the generator's. kv_dtype: by default default_kv_dtype.
    weight_dtype: by default dtype.
    """

    device: torch.device
    dtype: torch.dtype
    vocoder_device: torch.device | None = None
    kv_dtype: torch.dtype | None = None
    weight_dtype: torch.dtype | None = None


class ModelFamily(Protocol):
    """One model architecture: its loader, its config parser and its synthetic checkpoints."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """Published sizes that `random_model` builds; no two families have the same."""

    def needs_tensor(self, name: str, /) -> bool:
        """Whether a tensor of a checkpoint's files is loaded; files without such tensors are not downloaded."""

    def read_info(self, folder: Path, name: str | Path) -> ModelInfo:
        """What a checkpoint is and can do, without loading it; name is what the user called it."""

    def load(self, folder: Path, name: str | Path, options: LoadOptions) -> SpeechModel:
        """Loads a checkpoint; raises CheckpointError. name is how its identity is shown."""

    def random_model(
        self,
        size: str,
        device: torch.device,
        dtype: torch.dtype,
        num_tokens: int | None,
        frames: int | None,
        vocoder_device: torch.device | None,
    ) -> SpeechModel:
        """A model of a published size with seeded random weights and no tokenizer, for benchmarks.

        Each text has num_tokens tokens, by default one per word. frames: every utterance has exactly this many. On the
        meta device the model has shapes but no memory.
        """


# Imported on first use, because a family imports torch.
_FAMILIES: dict[str, ModelFamily | str] = {
    "qwen3_tts": "polyvox.models.qwen3_tts.family:FAMILY",
    "qwen3_omni_moe": "polyvox.models.qwen3_omni.family:FAMILY",
}


def register_family(model_type: str, family: ModelFamily | str) -> None:
    """Adds a family, or "module:object" to import it from when it is needed."""
    _FAMILIES[model_type] = family


def get_family(model_type: str) -> ModelFamily:
    family = _FAMILIES[model_type]
    if isinstance(family, str):
        module, _, name = family.partition(":")
        family = _FAMILIES[model_type] = cast(ModelFamily, getattr(import_module(module), name))
    return family


def published_sizes() -> tuple[str, ...]:
    """The sizes of all families, for `random_model`."""
    return tuple(size for family in map(get_family, _FAMILIES) for size in family.sizes)


def family_of(folder: Path) -> ModelFamily:
    """The family of a checkpoint folder; raises CheckpointError for an unsupported model_type."""
    config = ConfigFields(CONFIG_FILE, read_json(folder, CONFIG_FILE))
    model_type = config.values.get("model_type")
    if model_type not in _FAMILIES:
        raise config.unsupported("model_type", model_type, " or ".join(f'"{name}"' for name in _FAMILIES))
    return get_family(model_type)


def needed_weights(folder: Path) -> list[str]:
    """The weight files with tensors that the folder's family loads, by the index of a sharded checkpoint."""
    family = family_of(folder)
    if not (folder / INDEX_FILE).is_file():
        return ALL_WEIGHTS
    index = ConfigFields(INDEX_FILE, read_json(folder, INDEX_FILE)).section("weight_map").values
    return [*sorted({str(file) for name, file in index.items() if family.needs_tensor(name)}), *ALL_WEIGHTS[1:]]


def read_info(path_or_id: str | Path) -> ModelInfo:
    """What a checkpoint is and can do, without loading it."""
    folder = find_checkpoint(path_or_id, needed_weights)
    return family_of(folder).read_info(folder, path_or_id)


def load_model(path_or_id: str | Path, options: LoadOptions, name: str | Path | None = None) -> SpeechModel:
    """Loads the checkpoint of a folder or hub id. name: how its identity is shown, by default path_or_id."""
    folder = find_checkpoint(path_or_id, needed_weights)
    model = family_of(folder).load(folder, name or path_or_id, options)
    return _with_types(model, options)


def default_kv_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The type of the KV cache of a model of this type: int8 in bfloat16 on a GPU.

    It needs half the memory and is faster with many streams on an H200; speech is as intelligible
    (docs/performance.md). Without kernels it would only be slower.
    """
    return torch.int8 if device.type == "cuda" and dtype == torch.bfloat16 and kernels.installed() else dtype


def random_model(
    size: str, options: LoadOptions, num_tokens: int | None = None, frames: int | None = None
) -> SpeechModel:
    """A model with random weights; see `ModelFamily.random_model`."""
    for family in map(get_family, _FAMILIES):
        if size in family.sizes:
            model = family.random_model(size, options.device, options.dtype, num_tokens, frames, options.vocoder_device)
            return _with_types(model, options)
    raise InvalidRequest("size", size, published_sizes())


def _with_types(model: SpeechModel, options: LoadOptions) -> SpeechModel:
    """The model with these types of its KV cache and its matrices, or the default ones."""
    model.generator.kv_dtype = options.kv_dtype or default_kv_dtype(options.device, options.dtype)
    if options.weight_dtype is not None:
        model.generator.quantize(options.weight_dtype)
    return model
