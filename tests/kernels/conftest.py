"""Kernels run in Triton's interpreter here; the variable counts when triton is imported, so it is set before any test."""

import os
import sys

import pytest

from polyvox import kernels

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"


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
    with kernels.everywhere():
        yield
