# SPDX-License-Identifier: Apache-2.0
"""The products of prefetch_linear.cu, compiled for a CPU, against their reference implementations; no GPU is needed.

cluster_on_cpu.hpp and bfloat16_on_cpu.hpp replace the instructions of the GPU, so this tests which thread loads,
multiplies, adds up, sends and stores what. The source is also compiled for the architecture that runs it.
"""

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import NVCC, CpuSource, GuardedMemory, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import assert_close, noise, norm
from polyvox.kernels import prefetch_linear
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.prefetch_linear import DIVISIONS, Division
from polyvox.kernels.products import ADD, GATED, PLAIN

SOURCE = Path(prefetch_linear.__file__).with_suffix(".cu")
NUM_CLUSTERS = 2
MAX_REGISTERS = 128  # per thread, so that two programs fit into a multiprocessor
# A matrix of each division, for NUM_CLUSTERS clusters.
SHAPES = {
    (kind, division): (NUM_CLUSTERS * division.height, 2 * division.columns)
    for (kind, *_), division in DIVISIONS.items()
}

PROGRAM = """
#include "prefetch_linear.cu"
typedef bits16 B;
#define CALL(NAME) \\
  static void call_##NAME(void **p, int *n) { \\
    float eps; \\
    std::memcpy(&eps, n + 4, sizeof eps); \\
    NAME((B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (B *)p[5], (B *)p[6], (float *)p[7], n[0], n[1], \\
         n[2], n[3], eps); \\
  } \\
  LAUNCH_CLUSTERS(NAME, CLUSTER)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    calls = "".join(f"CALL({prefetch_linear.kernel_name(*instance)})\n" for instance in SHAPES)
    return compile_for_cpu(PROGRAM + calls, tmp_path_factory.mktemp("prefetch_linear"))


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_linear, "source", lambda _: CpuSource(compiled, "prefetch_linear.cu"))
    small = {(kind, *shape): division for (kind, division), shape in SHAPES.items()}
    assert len(small) == len(SHAPES)
    monkeypatch.setattr(prefetch_linear, "DIVISIONS", small)


def matrix(kind: int, division: Division) -> Tensor:
    shape = SHAPES[kind, division]
    return noise(*shape, seed=1, scale=shape[1] ** -0.5)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(("kind", "division"), [each for each in SHAPES if each[0] != ADD])
@pytest.mark.parametrize("rows", [2, 5, 8])
@pytest.mark.parametrize("normed", [True, False])
def test_a_product_equals_its_reference(kind: int, division: Division, rows: int, normed: bool) -> None:
    weight = matrix(kind, division)
    x = noise(rows, weight.shape[1] + 16, seed=5)[:, : weight.shape[1]]  # with a row stride
    given = pre_norm_reference(x, norm(x.shape[1])) if normed else x
    found = prefetch_linear.launch(given, weight, kind == GATED)
    assert_close(found, project_reference(given, weight, kind == GATED))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("division", [division for kind, division in SHAPES if kind == ADD])
@pytest.mark.parametrize("rows", [2, 7, 8])
def test_a_sum_and_what_the_next_product_reads_equal_their_reference(division: Division, rows: int) -> None:
    weight = matrix(ADD, division)
    x, add, after = noise(rows, weight.shape[1], seed=5), noise(rows, len(weight), seed=6), norm(len(weight))
    found, expected = prefetch_linear.launch_add(x, weight, add, after), project_add_reference(x, weight, add, after)
    assert_close(found.rows, expected.rows)
    assert torch.equal(found.gained, found.rows * after.gain)
    torch.testing.assert_close(found.squares.sum(1), found.rows.float().square().sum(1), atol=1e-4, rtol=1e-4)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    weight, x = matrix(GATED, DIVISIONS[GATED, 6144, 1024]), noise(8, 1024, seed=5)
    together = prefetch_linear.launch(pre_norm_reference(x, norm(1024)), weight, True)
    for first, last in ((0, 2), (3, 8)):
        alone = prefetch_linear.launch(pre_norm_reference(x[first:last], norm(1024)), weight, True)
        assert torch.equal(alone, together[first:last])


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_row_that_is_not_finite_changes_no_other() -> None:
    weight, x = matrix(PLAIN, DIVISIONS[PLAIN, 4096, 1024]), noise(4, 1024, seed=5)
    before = prefetch_linear.launch(pre_norm_reference(x, norm(1024)), weight, False)
    x[2, 7] = torch.nan
    after = prefetch_linear.launch(pre_norm_reference(x, norm(1024)), weight, False)
    assert after[2].isnan().all()
    others = [0, 1, 3]
    assert torch.equal(after[others], before[others])


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("rows", [2, 8])
def test_nothing_outside_of_the_tensors_is_read_or_written(
    rows: int, at_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = GuardedMemory()

    def guarded(values: Tensor) -> Tensor:
        return memory.copy(values, at_end)

    cases = [(kind, guarded(matrix(kind, division))) for kind, division in SHAPES]
    given = [
        (guarded(noise(rows, weight.shape[1], seed=5)), guarded(noise(rows, len(weight), seed=6)))
        for _, weight in cases
    ]
    norms = [Norm(guarded(norm(weight.shape[0 if kind == ADD else 1]).gain), 1e-6) for kind, weight in cases]
    empty, new_empty = torch.empty, Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *size, **named: guarded(empty(*size, **named).fill_(torch.nan)))
    monkeypatch.setattr(Tensor, "new_empty", lambda like, *size: guarded(new_empty(like, *size).fill_(torch.nan)))
    for (kind, weight), (x, add), each in zip(cases, given, norms, strict=True):
        made: tuple[Tensor, ...]
        if kind == ADD:
            made = prefetch_linear.launch_add(x, weight, add, each)[:3]
        else:
            made = (prefetch_linear.launch(pre_norm_reference(x, each), weight, kind == GATED),)
        assert all(bool(part.isfinite().all()) for part in made)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", prefetch_linear.ARCHITECTURES)
def test_every_product_compiles_and_fits_the_registers(architecture: int, tmp_path: Path) -> None:
    registers = registers_of(SOURCE, architecture, tmp_path)
    assert len(registers) == len(SHAPES)
    assert max(registers) <= MAX_REGISTERS
