# SPDX-License-Identifier: Apache-2.0
"""Tone levels of recordings, and MOS where it can be measured."""

import importlib
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest

from training.quality import load_mos_predictor, tone_level

RATE = 24_000


def test_the_level_of_a_tone_is_relative_to_the_recording() -> None:
    time = np.arange(2 * RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.1, len(time))
    tone = 0.1 * 10 ** (-30 / 20) * np.sqrt(2) * np.sin(2 * np.pi * 4500 * time)
    assert tone_level(noise + tone, RATE, 4500) == pytest.approx(-30, abs=2)
    assert tone_level(noise, RATE, 4500) < -40


def test_a_recording_that_is_too_short_has_no_tone_level() -> None:
    assert np.isnan(tone_level(np.ones(1000), RATE, 4500))


def test_distillmos_is_loaded_without_torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def eval(self) -> "Model":
            return self

    class Finder(Loader):
        """distillmos, which imports torchaudio, whose library cannot be loaded."""

        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            if name == "torchaudio":
                raise OSError("libc10_cuda.so: cannot open shared object file")
            return ModuleSpec(name, self) if name == "distillmos" else None

        def create_module(self, _: ModuleSpec) -> None: ...

        def exec_module(self, module: ModuleType) -> None:
            importlib.import_module("torchaudio")
            module.ConvTransformerSQAModel = Model  # type: ignore[attr-defined]

    for name in ("distillmos", "torchaudio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert load_mos_predictor() is not None
    assert "torchaudio" not in sys.modules
    monkeypatch.delitem(sys.modules, "distillmos")


def test_without_distillmos_one_line_says_that_mos_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class BrokenLibrary:
        """Importing a package raises OSError where its shared library does not fit."""

        def find_spec(self, name: str, *_: object) -> None:
            if name == "distillmos":
                raise OSError("libtorchaudio.so: undefined symbol\nmore")

    monkeypatch.delitem(sys.modules, "distillmos", raising=False)
    monkeypatch.setattr(sys, "meta_path", [BrokenLibrary(), *sys.meta_path])
    assert load_mos_predictor() is None
    assert capsys.readouterr().out == (
        "MOS is not measured: DistillMOS cannot be loaded (libtorchaudio.so: undefined symbol)\n"
    )
