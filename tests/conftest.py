"""What many tests need: the tiny checkpoints and the embedded voice, loaded once."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast, get_args

import pytest
import torch
from hypothesis import settings

import polyvox
from polyvox import kernels
from polyvox.models.qwen3_tts.config import Kind
from polyvox.models.qwen3_tts.synthetic import write_tiny
from polyvox.tts import EMBEDDED_VOICE, TTS, load

# The parity tests can also judge a GPU: POLYVOX_TEST_DEVICE=cuda.
DEVICE = os.environ.get("POLYVOX_TEST_DEVICE", "cpu")
# Kernels are tested in Triton's interpreter, which is chosen when triton is imported.
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
# TF32 convolutions, PyTorch's default on CUDA, are not float32.
torch.backends.cudnn.allow_tf32 = False

Loaded = Callable[[str, str], TTS]


def pytest_configure(config: pytest.Config) -> None:
    """Random examples are the same in every run, so that a failure tells of a change; the soak draws new ones."""
    settings.register_profile("repeatable", derandomize=True)
    if not any("soak" in argument for argument in config.args):
        settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one tiny checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in get_args(Kind):
        write_tiny(folder / kind, cast(Kind, kind))
    return folder


@pytest.fixture(scope="session")
def loaded(checkpoints: Path) -> Loaded:
    """loaded(checkpoint, dtype): a tiny checkpoint or the embedded voice."""

    @cache
    def get(checkpoint: str, dtype: str = "float32") -> TTS:
        folder = EMBEDDED_VOICE if checkpoint == "embedded" else checkpoints / checkpoint
        return load(folder, device=DEVICE, dtype=dtype)

    return cast(Loaded, get)


@pytest.fixture(scope="session")
def embedded() -> TTS:
    return polyvox.load(device="cpu")


@pytest.fixture(scope="session", autouse=True)
def _no_voices(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The voices of whoever runs the tests are not theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYVOX_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.no_grad():
        yield


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> object:
    """Kernels everywhere, and so in the interpreter."""
    from triton import knobs
    from triton.runtime import interpreter

    assert knobs.runtime.interpret, "triton was imported before TRITON_INTERPRET was set"
    patch = interpreter._patch_lang_tensor

    def patch_for_numpy_2_4(tensor: object, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        # The interpreter of 3.6 keeps scalars as arrays of one, which numpy no longer takes for a number.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_for_numpy_2_4)
    with kernels.enabled_on_cpu():
        yield
