# SPDX-License-Identifier: Apache-2.0
"""The CUDA products for sm_90, compiled for a CPU, against their reference implementations; no GPU is needed.

wgmma_linear_on_cpu.hpp replaces the instructions of the GPU, so this tests the tiles, clusters, stages, barriers,
swizzled copies and stores of wgmma_linear.cu, and the launch sizes of wgmma_linear.py.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import COMPILER, NVCC, compile_for_cpu, registers_of, set_previous_launch
from polyvox.kernels import cuda_source, gpu, wgmma_linear
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED
from polyvox.kernels.tensor_map import TensorMap
from polyvox.kernels.wgmma_linear import TILES, ProductTile

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")

PROGRAM = """
#include "wgmma_linear.cu"
typedef bits16 H;
typedef TensorMap Map;
#define LAUNCH_PRODUCT(NAME) \\
  extern "C" void launch_##NAME(int num_programs, int threads, int shared, Map *maps, void **p, int *n, float *f) { \\
    launch_products(num_programs, threads, shared, [=] { \\
      NAME(maps[0], maps[1], (float *)p[0], (H *)p[1], (H *)p[2], (H *)p[3], (H *)p[4], (float *)p[5], n[0], n[1], \\
           n[2], n[3], n[4], n[5], f[0]); \\
    }); \\
  }
"""
INPUTS = 1024


class HostMap(ctypes.Structure):
    """TensorMap of wgmma_bfloat16_on_cpu.hpp."""

    _fields_ = (("values", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("rows", "columns", "row", "box")))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    launches = [f"LAUNCH_PRODUCT({tile.name})" for tile in TILES]
    return compile_for_cpu("\n".join([PROGRAM, *launches]), tmp_path_factory.mktemp("wgmma_linear"), "-O2")


@pytest.fixture(autouse=True)
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches run on the CPU."""

    def launch(
        name: str,
        num_programs: int,
        threads: int,
        shared: int,
        arguments: Sequence[cuda_source.Argument],
        overlaps: bool = False,
    ) -> None:
        assert overlaps
        assert shared <= gpu.GPUS[90].shared
        set_previous_launch(compiled, "wgmma_linear.cu", name, arguments)
        maps = [each for each in arguments if isinstance(each, TensorMap)]
        hosts = [
            HostMap(each.matrix.data_ptr(), *each.matrix.shape, each.matrix.stride(0), each.box_rows) for each in maps
        ]
        given = [each for each in arguments if each is None or isinstance(each, Tensor)]
        tensors = [0 if each is None else each.data_ptr() for each in given]
        numbers = [each for each in arguments if isinstance(each, int)]
        floats = [each for each in arguments if isinstance(each, float)]
        getattr(compiled, f"launch_{name}")(
            num_programs, threads, shared, (HostMap * 2)(*hosts), (ctypes.c_void_p * len(tensors))(*tensors),
            (ctypes.c_int * len(numbers))(*numbers), (ctypes.c_float * len(floats))(*floats),
        )  # fmt: skip

    monkeypatch.setattr(wgmma_linear.SOURCE, "launch", launch)


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).bfloat16()


@pytest.mark.parametrize("rows", [40, 150, 192, 300])  # for the second program of a cluster: none, or some
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_products_equal_their_reference(tile: ProductTile, rows: int) -> None:
    compare(tile, rows)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_a_slow_thread_misses_no_phase_of_a_barrier(tile: ProductTile, rank: int, compiled: ctypes.CDLL) -> None:
    """The second program of a cluster has no rows."""
    compiled.set_slow_program(rank)
    try:
        compare(tile, 40)
    finally:
        compiled.set_slow_program(-1)


def compare(tile: ProductTile, rows: int) -> None:
    height = 2 * tile.width
    weight, x = random(height, INPUTS, seed=1, scale=INPUTS**-0.5), random(rows, 2, INPUTS, seed=2)[:, 1]
    if tile.kind == ADD:
        add, norm = random(rows, 2, height, seed=3)[:, 1], Norm(random(height, seed=4), 1e-6)
        made, sums = (
            wgmma_linear.launch_add_tile(x, weight, add, norm, tile),
            project_add_reference(x, weight, add, norm),
        )
        torch.testing.assert_close(made.rows.float(), sums.rows.float(), atol=3e-2, rtol=1e-2)
        assert torch.equal(made.gained, made.rows * norm.gain)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-3, rtol=1e-5)
        return
    given = pre_norm_reference(x, Norm(random(INPUTS, seed=5), 1e-6))
    given = given._replace(squares=x.float().square().unflatten(1, (-1, wgmma_linear.PART)).sum(-1))
    gated = tile.kind == GATED
    found, expected = wgmma_linear.launch_tile(given, weight, gated, tile), project_reference(given, weight, gated)
    torch.testing.assert_close(found.float(), expected.float(), atol=3e-2, rtol=1e-2)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_every_product_compiles_and_none_spills(tmp_path: Path) -> None:
    source = Path(wgmma_linear.__file__).with_suffix(".cu")
    assert len(registers_of(source, wgmma_linear.SOURCE.architecture, tmp_path)) == len(TILES)
