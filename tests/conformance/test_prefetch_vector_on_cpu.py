# SPDX-License-Identifier: Apache-2.0
"""The products of prefetch_vector.cu, compiled for a CPU, against their reference implementations; no GPU is needed.

cluster_on_cpu.hpp and bfloat16_on_cpu.hpp replace the instructions of the GPU, so this tests which thread copies,
loads, multiplies, adds up and stores what. The source is also compiled for the architecture that runs it.
"""

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import NVCC, CpuSource, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import assert_close, noise, norm
from polyvox.kernels import prefetch_vector
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.pre_norm import pre_norm_reference
from polyvox.kernels.prefetch_vector import SHAPES
from polyvox.kernels.products import ADD, GATED, PROGRAMS

SOURCE = Path(prefetch_vector.__file__).with_suffix(".cu")
NUM_PROGRAMS = 2
MAX_REGISTERS = 80  # per thread, so that three programs of the predictor fit into a multiprocessor
# The matrices, for NUM_PROGRAMS programs.
SMALL = [(kind, height // PROGRAMS * NUM_PROGRAMS, inputs) for kind, height, inputs in SHAPES]
NAMES = [prefetch_vector.kernel_name(kind, height // PROGRAMS, inputs) for kind, height, inputs in SHAPES]

PROGRAM = """
#include "prefetch_vector.cu"
typedef bits16 B;
#define CALL(NAME) \\
  static void call_##NAME(void **p, int *n) { \\
    float eps; \\
    std::memcpy(&eps, n + 1, sizeof eps); \\
    NAME((B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (B *)p[5], (B *)p[6], (float *)p[7], n[0], eps); \\
  } \\
  LAUNCH(NAME)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    calls = "".join(f"CALL({name})\n" for name in NAMES)
    return compile_for_cpu(PROGRAM + calls, tmp_path_factory.mktemp("prefetch_vector"))


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_vector, "source", lambda _: CpuSource(compiled, "prefetch_vector.cu"))
    monkeypatch.setattr(prefetch_vector, "PROGRAMS", NUM_PROGRAMS)


def matrix(height: int, inputs: int) -> Tensor:
    return noise(height, inputs, seed=1, scale=inputs**-0.5)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("shape", [each for each in SMALL if each[0] != ADD])
@pytest.mark.parametrize("normed", [True, False])
def test_a_product_equals_its_reference(shape: tuple[int, int, int], normed: bool) -> None:
    kind, height, inputs = shape
    weight, x = matrix(height, inputs), noise(1, inputs, seed=5)
    given = pre_norm_reference(x, norm(inputs)) if normed else x
    found = prefetch_vector.launch(given, weight, kind == GATED)
    assert_close(found, project_reference(given, weight, kind == GATED))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("shape", [each for each in SMALL if each[0] == ADD])
def test_a_sum_and_what_the_next_product_reads_equal_their_reference(shape: tuple[int, int, int]) -> None:
    _, height, inputs = shape
    weight, after = matrix(height, inputs), norm(height)
    x, add = noise(1, 1, inputs, seed=5), noise(1, 1, height, seed=6)
    found, expected = prefetch_vector.launch_add(x, weight, add, after), project_add_reference(x, weight, add, after)
    assert_close(found.rows, expected.rows)
    assert torch.equal(found.gained, found.rows * after.gain)
    torch.testing.assert_close(found.squares.sum(-1), found.rows.float().square().sum(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", prefetch_vector.ARCHITECTURES)
def test_every_product_compiles_and_fits_the_registers(architecture: int, tmp_path: Path) -> None:
    registers = registers_of(SOURCE, architecture, tmp_path)
    assert len(registers) == len(NAMES)
    assert max(registers) <= MAX_REGISTERS
