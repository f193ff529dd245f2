# SPDX-License-Identifier: Apache-2.0
"""The products of register_linear.cu, compiled for a CPU, against their reference implementations; no GPU is needed.

register_linear_on_cpu.hpp replaces the instructions of the GPU, so this tests which thread loads, multiplies, adds up
and stores what. The source is also compiled for every architecture that runs it.
"""

import ctypes
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance import products_on_cpu
from conformance.cuda_on_cpu import NVCC, CpuSource, GuardedMemory, compile_for_cpu, needs_compiler, registers_of
from polyvox.kernels import register_linear
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.pre_norm import Norm, PreNorm, pre_norm_reference

SOURCE = Path(register_linear.__file__).with_suffix(".cu")
NUM_PROGRAMS = 2
DTYPE = torch.float16
noise, norm = partial(products_on_cpu.noise, dtype=DTYPE), partial(products_on_cpu.norm, dtype=DTYPE)
assert_close = partial(products_on_cpu.assert_close, tolerance=2**-9)
MAX_REGISTERS = 128  # per thread, so that two programs fit into a multiprocessor
NUM_PRODUCTS = len(register_linear.INSTANCES) * len(register_linear.ROW_TILES)

PROGRAM = """
#include "register_linear.cu"
typedef bits16 B;
#define CALL(NAME) \\
  static void call_##NAME(void **p, int *n) { \\
    float eps; \\
    std::memcpy(&eps, n + 7, sizeof eps); \\
    NAME((B *)p[0], (B *)p[1], (float *)p[2], (B *)p[3], (B *)p[4], (B *)p[5], (B *)p[6], (B *)p[7], (float *)p[8], \\
         n[0], n[1], n[2], n[3], n[4], n[5], n[6], eps); \\
  } \\
  LAUNCH(NAME)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    calls = "".join(
        f"CALL(product_{tiles}_{iterations}_{num_row_tiles})\n"
        for tiles, iterations in sorted(register_linear.INSTANCES)
        for num_row_tiles in register_linear.ROW_TILES
    )
    return compile_for_cpu(PROGRAM + calls, tmp_path_factory.mktemp("register_linear"))


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches run on the CPU, in NUM_PROGRAMS programs."""
    monkeypatch.setattr(register_linear, "source", lambda _: CpuSource(compiled, "register_linear.cu"))
    monkeypatch.setattr(register_linear, "PROGRAMS", NUM_PROGRAMS)


def matrix(tiles: int, iterations: int) -> Tensor:
    inputs = 256 * iterations
    return noise(NUM_PROGRAMS * 8 * tiles, inputs, seed=tiles, scale=inputs**-0.5)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 31, 32])
@pytest.mark.parametrize(
    ("tiles", "iterations", "normed", "gated"),
    [(3, 2, True, False), (3, 2, False, False), (2, 2, True, True), (1, 4, False, False)],
)
def test_a_product_equals_its_reference(tiles: int, iterations: int, rows: int, normed: bool, gated: bool) -> None:
    weight, x = matrix(tiles, iterations), noise(rows, 256 * iterations, seed=5)
    given = pre_norm_reference(x, norm(x.shape[1])) if normed else x
    assert register_linear.instance(weight) == (tiles, iterations)
    assert_close(register_linear.launch(given, weight, gated), project_reference(given, weight, gated))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("rows", [1, 4, 27, 32])
def test_a_sum_with_a_layer_scale_and_its_squares_equal_their_reference(rows: int) -> None:
    weight, wider, add = matrix(1, 4), noise(rows, 1088, seed=5), noise(rows, 16, seed=6)
    x, scale, after = wider[:, :1024], noise(16, seed=7), norm(16)
    found, expected = (
        function(x, weight, add, after, scale) for function in (register_linear.launch_add, project_add_reference)
    )
    assert_close(found.rows, expected.rows)
    assert_close(found.gained, expected.gained)
    torch.testing.assert_close(found.squares.sum(1), found.rows.float().square().sum(1), atol=1e-4, rtol=1e-4)
    plain = register_linear.launch_add(x, weight, add, after)
    assert not torch.equal(found.rows, plain.rows)
    assert_close(plain.rows, project_add_reference(x, weight, add, after).rows)
    # The next product reads the sum's rows and squares.
    widened = found._replace(gained=found.gained.repeat(1, 512 // 16))
    assert_close(register_linear.launch(widened, matrix(2, 2), True), project_reference(widened, matrix(2, 2), True))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    weight, x, add = matrix(1, 4), noise(32, 1024, seed=5), noise(32, 16, seed=6)
    together = register_linear.launch_add(x, weight, add, norm(16))
    for i in (0, 3, 31):
        alone = register_linear.launch_add(x[i : i + 1], weight, add[i : i + 1], norm(16))
        assert all(
            torch.equal(*pair) for pair in zip(alone[:3], (part[i : i + 1] for part in together[:3]), strict=True)
        )


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 5, 8, 31, 32])
def test_nothing_outside_of_the_tensors_is_read_or_written(
    rows: int, at_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = GuardedMemory()

    def guarded(values: Tensor) -> Tensor:
        return memory.copy(values, at_end)

    weights, gains = [guarded(matrix(*each)) for each in ((3, 2), (2, 2), (1, 4))], [guarded(norm(16).gain)]
    x, wide, add = (guarded(noise(rows, size, seed=size)) for size in (512, 1024, 16))
    squares, scale = guarded(x.float().square().sum(1, keepdim=True)), guarded(noise(16, seed=7))
    given = PreNorm(x, x, squares, Norm(gains[0], 1e-6))
    empty, new_empty = torch.empty, Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *size, **named: guarded(empty(*size, **named).fill_(torch.nan)))
    monkeypatch.setattr(Tensor, "new_empty", lambda like, *size: guarded(new_empty(like, *size).fill_(torch.nan)))
    made = [
        register_linear.launch(given, weights[0], False),
        register_linear.launch(given, weights[1], True),
        *register_linear.launch_add(wide, weights[2], add, given.norm, scale)[:3],
    ]
    assert all(bool(each.isfinite().all()) for each in made)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", register_linear.ARCHITECTURES)
def test_every_product_compiles_and_fits_the_registers(architecture: int, tmp_path: Path) -> None:
    registers = registers_of(SOURCE, architecture, tmp_path)
    assert len(registers) == NUM_PRODUCTS
    assert max(registers) <= MAX_REGISTERS


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_the_assembler_leaves_the_loads_of_weights_before_the_wait(tmp_path: Path) -> None:
    """Loads by the read-only path (.nc) are moved behind it. In machine code, ACQBULK waits for the previous launch."""
    import triton

    cubin = tmp_path / "made.cubin"
    target = "-gencode=arch=compute_90,code=sm_90"
    subprocess.run([str(NVCC), target, "-cubin", "-std=c++17", "-o", cubin, SOURCE], check=True, timeout=600)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    code = subprocess.run([tool, cubin], capture_output=True, text=True, check=True, timeout=120).stdout
    programs = re.findall(r"^\.text\.product_(\d+)_(\d+)_\d:$(.*?)ACQBULK", code, re.MULTILINE | re.DOTALL)
    assert len(programs) == NUM_PRODUCTS
    for tiles, iterations, before in programs:
        assert before.count("LDG.E.NA.128") == int(tiles) * int(iterations)
