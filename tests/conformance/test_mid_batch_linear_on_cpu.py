# SPDX-License-Identifier: Apache-2.0
"""The products of mid_batch_linear.cu, compiled for a CPU, against their reference implementations; no GPU is needed.

mid_batch_linear_on_cpu.hpp replaces the instructions of the GPU, so this tests the clusters, stages, barriers, swizzled
copies, the exchange of sums and the stores. The source is also compiled for the architecture that runs it.
"""

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import NVCC, GuardedMemory, MappedCpuSource, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import assert_close, noise, norm
from polyvox.kernels import mid_batch_linear
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.mid_batch_linear import DIVISIONS, ClusterDivision
from polyvox.kernels.pre_norm import Norm, PreNorm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED, PLAIN

NUM_CLUSTERS = 2
MAX_REGISTERS = 204  # per thread, so that two programs fit into a multiprocessor
# A matrix of each division, for NUM_CLUSTERS clusters.
SHAPES = {
    (kind, division): (
        NUM_CLUSTERS * division.height,
        mid_batch_linear.cluster_size(kind) * division.chunks * mid_batch_linear.DEPTH,
    )
    for (kind, *_), division in DIVISIONS.items()
}
PROGRAM = """
#include "mid_batch_linear.cu"
typedef bits16 B;
typedef TensorMap Map;
#define LAUNCH_PRODUCT(NAME, CLUSTER) \\
  extern "C" void launch_##NAME(int num_programs, int threads, int shared, Map *maps, void **p, int *n, float *f) { \\
    launch(num_programs, threads, shared, [=] { \\
      NAME(maps[0], maps[1], (float *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (float *)p[5], n[0], n[1], \\
           n[2], n[3], n[4], n[5], f[0]); \\
    }, CLUSTER); \\
  }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    launches = [
        f"LAUNCH_PRODUCT({mid_batch_linear.kernel_name(kind, division)}, {mid_batch_linear.cluster_size(kind)})"
        for kind, division in SHAPES
    ]
    return compile_for_cpu("\n".join([PROGRAM, *launches]), tmp_path_factory.mktemp("mid_batch_linear"), "-O2")


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches run on the CPU."""
    source = MappedCpuSource(compiled, "mid_batch_linear.cu", overlaps=False)
    monkeypatch.setattr(mid_batch_linear.SOURCE, "launch", source.launch)
    monkeypatch.setattr(
        mid_batch_linear, "DIVISIONS", {(kind, *shape): division for (kind, division), shape in SHAPES.items()}
    )


def matrix(kind: int, division: ClusterDivision) -> Tensor:
    shape = SHAPES[kind, division]
    return noise(*shape, seed=1, scale=shape[1] ** -0.5)


def normed(x: Tensor, parts: int = 1) -> PreNorm:
    made = pre_norm_reference(x, norm(x.shape[1]))
    return made._replace(squares=x.float().square().unflatten(1, (parts, -1)).sum(-1))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("kind", "division"), [each for each in SHAPES if each[0] != ADD])
def test_a_slow_thread_misses_no_phase_of_a_barrier(
    kind: int, division: ClusterDivision, rank: int, compiled: ctypes.CDLL
) -> None:
    compiled.set_slow_program(rank)
    try:
        weight = matrix(kind, division)
        x = noise(17, weight.shape[1], seed=5)
        assert_close(mid_batch_linear.launch(x, weight, kind == GATED), project_reference(x, weight, kind == GATED))
    finally:
        compiled.set_slow_program(-1)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(("kind", "division"), [each for each in SHAPES if each[0] != ADD])
@pytest.mark.parametrize(("rows", "parts"), [(5, 128), (16, 0), (17, 1), (32, 32), (33, 0), (64, 8)])
def test_a_product_equals_its_reference(kind: int, division: ClusterDivision, rows: int, parts: int) -> None:
    weight = matrix(kind, division)
    x = noise(rows, weight.shape[1] + 16, seed=5)[:, : weight.shape[1]]  # with a row stride
    given = normed(x, parts) if parts else x
    found = mid_batch_linear.launch(given, weight, kind == GATED)
    assert_close(found, project_reference(given, weight, kind == GATED))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("division", [division for kind, division in SHAPES if kind == ADD])
@pytest.mark.parametrize("rows", [5, 16, 31, 48, 64])
def test_a_sum_and_what_the_next_product_reads_equal_their_reference(division: ClusterDivision, rows: int) -> None:
    weight = matrix(ADD, division)
    x, after = noise(rows, weight.shape[1], seed=5), norm(len(weight))
    add = noise(rows, 2, len(weight), seed=6)[:, 1]  # with a row stride
    found, expected = mid_batch_linear.launch_add(x, weight, add, after), project_add_reference(x, weight, add, after)
    assert_close(found.rows, expected.rows)
    assert torch.equal(found.gained, found.rows * after.gain)
    torch.testing.assert_close(found.squares.sum(1), found.rows.float().square().sum(1), atol=1e-4, rtol=1e-4)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    weight, x = matrix(GATED, DIVISIONS[GATED, 6144, 1024]), noise(40, 1024, seed=5)
    together = mid_batch_linear.launch(normed(x), weight, True)
    for first, last in ((0, 17), (20, 38), (3, 9)):
        assert torch.equal(mid_batch_linear.launch(normed(x[first:last]), weight, True), together[first:last])


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_row_that_is_not_finite_changes_no_other() -> None:
    weight, x = matrix(PLAIN, DIVISIONS[PLAIN, 4096, 1024]), noise(18, 1024, seed=5)
    before = mid_batch_linear.launch(normed(x), weight, False)
    x[2, 7] = torch.nan
    after = mid_batch_linear.launch(normed(x), weight, False)
    assert after[2].isnan().all()
    others = [row for row in range(len(x)) if row != 2]
    assert torch.equal(after[others], before[others])


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("rows", [2, 16, 17, 64])
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
    norms = [Norm(guarded(norm(len(weight)).gain), 1e-6) for _, weight in cases]
    before = [normed(x, 32)._replace(gained=x) for x, _ in given]
    empty, new_empty = torch.empty, Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *size, **named: guarded(empty(*size, **named).fill_(torch.nan)))
    monkeypatch.setattr(Tensor, "new_empty", lambda like, *size: guarded(new_empty(like, *size).fill_(torch.nan)))
    for (kind, weight), (x, add), after, pre_norm in zip(cases, given, norms, before, strict=True):
        made: tuple[Tensor, ...]
        if kind == ADD:
            made = mid_batch_linear.launch_add(x, weight, add, after)[:3]
        else:
            made = (mid_batch_linear.launch(pre_norm, weight, kind == GATED),)
        assert all(bool(each.isfinite().all()) for each in made)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_every_product_compiles_and_fits_the_registers(tmp_path: Path) -> None:
    source = Path(mid_batch_linear.__file__).with_suffix(".cu")
    registers = registers_of(source, mid_batch_linear.SOURCE.architecture, tmp_path)
    assert len(registers) == len(SHAPES)
    assert max(registers) <= MAX_REGISTERS
