# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from polyvox.errors import CheckpointError
from polyvox.models.hub import find_checkpoint
from polyvox.models.layers.linear import checkpoint_tensors
from polyvox.models.qwen3_tts import synthetic
from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.models.qwen3_tts.config import Kind
from polyvox.models.qwen3_tts.synthetic import random_model, tiny_files, write_tiny
from polyvox.models.registry import LoadOptions, get_family

CPU = torch.device("cpu")


@pytest.fixture
def folder(checkpoints: Path, tmp_path: Path) -> Path:
    """A copy to modify."""
    return shutil.copytree(checkpoints / "custom_voice", tmp_path / "checkpoint")


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(path)
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, path)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_tensor_of_the_files_is_in_the_model(kind: Kind, checkpoints: Path) -> None:
    folder = checkpoints / kind
    model = load_weights(folder, CPU, torch.float32)
    for path, ours in zip((folder, folder / "speech_tokenizer"), model.files(), strict=True):
        stored = load_file(path / "model.safetensors")
        assert ours.keys() == stored.keys()
        for name, value in stored.items():
            assert torch.equal(ours[name], value), name


def test_the_talker_has_the_requested_dtype_and_the_codec_at_least_float32(folder: Path) -> None:
    model = load_weights(folder, CPU, torch.bfloat16)
    assert {p.dtype for p in model.talker.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.codec.parameters()} == {torch.float32}
    assert {p.dtype for p in load_weights(folder, CPU, torch.float64).parameters()} == {torch.float64}


@pytest.mark.parametrize("part", ["", "speech_tokenizer/"])
@pytest.mark.parametrize("problem", ["missing", "extra", "shape", "integers"])
def test_a_wrong_tensor_is_named(part: str, problem: str, folder: Path) -> None:
    path = folder / f"{part}model.safetensors"
    name = "decoder.pre_conv.conv.weight" if part else "talker.model.layers.1.self_attn.k_proj.weight"
    value = load_file(path)[name]
    if problem == "missing":
        rewrite(path, **{name: None})
        expected = f"{name} {list(value.shape)} is missing"
    elif problem == "extra":
        name = name.replace("weight", "surplus")
        rewrite(path, **{name: torch.zeros(3, 4)})
        expected = f"{name} [3, 4] is not known"
    elif problem == "shape":
        rewrite(path, **{name: value[:-1].clone()})
        expected = f"{name} has shape {list(value[:-1].shape)}; the config files require {list(value.shape)}"
    else:
        rewrite(path, **{name: value.to(torch.int32)})
        expected = f"{name} is torch.int32"
    with pytest.raises(CheckpointError) as caught:
        load_weights(folder, CPU, torch.float32)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("part", ["", "speech_tokenizer/"])
@pytest.mark.parametrize("problem", ["missing", "is not known", "has shape"])
def test_a_wrong_tensor_of_an_encoder_is_named(part: str, problem: str, checkpoints: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints / "base", tmp_path / "checkpoint")
    path = folder / f"{part}model.safetensors"
    name = "encoder.downsample.conv.weight" if part else "speaker_encoder.fc.weight"
    value = load_file(path)[name]
    if problem == "is not known":
        name = name.replace("weight", "surplus")
    rewrite(path, **{name: None if problem == "missing" else value[:-1].clone()})
    with pytest.raises(CheckpointError, match=rf"{name} .*{problem}"):
        load_weights(folder, CPU, torch.float32)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "absent"])
def test_a_damaged_file_is_named(damage: str, folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes({"truncated": data[: len(data) // 2], "empty": b"", "text": b"not a tensor" * 9}[damage])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_weights(folder, CPU, torch.float32)


def test_encoders_are_not_loaded_by_models_that_cannot_clone(folder: Path) -> None:
    rewrite(folder / "model.safetensors", **{"speaker_encoder.fc.weight": torch.zeros(2)})
    rewrite(folder / "speech_tokenizer/model.safetensors", **{"encoder.downsample.conv.weight": torch.zeros(2)})
    load_weights(folder, CPU, torch.float32)


def test_weights_may_come_in_several_files(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: whole[name] for name in part}, folder / f"model-0000{i}-of-00002.safetensors")
    (folder / "model.safetensors").unlink()
    model = load_weights(folder, CPU, torch.float32)
    assert all(torch.equal(value, whole[name]) for name, value in checkpoint_tensors(model.talker, "talker.").items())


def test_a_tiny_checkpoint_is_the_same_for_the_same_seed(tmp_path: Path, checkpoints: Path) -> None:
    again, other = write_tiny(tmp_path / "again", "base"), write_tiny(tmp_path / "other", "base", seed=1)
    name = "model.safetensors"
    assert (again / name).read_bytes() == (checkpoints / "base" / name).read_bytes()
    assert (again / name).read_bytes() != (other / name).read_bytes()


def test_a_random_checkpoint_of_a_published_size_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "published_files", lambda _, kind: tiny_files(kind))  # the real ones have gigabytes
    folder = synthetic.write_random(tmp_path / "random", "1.7B", CPU)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in load_file(folder / "speech_tokenizer/model.safetensors").values()} == {
        torch.float32
    }
    model = get_family("qwen3_tts").load(folder, "random", LoadOptions(CPU, torch.float32))
    assert model.info().voices


def test_loading_does_not_import_the_compiler_of_pytorch(checkpoints: Path) -> None:
    """It has 900 modules, a third of the start of a process."""
    code = (
        "import sys; from polyvox.tts import load_model, load_options; "
        "load_model(sys.argv[1], load_options('cpu', 'float32')); "
        "sys.exit(any(name in sys.modules for name in ('torch._dynamo', 'sympy')))"
    )
    source = Path(synthetic.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", code, str(checkpoints / "custom_voice")]
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == 0


def test_random_weights_follow_their_seed() -> None:
    files = tiny_files("voice_design")
    first, again, other = (random_model(files, CPU, torch.float32, seed) for seed in (3, 3, 4))
    tensors = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, again, other)]
    assert torch.equal(tensors[0], tensors[1])
    assert not torch.equal(tensors[0], tensors[2])
    assert tensors[0].isfinite().all()


def test_a_hub_id_is_found_in_the_cache_while_offline(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(checkpoints / "base", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = find_checkpoint("someone/tiny")
    assert json.loads((found / "config.json").read_text())["tts_model_type"] == "base"
    with pytest.raises(CheckpointError, match="someone/other"):
        find_checkpoint("someone/other")


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "", "../escape/", "bad name/x"])
def test_a_name_that_is_neither_folder_nor_hub_id_is_rejected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    if name == "":
        name = "file"
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id"):
        find_checkpoint(name)
