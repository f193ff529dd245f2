# SPDX-License-Identifier: Apache-2.0
"""The sampler of code_draw.cu, compiled for a CPU, against its reference implementation; no GPU is needed."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import COMPILER, NVCC, CpuSource, GuardedMemory, compile_for_cpu, registers_of
from polyvox.kernels import code_draw
from polyvox.kernels.code_draw import VOCAB
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.sampler import DrawInputs, draw_keyed_reference

PROGRAM = """
#include "code_draw.cu"
typedef long long L;
static void call_code_draw(void **p, int *n) {
  code_draw((bits16 *)p[0], (L *)p[1], (float *)p[2], (L *)p[3], (L *)p[4], (L *)p[5], (L *)p[6], n[0], n[1]);
}
LAUNCH(code_draw)
"""
# temperature, top_k, top_p, and an unused penalty
PARAMS = [
    (0.0, 0, 1.0, 1.0), (0.9, 50, 1.0, 1.0), (1.0, 0, 1.0, 1.0), (0.7, 1, 1.0, 1.0), (1.3, 5000, 0.8, 1.0),
    (0.9, 50, 0.5, 1.0), (2.0, 2047, 1e-6, 1.0), (0.0, 50, 0.5, 1.0), (1.0, 300, 0.95, 1.0),
]  # fmt: skip

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PROGRAM, tmp_path_factory.mktemp("code_draw"), "-O2")


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_draw, "source", lambda _: CpuSource(compiled))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def draws(rows: int, seed: int) -> DrawInputs:
    """Rows in another order than their slots."""
    generator = torch.Generator().manual_seed(seed)

    def integers(*shape: int, high: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    params = torch.tensor([PARAMS[i % len(PARAMS)] for i in range(rows)])
    slots = torch.randperm(rows, generator=generator)
    return DrawInputs(slots, params, integers(rows, 2, high=2**32), integers(rows, high=9), integers(rows, high=999))


def drawn(logits: Tensor, book: int, inputs: DrawInputs) -> Tensor:
    codes = torch.full((len(logits),), -1)
    code_draw.launch(logits, book, inputs.slots, inputs.params, inputs.key, inputs.segment, inputs.frame, codes)
    return codes


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_codes_equal_those_of_the_reference(scale: float) -> None:
    rows = 3 * len(PARAMS)
    generator = torch.Generator().manual_seed(int(scale))
    logits = (scale * torch.randn(rows, 2, VOCAB, generator=generator)).bfloat16()[:, 1]
    inputs = draws(rows, seed=int(10 * scale))
    for book in (1, 15):
        assert torch.equal(drawn(logits, book, inputs), draw_keyed_reference(logits, book, inputs))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_equal_logits_and_both_zeros_are_ties() -> None:
    inputs, generator = draws(18, seed=3), torch.Generator().manual_seed(4)
    logits = torch.randint(-2, 3, (18, VOCAB), generator=generator).bfloat16()
    logits[logits == 0] *= -1.0
    logits[:, ::3] = logits[:, ::3].abs()
    assert torch.equal(drawn(logits, 2, inputs), draw_keyed_reference(logits, 2, inputs))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_logits_that_are_not_finite_sample_a_valid_code() -> None:
    inputs = draws(9, seed=5)
    logits = torch.full((9, VOCAB), torch.nan).bfloat16()
    assert drawn(logits, 1, inputs).tolist() == [VOCAB - 1] * 9
    logits = torch.full((9, VOCAB), -torch.inf).bfloat16()
    logits[:, 77] = 1.0
    assert drawn(logits, 1, inputs).tolist() == [77] * 9


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
def test_nothing_outside_of_the_tensors_is_read_or_written(at_end: bool) -> None:
    memory, inputs = GuardedMemory(), draws(9, seed=8)
    logits = memory.copy(torch.randn(9, VOCAB, generator=torch.Generator().manual_seed(9)).bfloat16(), at_end)
    parts = inputs.slots, inputs.params, inputs.key, inputs.segment, inputs.frame, torch.full((9,), -1)
    guarded = [memory.copy(part, at_end) for part in parts]
    code_draw.launch(logits, 4, *guarded)
    assert torch.equal(guarded[-1], draw_keyed_reference(logits, 4, inputs))


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", GPUS)
def test_the_kernel_compiles_without_spills(architecture: int, tmp_path: Path) -> None:
    assert len(registers_of(Path(code_draw.__file__).with_suffix(".cu"), architecture, tmp_path)) == 1
