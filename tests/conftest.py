# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: tiny checkpoints, the embedded voice, and a scripted LLM and STT server."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest
import torch
from hypothesis import settings

import polyvox
from polyvox import kernels
from polyvox.models.qwen3_omni import synthetic as omni
from polyvox.models.qwen3_tts.config import Kind
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.qwen3_tts.synthetic import write_tiny
from polyvox.tts import EMBEDDED_VOICE, TTS, load

if TYPE_CHECKING:
    from server.scripted_llm import ScriptedLLM
    from server.scripted_stt import ScriptedSTT

# The parity tests also run on a GPU: POLYVOX_TEST_DEVICE=cuda.
DEVICE = os.environ.get("POLYVOX_TEST_DEVICE", "cpu")
# Kernels are tested in Triton's interpreter, which is selected when triton is imported.
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
# TF32 convolutions, PyTorch's default on CUDA, are not float32.
torch.backends.cudnn.allow_tf32 = False


class LoadedTTS(TTS):
    """A TTS whose model is known to be Qwen3-TTS, for tests of its internals."""

    model: Qwen3TTSModel


Loaded = Callable[[str, str], LoadedTTS]


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws the same examples in every run, so a failure means a code change. The soak draws new ones."""
    settings.register_profile("repeatable", derandomize=True, deadline=None)  # a loaded machine is not a failure
    if not any("soak" in argument for argument in config.args):
        settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of async tests, which are marked with `pytest.mark.anyio`."""
    return "asyncio"


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one tiny checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in get_args(Kind):
        write_tiny(folder / kind, cast(Kind, kind))
    for shape in get_args(omni.Shape):
        omni.write_tiny(folder / f"omni-{shape}", shape)
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
def embedded() -> LoadedTTS:
    return cast(LoadedTTS, polyvox.load(device="cpu"))


@pytest.fixture(scope="session", autouse=True)
def _no_voices(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Tests do not see the voice library of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYVOX_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.no_grad():
        yield


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> object:
    """Run all Triton kernels, in Triton's interpreter."""
    import triton.language as tl
    from triton import knobs
    from triton.runtime import interpreter as triton_interpreter

    assert knobs.runtime.interpret, "triton was imported before TRITON_INTERPRET was set"
    patch = triton_interpreter._patch_lang_tensor

    def patch_for_numpy_2_4(tensor: object, scope: triton_interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        # Triton 3.6's interpreter stores scalars as arrays of one element, which numpy 2.4 no longer converts.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(triton_interpreter, "_patch_lang_tensor", patch_for_numpy_2_4)
    dot = triton_interpreter.InterpreterBuilder.create_dot

    def dot_by_row(builder: object, a: Any, *others: Any) -> Any:
        """As on a GPU, a row's bits do not depend on its index; in a product by OpenBLAS they do on some CPUs."""
        rows = triton_interpreter.TensorHandle(a.data[..., None, :], a.dtype)
        b, d, *settings = others
        made = dot(builder, rows, b, triton_interpreter.TensorHandle(d.data[..., None, :], d.dtype), *settings)
        return triton_interpreter.TensorHandle(made.data[..., 0, :], made.dtype)

    monkeypatch.setattr(triton_interpreter.InterpreterBuilder, "create_dot", dot_by_row)
    # Triton patches its language at every call of a function inside a kernel, a third of the time: once is enough.
    scope = triton_interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    monkeypatch.setattr(triton_interpreter, "_patch_lang", lambda _: triton_interpreter._LangPatchScope())
    try:
        with kernels.enabled_on_cpu():
            yield
    finally:
        scope.restore()


@pytest.fixture(scope="module")
def shared_llm() -> "Iterator[ScriptedLLM]":
    from server.scripted_llm import scripted_llm  # the tests of a GPU run without its web packages

    with scripted_llm() as llm:
        yield llm


@pytest.fixture
def llm(shared_llm: "ScriptedLLM") -> "Iterator[ScriptedLLM]":
    shared_llm.reset()
    yield shared_llm
    shared_llm.release()


@pytest.fixture(scope="module")
def shared_stt() -> "Iterator[ScriptedSTT]":
    from server.scripted_stt import scripted_stt

    with scripted_stt() as stt:
        yield stt


@pytest.fixture
def stt(shared_stt: "ScriptedSTT") -> "Iterator[ScriptedSTT]":
    shared_stt.reset()
    yield shared_stt
    shared_stt.release()
