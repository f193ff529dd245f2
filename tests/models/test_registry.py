# SPDX-License-Identifier: Apache-2.0
"""Families are found by the model_type of config.json, and capabilities are known without loading the weights."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch

from polyvox.errors import NOT_SHOWN, CheckpointError, InvalidRequest
from polyvox.models import registry
from polyvox.models.hashing_tokenizer import HashingTokenizer
from polyvox.models.info import Capability, ModelIdentity
from polyvox.models.qwen3_tts.checkpoint import empty_model
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.family import FAMILY
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.qwen3_tts.synthetic import tiny_files
from polyvox.models.registry import (
    LoadOptions,
    family_of,
    get_family,
    load_model,
    needed_weights,
    random_model,
    read_info,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("variant", "capabilities"),
    [
        ("custom_voice", {"voices", "takes_instructions"}),
        ("voice_design", {"designs_voices", "takes_instructions"}),
        ("base", {"can_clone"}),
        ("omni-plain", {"voices", "takes_conversations"}),
    ],
)
def test_a_checkpoint_has_the_capabilities_of_its_variant(
    variant: str, capabilities: set[Capability], checkpoints: Path
) -> None:
    info = read_info(checkpoints / variant)
    assert {name for name in get_args(Capability) if info.supports(name)} == capabilities
    assert info == load_model(checkpoints / variant, LoadOptions(CPU, torch.float32)).info()
    assert info.identity.name == variant
    assert info.modalities == ("audio",)
    assert (info.max_reference_seconds is not None) == info.can_clone


def test_a_missing_capability_is_reported_with_a_model_that_has_it(checkpoints: Path) -> None:
    error = read_info(checkpoints / "custom_voice").unsupported("ref_audio", NOT_SHOWN, "can_clone")
    expected = "Invalid value for 'ref_audio': is not supported by custom_voice. Use Qwen/Qwen3-TTS-12Hz-1.7B-Base."
    assert str(error) == expected


def test_an_unknown_model_type_is_rejected_with_the_supported_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mimi"}))
    with pytest.raises(
        CheckpointError, match=r'config\.json: model_type is "mimi"; supported is "qwen3_tts" or "qwen3_omni_moe"'
    ):
        family_of(tmp_path)


def test_a_family_can_be_registered_by_name_and_is_imported_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    registry.register_family("another", "polyvox.models.qwen3_tts.family:FAMILY")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "another"}))
    assert family_of(tmp_path) is FAMILY is get_family("another")


def test_a_random_model_on_the_meta_device_has_shapes_without_memory() -> None:
    model = random_model("0.6B", LoadOptions(torch.device("meta"), torch.bfloat16))
    assert model.generator.device.type == model.vocoder.device.type == "meta"
    assert 1e9 < model.generator.nbytes < 3e9
    with pytest.raises(InvalidRequest, match=r"0\.6B, 1\.7B, omni"):
        random_model("7B", LoadOptions(CPU, torch.float32))


def test_only_files_with_tensors_of_the_speech_side_are_needed(tmp_path: Path, checkpoints: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoints / "omni-plain/config.json").read_bytes())
    files = {
        "thinker.model.embed_tokens.weight": "model-00001-of-00004.safetensors",
        "thinker.model.layers.0.mlp.gate.weight": "model-00002-of-00004.safetensors",
        "thinker.lm_head.weight": "model-00003-of-00004.safetensors",
        "talker.codec_head.weight": "model-00003-of-00004.safetensors",
        "code2wav.code_embedding.weight": "model-00004-of-00004.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    needed = needed_weights(tmp_path)
    assert [name[6:11] for name in needed if name.startswith("model-")] == ["00001", "00003", "00004"]
    assert needed_weights(checkpoints / "base") == ["*.safetensors", "speech_tokenizer/*.safetensors"]


def test_the_published_speech_side_has_8_gb_on_the_meta_device() -> None:
    model = random_model("omni", LoadOptions(torch.device("meta"), torch.bfloat16))
    assert model.generator.nbytes + model.vocoder.nbytes == pytest.approx(7.5e9, rel=0.1)


def test_the_weights_of_a_vocoder_are_on_its_own_device() -> None:
    config = parse_config(tiny_files("custom_voice"))
    weights = empty_model(config, CPU, torch.float32, vocoder_device=torch.device("meta"))
    model = Qwen3TTSModel(weights, HashingTokenizer(config, None), ModelIdentity("tiny", "tiny"))
    assert {parameter.device.type for parameter in model.vocoder.parameters()} == {"meta"}
    assert {parameter.device.type for parameter in model.generator.parameters()} == {"cpu"}
