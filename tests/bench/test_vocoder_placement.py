# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the vocoder's placement: the vocoder is on the device that a row names."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import vocoder_placement

from polyvox.models.registry import LoadOptions


def test_the_model_is_built_with_the_vocoder_on_the_device_of_its_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines: list[Any] = []

    def random_model(size: str, options: LoadOptions) -> Any:
        assert (size, options.device.type, options.dtype) == ("1.7B", "cpu", torch.float32)
        return SimpleNamespace(vocoder=SimpleNamespace(device=f"vocoder on {options.vocoder_device}"))

    def engine(model: Any, config: Any) -> Any:
        assert config.max_streams == 4
        engines.append(SimpleNamespace(model=model, close=lambda: None))
        return engines[-1]

    monkeypatch.setattr(vocoder_placement, "random_model", random_model)
    monkeypatch.setattr(vocoder_placement, "LocalEngine", engine)
    monkeypatch.setattr(vocoder_placement, "measure", lambda *_: (2.0, 0))
    monkeypatch.setattr(
        sys, "argv", ["vocoder_placement.py", "--device", "cpu", "--vocoder-devices", "auto,cpu", "--streams", "1,4"]
    )
    vocoder_placement.main()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        [given, "vocoder on cpu", count, "2.0", real_time, "0"]
        for given in ("auto", "cpu")
        for count, real_time in (("1", "yes"), ("4", "no"))
    ]
