# SPDX-License-Identifier: Apache-2.0
"""The products of register_linear.cu, compiled for a CPU, against their reference implementations; no GPU is needed.

register_linear_on_cpu.hpp replaces the instructions of the GPU, so this tests which thread loads, multiplies, adds up
and stores what. The source is also compiled for every architecture.
"""

import ctypes
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyvox.kernels import cuda_source, register_linear
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.small_batch_linear import project_add_reference, project_reference

COMPILER, NVCC = shutil.which("g++"), shutil.which("nvcc")
SOURCE = Path(register_linear.__file__).with_suffix(".cu")
NUM_PROGRAMS = 2
TOLERANCE = 2**-7  # two bfloat16 that are next to each other
MAX_REGISTERS, MAX_REGISTERS_OF_TWO = 255, 128  # per thread: of one program on a multiprocessor, of each of two
NUM_PRODUCTS = sum(
    len(instances) * len(register_linear.ROW_TILES[dtype]) for dtype, instances in register_linear.INSTANCES.items()
)

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
    folder = tmp_path_factory.mktemp("register_linear")
    calls = "".join(
        f"CALL(product_{register_linear.NAMES[dtype]}_{tiles}_{iterations}_{num_row_tiles})\n"
        for dtype, instances in register_linear.INSTANCES.items()
        for tiles, iterations in sorted(instances)
        for num_row_tiles in register_linear.ROW_TILES[dtype]
    )
    (folder / "program.cpp").write_text(PROGRAM + calls)
    command = [str(COMPILER), "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-DON_CPU", "-Wno-unknown-pragmas"]
    command += [f"-I{SOURCE.parent}", f"-I{Path(__file__).parent}"]
    command += ["-o", str(folder / "kernels.so"), str(folder / "program.cpp")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-3000:]
    return ctypes.CDLL(str(folder / "kernels.so"))


@pytest.fixture(params=[register_linear.TRIAL, register_linear.SMALL_TRIAL])
def _on_cpu(compiled: ctypes.CDLL, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of each trial run on the CPU, in NUM_PROGRAMS programs."""
    monkeypatch.setenv("POLYVOX_TRIAL_KERNELS", request.param)

    class OnCpu:
        def launch(
            self,
            name: str,
            num_programs: int,
            threads: int,
            shared: int,
            arguments: Sequence[cuda_source.Argument],
            overlaps: bool,
        ) -> None:
            assert num_programs == NUM_PROGRAMS
            assert not overlaps
            pointers = [value.data_ptr() if isinstance(value, Tensor) else 0 for value in arguments[:9]]
            numbers = [
                struct.unpack("i", struct.pack("f" if isinstance(value, float) else "i", value))[0]
                for value in arguments[9:]
            ]
            getattr(compiled, f"launch_{name}")(
                num_programs, threads, shared,
                (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int * len(numbers))(*numbers),
            )  # fmt: skip

    monkeypatch.setattr(register_linear, "source", lambda _: OnCpu())
    monkeypatch.setattr(register_linear, "PROGRAMS", NUM_PROGRAMS)


def noise(*shape: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def matrix(tiles: int, iterations: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    inputs = 256 * iterations
    return noise(NUM_PROGRAMS * 8 * tiles, inputs, seed=tiles, scale=inputs**-0.5, dtype=dtype)


def norm(size: int, dtype: torch.dtype = torch.bfloat16) -> Norm:
    return Norm(1 + noise(size, seed=3, scale=0.2, dtype=dtype), 1e-6)


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(
    ("tiles", "iterations", "rows", "normed", "gated"),
    [(2, 4, 8, True, False), (3, 8, 3, False, False), (4, 4, 5, True, False), (4, 8, 7, True, True)],
)
def test_a_product_equals_its_reference(tiles: int, iterations: int, rows: int, normed: bool, gated: bool) -> None:
    weight, x = matrix(tiles, iterations), noise(rows, 256 * iterations, seed=5)
    given = pre_norm_reference(x, norm(x.shape[1])) if normed else x
    assert register_linear.instance(weight) == (tiles, iterations)
    assert_close(register_linear.launch(given, weight, gated), project_reference(given, weight, gated))


@pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(("tiles", "iterations", "rows"), [(1, 12, 2), (1, 8, 8), (2, 24, 7)])
def test_a_sum_and_its_squares_equal_their_reference(tiles: int, iterations: int, rows: int) -> None:
    weight = matrix(tiles, iterations)
    wider = noise(rows, 256 * iterations + 64, seed=5)
    x, add, gain = wider[:, : 256 * iterations], noise(rows, len(weight), seed=6), norm(len(weight))
    found, expected = register_linear.launch_add(x, weight, add, gain), project_add_reference(x, weight, add, gain)
    assert_close(found.rows, expected.rows)
    assert_close(found.gained, expected.gained)
    torch.testing.assert_close(found.squares.sum(1), found.rows.float().square().sum(1), atol=1e-4, rtol=1e-4)
    # The next product reads the sum's rows and squares.
    after = matrix(2, 4)[:, : len(weight)].repeat(1, 1024 // len(weight))
    widened = found._replace(gained=found.gained.repeat(1, 1024 // len(weight)))
    assert_close(register_linear.launch(widened, after, False), project_reference(widened, after, False))


@pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("rows", [4, 27])
def test_products_of_float16_with_a_layer_scale_equal_their_reference(rows: int) -> None:
    dtype = torch.float16
    weight, x, add = matrix(1, 4, dtype), noise(rows, 1024, seed=5, dtype=dtype), noise(rows, 16, seed=6, dtype=dtype)
    scale, after = noise(16, seed=7, dtype=dtype), norm(16, dtype)
    found = register_linear.launch_add(x, weight, add, after, scale)
    assert_close(found.rows, project_add_reference(x, weight, add, after, scale).rows)
    assert not torch.equal(found.rows, register_linear.launch_add(x, weight, add, after).rows)
    gated, given = matrix(2, 2, dtype), pre_norm_reference(x[:, :512], norm(512, dtype))
    assert_close(register_linear.launch(given, gated, True), project_reference(given, gated, True))


@pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")
@pytest.mark.usefixtures("_on_cpu")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    weight, x, add = matrix(2, 4), noise(8, 1024, seed=5), noise(8, 32, seed=6)
    together = register_linear.launch_add(x, weight, add, norm(32))
    for i in (0, 3, 7):
        alone = register_linear.launch_add(x[i : i + 1], weight, add[i : i + 1], norm(32))
        assert all(
            torch.equal(*pair) for pair in zip(alone[:3], (part[i : i + 1] for part in together[:3]), strict=True)
        )


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", GPUS)
def test_every_product_compiles_and_fits_the_registers(architecture: int, tmp_path: Path) -> None:
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = [str(NVCC), target, "-cubin", "-Xptxas", "-v", "-std=c++17", "-o", str(tmp_path / "made"), str(SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stderr[-3000:]
    registers = [int(used) for used in re.findall(r"Used (\d+) registers", made.stderr)]
    spilled = [int(stored) for stored in re.findall(r"(\d+) bytes spill stores", made.stderr)]
    assert len(registers) == NUM_PRODUCTS
    assert max(registers) <= MAX_REGISTERS
    small = re.findall(r"Compiling entry function 'product_\w+_1'.*?Used (\d+) registers", made.stderr, re.DOTALL)
    assert len(small) == len(register_linear.INSTANCES[torch.bfloat16])
    assert max(map(int, small)) <= MAX_REGISTERS_OF_TWO
    assert not any(spilled)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_the_assembler_leaves_the_loads_of_weights_before_the_wait(tmp_path: Path) -> None:
    """Loads by the read-only path (.nc) are moved behind it. In machine code, ACQBULK waits for the previous launch."""
    import triton

    cubin = tmp_path / "made.cubin"
    target = "-gencode=arch=compute_90,code=sm_90"
    subprocess.run([str(NVCC), target, "-cubin", "-std=c++17", "-o", cubin, SOURCE], check=True, timeout=600)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    code = subprocess.run([tool, cubin], capture_output=True, text=True, check=True, timeout=120).stdout
    programs = re.findall(r"^\.text\.product_\w+?_(\d+)_(\d+)_(\d):$(.*?)ACQBULK", code, re.MULTILINE | re.DOTALL)
    assert len(programs) == NUM_PRODUCTS
    for *numbers, before in programs:
        tiles, iterations, num_row_tiles = map(int, numbers)
        max_loaded = 24 if num_row_tiles > 1 else 27 - min(iterations, 8) - tiles
        assert before.count("LDG.E.NA.128") == min(max_loaded // tiles, iterations) * tiles, numbers
