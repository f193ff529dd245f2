# SPDX-License-Identifier: Apache-2.0
"""Files of Qwen3-Omni checkpoints: sharded or not, experts one by one or stacked, with and without the thinker."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyvox.errors import CheckpointError
from polyvox.models.qwen3_omni.checkpoint import load_weights
from polyvox.models.qwen3_omni.config import parse_config
from polyvox.models.qwen3_omni.model import Qwen3Omni
from polyvox.models.qwen3_omni.synthetic import tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tensors(checkpoints: Path) -> dict[str, torch.Tensor]:
    parts = [load_file(path) for path in sorted((checkpoints / "omni-plain").glob("model-*.safetensors"))]
    assert len(parts) == 2
    return parts[0] | parts[1]


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(tiny_config("plain")))
    save_file(tensors, folder / "model.safetensors")
    return folder


def equal(ours: Qwen3Omni, theirs: Qwen3Omni) -> bool:
    return all(torch.equal(value, theirs.files()[name]) for name, value in ours.files().items())


def test_stacked_experts_are_the_same_as_single_ones(
    tmp_path: Path, checkpoints: Path, tensors: dict[str, torch.Tensor]
) -> None:
    stacked = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in range(2):
        prefix = f"talker.model.layers.{layer}.mlp.experts."
        of = {name: [tensors[f"{prefix}{i}.{name}_proj.weight"] for i in range(4)] for name in ("gate", "up", "down")}
        both = zip(of["gate"], of["up"], strict=True)
        stacked[f"{prefix}gate_up_proj"] = torch.stack([torch.cat([gate, up]) for gate, up in both])
        stacked[f"{prefix}down_proj"] = torch.stack(of["down"])
    loaded = load_weights(write(tmp_path, stacked), CPU, torch.float32)
    assert equal(loaded, load_weights(checkpoints / "omni-plain", CPU, torch.float32))


def test_tensors_of_the_thinker_are_not_read(
    tmp_path: Path, checkpoints: Path, tensors: dict[str, torch.Tensor]
) -> None:
    """Not even their shapes; only its table of embeddings is."""
    more = {"thinker.lm_head.weight": torch.full((3,), torch.nan), "thinker.model.layers.0.mlp.x": torch.zeros(1)}
    loaded = load_weights(write(tmp_path, tensors | more), CPU, torch.float32)
    assert equal(loaded, load_weights(checkpoints / "omni-plain", CPU, torch.float32))


@pytest.mark.parametrize(
    "name", ["talker.codec_head.weight", "thinker.model.embed_tokens.weight", "code2wav.code_embedding.weight"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor], name: str) -> None:
    left = {other: value for other, value in tensors.items() if other != name}
    with pytest.raises(CheckpointError, match=rf"tensor {re.escape(name)} .* is missing"):
        load_weights(write(tmp_path, left), CPU, torch.float32)


@pytest.mark.parametrize(
    ("section", "field", "value", "requirement"),
    [
        ("text_config", "num_experts_per_tok", 5, "num_experts_per_tok"),
        ("text_config", "vocab_size", 1024, "control ids"),
        ("text_config", "mlp_only_layers", [0], "empty list"),
        ("text_config", "rope_scaling", {"rope_type": "default", "mrope_section": [4, 4]}, "mrope_section"),
        (None, "codec_bos_id", 5000, "below 1088"),
        (None, "speaker_id", {}, "at least one speaker"),
        (None, "thinker_hidden_size", 31, "thinker_hidden_size"),
    ],
)
def test_a_config_that_is_not_supported_is_rejected_with_its_field(
    section: str | None, field: str, value: object, requirement: str
) -> None:
    content = tiny_config("plain")
    fields = content["talker_config"][section] if section else content["talker_config"]
    fields[field] = value
    with pytest.raises(CheckpointError, match=requirement):
        parse_config(content)
