# SPDX-License-Identifier: Apache-2.0
"""Tensors are saved in files of limited size and load with their values."""

from pathlib import Path

import pytest
import torch

from training import files
from training.files import load_parts, save_parts


def test_saved_tensors_load_with_their_values(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).float().view(2, 3), "b": torch.tensor([3, 4]), "c": torch.ones(2).bfloat16()}
    save_parts(tensors, tmp_path, "state")
    found = load_parts(tmp_path, "state")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name].double(), value.double()) for name, value in tensors.items())
    assert found["a"].dtype == torch.float32
    assert found["b"].dtype == torch.int64


def test_files_are_limited_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 40)
    save_parts({str(number): torch.ones(8) for number in range(5)}, tmp_path, "state")  # 16 bytes each
    assert len(list(tmp_path.iterdir())) == 3
    assert len(load_parts(tmp_path, "state")) == 5


def test_fewer_files_replace_all_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 40)
    save_parts({str(number): torch.ones(8) for number in range(5)}, tmp_path, "state")
    save_parts({"one": torch.ones(8)}, tmp_path, "state")
    assert load_parts(tmp_path, "state").keys() == {"one"}


def test_an_interrupted_save_leaves_no_tensor_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 40)
    save_parts({str(number): torch.zeros(8) for number in range(5)}, tmp_path, "state")

    def interrupted(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_parts({str(number): torch.ones(8) for number in range(5)}, tmp_path, "state")
    found = load_parts(tmp_path, "state")
    assert len(found) == 5
    assert not any(value.any() for value in found.values())


def test_a_folder_without_files_gives_no_tensors(tmp_path: Path) -> None:
    assert load_parts(tmp_path, "state") == {}
