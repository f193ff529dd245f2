# SPDX-License-Identifier: Apache-2.0
"""The CUDA products for sm_90, compiled for a CPU, against their reference implementations; no GPU is needed.

wgmma_linear_on_cpu.hpp replaces the instructions of the GPU, so this tests the tiles, clusters, stages, barriers,
swizzled copies and stores of wgmma_linear.cu, and the launch sizes of wgmma_linear.py.
"""

import ctypes
from pathlib import Path

import pytest
import torch

from conformance.cuda_on_cpu import NVCC, MappedCpuSource, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import noise
from polyvox.kernels import wgmma_linear
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED
from polyvox.kernels.wgmma_linear import TILES, ProductTile

pytestmark = needs_compiler

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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    launches = [f"LAUNCH_PRODUCT({tile.name})" for tile in TILES]
    return compile_for_cpu("\n".join([PROGRAM, *launches]), tmp_path_factory.mktemp("wgmma_linear"), "-O2")


@pytest.fixture(autouse=True)
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches run on the CPU."""
    source = MappedCpuSource(compiled, "wgmma_linear.cu", overlaps=True)
    monkeypatch.setattr(wgmma_linear.SOURCE, "launch", source.launch)


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
    weight, x = noise(height, INPUTS, seed=1, scale=INPUTS**-0.5), noise(rows, 2, INPUTS, seed=2)[:, 1]
    if tile.kind == ADD:
        add, norm = noise(rows, 2, height, seed=3)[:, 1], Norm(noise(height, seed=4), 1e-6)
        made, sums = (
            wgmma_linear.launch_add_tile(x, weight, add, norm, tile),
            project_add_reference(x, weight, add, norm),
        )
        torch.testing.assert_close(made.rows.float(), sums.rows.float(), atol=3e-2, rtol=1e-2)
        assert torch.equal(made.gained, made.rows * norm.gain)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-3, rtol=1e-5)
        return
    given = pre_norm_reference(x, Norm(noise(INPUTS, seed=5), 1e-6))
    given = given._replace(squares=x.float().square().unflatten(1, (-1, wgmma_linear.PART)).sum(-1))
    gated = tile.kind == GATED
    found, expected = wgmma_linear.launch_tile(given, weight, gated, tile), project_reference(given, weight, gated)
    torch.testing.assert_close(found.float(), expected.float(), atol=3e-2, rtol=1e-2)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_every_product_compiles_and_none_spills(tmp_path: Path) -> None:
    source = Path(wgmma_linear.__file__).with_suffix(".cu")
    assert len(registers_of(source, wgmma_linear.SOURCE.architecture, tmp_path)) == len(TILES)
